package storetest

import (
	"bytes"
	"crypto/md5"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// IfAbsentSupport is what an S3Server makes of If-None-Match. Each kind exists in the field.
type IfAbsentSupport int

// The kinds of support.
const (
	IfAbsentHonoured IfAbsentSupport = iota
	IfAbsentIgnored                  // the header is not looked at: silent overwrites
	IfAbsentRefused                  // 501 NotImplemented
)

// S3Server is an http.Handler that keeps one bucket in memory, in path style, well enough for what a store asks of it. It is for tests that need no real
// server: it checks that requests are signed, not the signature. Put a FaultProxy before it to make it misbehave.
type S3Server struct {
	Bucket    string
	IfAbsent  IfAbsentSupport
	NoLooking bool // HEAD of an absent object answers 403, as AWS does without the right to list

	mu       sync.Mutex // guards what follows
	objects  map[string]s3Object
	uploads  map[string]*s3Upload
	nextID   int
	requests []string
}

type s3Object struct {
	data  []byte
	etag  string
	at    time.Time
	meta  http.Header
	ctype string
}

type s3Upload struct {
	key   string
	at    time.Time
	meta  http.Header
	parts map[int]s3Object
}

// NewS3Server returns a server with one empty bucket.
func NewS3Server(bucket string) *S3Server {
	return &S3Server{Bucket: bucket, objects: make(map[string]s3Object), uploads: make(map[string]*s3Upload)}
}

// Requests returns what was asked so far: method, key, and the names of the query's parameters.
func (s *S3Server) Requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// PartSizes returns the sizes of the parts of every upload that is not complete.
func (s *S3Server) PartSizes() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	var sizes []int
	for _, u := range s.uploads {
		for _, n := range slices.Sorted(maps.Keys(u.parts)) {
			sizes = append(sizes, len(u.parts[n].data))
		}
	}
	return sizes
}

// PutObject stores an object behind the back of whoever uses the server.
func (s *S3Server) PutObject(key string, data []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.objects[key] = newS3Object(data, nil)
}

// StartUpload leaves an incomplete upload behind, begun at a time.
func (s *S3Server) StartUpload(key string, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nextID++
	s.uploads[strconv.Itoa(s.nextID)] = &s3Upload{key: key, at: at, parts: make(map[int]s3Object)}
}

// Uploads counts the incomplete uploads.
func (s *S3Server) Uploads() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.uploads)
}

func newS3Object(data []byte, header http.Header) s3Object {
	sum := md5.Sum(data)
	meta := make(http.Header)
	for name, values := range header {
		if strings.HasPrefix(name, "X-Amz-Meta-") {
			meta[name] = values
		}
	}
	return s3Object{data: data, etag: `"` + hex.EncodeToString(sum[:]) + `"`, at: time.Now().UTC(), meta: meta, ctype: header.Get("Content-Type")}
}

// s3Error is an answer that is an error.
type s3Error struct {
	status int
	code   string
}

func (e *s3Error) Error() string { return e.code }

// ServeHTTP implements http.Handler.
func (s *S3Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	bucket, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	query := r.URL.Query()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client is gone, or sent less than it said
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, strings.TrimSpace(fmt.Sprint(r.Method, " ", key, " ", strings.Join(slices.Sorted(maps.Keys(query)), "&"))))
	switch {
	case r.Header.Get("Authorization") == "":
		err = &s3Error{http.StatusForbidden, "AccessDenied"}
	case bucket != s.Bucket:
		err = &s3Error{http.StatusNotFound, "NoSuchBucket"}
	default:
		err = checkSums(r.Header, body)
	}
	if err == nil {
		err = s.serve(w, r, key, query, body)
	}
	if err != nil {
		e := err.(*s3Error)
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(e.status)
		if r.Method != http.MethodHead {
			fmt.Fprintf(w, "<Error><Code>%s</Code><Message>by storetest</Message></Error>", e.code)
		}
	}
}

func checkSums(h http.Header, body []byte) error {
	if want := h.Get("Content-Md5"); want != "" {
		if sum := md5.Sum(body); base64.StdEncoding.EncodeToString(sum[:]) != want {
			return &s3Error{http.StatusBadRequest, "BadDigest"}
		}
	}
	if want := h.Get("X-Amz-Checksum-Crc32c"); want != "" {
		sum := binary.BigEndian.AppendUint32(nil, crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli)))
		if base64.StdEncoding.EncodeToString(sum) != want {
			return &s3Error{http.StatusBadRequest, "BadDigest"}
		}
	}
	return nil
}

func (s *S3Server) serve(w http.ResponseWriter, r *http.Request, key string, query url.Values, body []byte) error {
	switch {
	case key == "" && r.Method == http.MethodGet && query.Has("uploads"):
		return s.listUploads(w, query)
	case key == "" && r.Method == http.MethodGet:
		return s.list(w, query)
	case key == "": // HEAD of the bucket
		return nil
	case r.Method == http.MethodPut && query.Has("partNumber"):
		return s.putPart(w, r, query, body)
	case r.Method == http.MethodPut:
		return s.putObject(w, r, key, body)
	case r.Method == http.MethodPost && query.Has("uploads"):
		s.nextID++
		id := strconv.Itoa(s.nextID)
		s.uploads[id] = &s3Upload{key: key, at: time.Now().UTC(), meta: r.Header.Clone(), parts: make(map[int]s3Object)}
		fmt.Fprintf(w, "<InitiateMultipartUploadResult><Bucket>b</Bucket><Key>k</Key><UploadId>%s</UploadId></InitiateMultipartUploadResult>", id)
		return nil
	case r.Method == http.MethodPost:
		return s.complete(w, r, key, query.Get("uploadId"))
	case r.Method == http.MethodDelete && query.Has("uploadId"):
		if _, err := s.upload(query); err != nil {
			return err
		}
		delete(s.uploads, query.Get("uploadId"))
	case r.Method == http.MethodDelete:
		delete(s.objects, key)
	default:
		return s.getObject(w, r, key)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// checkIfAbsent decides a create-only write, as far as this server knows them.
func (s *S3Server) checkIfAbsent(r *http.Request, key string) error {
	if r.Header.Get("If-None-Match") == "" || s.IfAbsent == IfAbsentIgnored {
		return nil
	}
	if s.IfAbsent == IfAbsentRefused {
		return &s3Error{http.StatusNotImplemented, "NotImplemented"}
	}
	if _, ok := s.objects[key]; ok {
		return &s3Error{http.StatusPreconditionFailed, "PreconditionFailed"}
	}
	return nil
}

func (s *S3Server) putObject(w http.ResponseWriter, r *http.Request, key string, body []byte) error {
	if err := s.checkIfAbsent(r, key); err != nil {
		return err
	}
	s.objects[key] = newS3Object(body, r.Header)
	w.Header().Set("ETag", s.objects[key].etag)
	return nil
}

func (s *S3Server) upload(query url.Values) (*s3Upload, error) {
	u, ok := s.uploads[query.Get("uploadId")]
	if !ok {
		return nil, &s3Error{http.StatusNotFound, "NoSuchUpload"}
	}
	return u, nil
}

func (s *S3Server) putPart(w http.ResponseWriter, r *http.Request, query url.Values, body []byte) error {
	u, err := s.upload(query)
	if err != nil {
		return err
	}
	number, _ := strconv.Atoi(query.Get("partNumber"))
	u.parts[number] = newS3Object(body, r.Header)
	w.Header().Set("ETag", u.parts[number].etag)
	return nil
}

func (s *S3Server) complete(w http.ResponseWriter, r *http.Request, key, id string) error {
	u, err := s.upload(url.Values{"uploadId": {id}})
	if err != nil {
		return err
	}
	if err := s.checkIfAbsent(r, key); err != nil {
		return err
	}
	var whole bytes.Buffer
	for _, number := range slices.Sorted(maps.Keys(u.parts)) {
		whole.Write(u.parts[number].data)
	}
	delete(s.uploads, id)
	object := newS3Object(whole.Bytes(), u.meta)
	s.objects[key] = object
	fmt.Fprintf(w, "<CompleteMultipartUploadResult><Bucket>b</Bucket><Key>k</Key><ETag>%s</ETag></CompleteMultipartUploadResult>", object.etag)
	return nil
}

func (s *S3Server) getObject(w http.ResponseWriter, r *http.Request, key string) error {
	object, ok := s.objects[key]
	if !ok && s.NoLooking {
		return &s3Error{http.StatusForbidden, "AccessDenied"}
	}
	if !ok {
		return &s3Error{http.StatusNotFound, "NoSuchKey"}
	}
	if from, ok := strings.CutPrefix(r.Header.Get("Range"), "bytes="); ok {
		if n, err := strconv.Atoi(strings.TrimSuffix(from, "-")); err == nil && n >= len(object.data) {
			return &s3Error{http.StatusRequestedRangeNotSatisfiable, "InvalidRange"}
		}
	}
	for name, values := range object.meta {
		w.Header()[name] = values
	}
	w.Header().Set("ETag", object.etag)
	w.Header().Set("Content-Type", object.ctype)
	http.ServeContent(w, r, "", object.at, bytes.NewReader(object.data))
	return nil
}

func (s *S3Server) list(w http.ResponseWriter, query url.Values) error {
	type content struct {
		Key          string
		LastModified string
		ETag         string
		Size         int
	}
	var answer struct {
		XMLName     xml.Name `xml:"ListBucketResult"`
		IsTruncated bool
		Next        string `xml:"NextContinuationToken"`
		Encoding    string `xml:"EncodingType"`
		Contents    []content
	}
	answer.Encoding = "url"
	after := max(query.Get("start-after"), query.Get("continuation-token"))
	limit, err := strconv.Atoi(query.Get("max-keys"))
	if err != nil || limit > 1000 {
		limit = 1000
	}
	for _, key := range slices.Sorted(maps.Keys(s.objects)) {
		if key <= after || !strings.HasPrefix(key, query.Get("prefix")) {
			continue
		}
		if len(answer.Contents) == limit {
			answer.IsTruncated = true
			break
		}
		object := s.objects[key]
		answer.Contents = append(answer.Contents, content{url.QueryEscape(key), object.at.Format(time.RFC3339Nano), object.etag, len(object.data)})
		answer.Next = key
	}
	return writeXML(w, answer)
}

func (s *S3Server) listUploads(w http.ResponseWriter, query url.Values) error {
	type upload struct {
		Key       string
		UploadID  string `xml:"UploadId"`
		Initiated string
	}
	var answer struct {
		XMLName  xml.Name `xml:"ListMultipartUploadsResult"`
		Encoding string   `xml:"EncodingType"`
		Uploads  []upload `xml:"Upload"`
	}
	answer.Encoding = "url"
	for _, id := range slices.Sorted(maps.Keys(s.uploads)) {
		if u := s.uploads[id]; strings.HasPrefix(u.key, query.Get("prefix")) {
			answer.Uploads = append(answer.Uploads, upload{url.QueryEscape(u.key), id, u.at.Format(time.RFC3339)})
		}
	}
	return writeXML(w, answer)
}

func writeXML(w http.ResponseWriter, answer any) error {
	w.Header().Set("Content-Type", "application/xml")
	data, err := xml.Marshal(answer)
	if err != nil {
		panic(err) // of types of our own
	}
	_, _ = w.Write(data) // a client that is gone notices itself
	return nil
}
