package snapshot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/rs/zerolog"
)

const listPage = 1000

// s3Store keeps objects in a bucket of anything that speaks S3. It uses only the library's one-request calls; parts, retries, waits and conditions are ours,
// because the library's own upload drops If-None-Match on completion, buffers 528 MiB parts, and gives up after five seconds of "slow down".
type s3Store struct {
	where  s3Location
	core   minio.Core
	creds  *credentials.Credentials
	limits Limits
	log    zerolog.Logger

	bucketSeen  atomic.Bool  // something in the bucket has answered, so that a bare 404 speaks of the key
	clockOffset atomic.Int64 // the server's clock minus ours, in ns, from the last answer
}

func openS3Store(where s3Location, opt OpenOptions) (*s3Store, error) {
	s := &s3Store{where: where, limits: opt.Limits.withDefaults(), log: opt.Logger.With().Str("store", where.String()).Logger()}
	transport, err := newS3Transport(where, s.limits)
	if err != nil {
		return nil, err
	}
	s.creds = newS3Credentials(where, opt.Credentials)
	lookup := minio.BucketLookupAuto
	switch where.pathStyle {
	case "true":
		lookup = minio.BucketLookupPath
	case "false":
		lookup = minio.BucketLookupDNS
	}
	// MaxRetries 1: the library's waits are capped at one second and know no Retry-After.
	client, err := minio.New(where.endpoint, &minio.Options{
		Creds: s.creds, Secure: where.secure, Transport: transport, Region: where.region, BucketLookup: lookup, MaxRetries: 1,
	})
	if err != nil {
		return nil, fmt.Errorf("%w store URL %s: %w", ErrInvalid, where, err)
	}
	client.SetAppInfo("etcd-warden", "1")
	s.core = minio.Core{Client: client}
	return s, nil
}

func (s s3Location) String() string {
	return strings.TrimSuffix("s3://"+s.bucket+"/"+s.prefix, "/")
}

func (s *s3Store) String() string { return s.where.String() }

func (s *s3Store) fullKey(key string) string {
	if s.where.prefix == "" {
		return key
	}
	return s.where.prefix + "/" + key
}

func (s *s3Store) relativeKey(full string) (string, bool) {
	if s.where.prefix == "" {
		return full, CheckKey(full) == nil
	}
	key, ok := strings.CutPrefix(full, s.where.prefix+"/")
	return key, ok && CheckKey(key) == nil
}

func (s *s3Store) Stat(ctx context.Context, key string) (Object, error) {
	object, err := s.stat(ctx, key)
	if err != nil {
		return Object{}, s.fail("stat", key, err)
	}
	return object, nil
}

func (s *s3Store) stat(ctx context.Context, key string) (object Object, err error) {
	if err := CheckKey(key); err != nil {
		return Object{}, err
	}
	err = s.retry(ctx, "stat", key, func(ctx context.Context) error {
		info, err := s.core.StatObject(ctx, s.where.bucket, s.fullKey(key), minio.StatObjectOptions{})
		object = objectFromS3(key, info)
		return err
	})
	return object, s.confirmAbsent(ctx, err)
}

// confirmAbsent makes sure that "404" without a body speaks of the key and not of the bucket: an absent bucket must not be taken for an empty store.
func (s *s3Store) confirmAbsent(ctx context.Context, err error) error {
	if !errors.Is(err, ErrNotFound) || s.bucketSeen.Load() {
		return err
	}
	exists := true
	errBucket := s.retry(ctx, "stat", "", func(ctx context.Context) (err error) {
		exists, err = s.core.BucketExists(ctx, s.where.bucket)
		return err
	})
	switch {
	case errors.Is(errBucket, ErrDenied):
		return err // may be all that our credentials are allowed to know
	case errBucket != nil:
		return errBucket
	case !exists:
		return &StoreError{Kind: ErrNoStore, Hint: "create the bucket or correct its name"}
	}
	s.bucketSeen.Store(true)
	return err
}

func (s *s3Store) Get(ctx context.Context, key string, offset int64) (io.ReadCloser, Object, error) {
	if err := CheckKey(key); err != nil {
		return nil, Object{}, s.fail("get", key, err)
	}
	if offset < 0 {
		return nil, Object{}, s.fail("get", key, fmt.Errorf("%w: offset %d", ErrInvalid, offset))
	}
	var body io.ReadCloser
	var object Object
	err := s.retryOpen(ctx, "get", key, func(ctx context.Context) (err error) {
		body, object, err = s.get(ctx, key, offset)
		return err
	})
	if err == nil {
		return body, object, nil
	}
	var call *StoreError
	if errors.As(err, &call) && call.Code == "InvalidRange" {
		// The end of an object cannot be asked for; tell it from an offset beyond.
		object, errStat := s.stat(ctx, key)
		if errStat == nil && object.SizeBytes == offset {
			return http.NoBody, object, nil
		}
		err = cmp.Or(errStat, err)
	}
	return nil, Object{}, s.fail("get", key, s.confirmAbsent(ctx, err))
}

func (s *s3Store) get(ctx context.Context, key string, offset int64) (io.ReadCloser, Object, error) {
	var opts minio.GetObjectOptions
	if offset > 0 {
		if err := opts.SetRange(offset, 0); err != nil {
			return nil, Object{}, err
		}
	}
	body, info, header, err := s.core.GetObject(ctx, s.where.bucket, s.fullKey(key), opts)
	if err != nil {
		return nil, Object{}, err
	}
	object := objectFromS3(key, info)
	if offset > 0 {
		total, ok := totalFromContentRange(header.Get("Content-Range"), offset)
		if !ok {
			err := &StoreError{Kind: ErrInvalid, Err: errors.New("the server ignores ranges")}
			return nil, Object{}, errors.Join(err, body.Close())
		}
		object.SizeBytes = total
	}
	return body, object, nil
}

// totalFromContentRange reads "bytes 5-9/10" and makes sure that the range begins where we asked.
func totalFromContentRange(header string, offset int64) (total int64, ok bool) {
	rest, ok := strings.CutPrefix(header, "bytes "+strconv.FormatInt(offset, 10)+"-")
	if !ok {
		return 0, false
	}
	_, size, ok := strings.Cut(rest, "/")
	if !ok {
		return 0, false
	}
	total, err := strconv.ParseInt(size, 10, 64)
	return total, err == nil && total > offset
}

func (s *s3Store) List(ctx context.Context, prefix string) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) {
		after := ""
		for {
			page, err := s.listPage(ctx, prefix, after)
			if err != nil {
				yield(Object{}, s.fail("list", prefix, err))
				return
			}
			for _, info := range page {
				after = info.Key
				key, ours := s.relativeKey(info.Key)
				if ours && !yield(objectFromS3(key, info), nil) {
					return
				}
			}
			if len(page) < listPage {
				return
			}
		}
	}
}

// listPage returns up to listPage objects after a full key. A page is one call with its own retries: the library's iterator would start over.
func (s *s3Store) listPage(ctx context.Context, prefix, after string) (page []minio.ObjectInfo, err error) {
	full := prefix
	if s.where.prefix != "" {
		full = s.where.prefix + "/" + prefix
	}
	err = s.retry(ctx, "list", prefix, func(ctx context.Context) error {
		page = page[:0]
		opts := minio.ListObjectsOptions{Prefix: full, Recursive: true, StartAfter: after, MaxKeys: listPage}
		for info := range s.core.ListObjectsIter(ctx, s.where.bucket, opts) {
			if info.Err != nil {
				return info.Err
			}
			if info.Key <= after {
				return &StoreError{Kind: ErrInvalid, Err: fmt.Errorf("the server lists %q after %q: it does not sort", info.Key, after)}
			}
			if page = append(page, info); len(page) == listPage {
				break
			}
		}
		return context.Cause(ctx) // an iterator that ends early for this reason does not say so
	})
	return page, err
}

func (s *s3Store) Delete(ctx context.Context, key string) error {
	if err := CheckKey(key); err != nil {
		return s.fail("delete", key, err)
	}
	err := s.retry(ctx, "delete", key, func(ctx context.Context) error {
		return s.core.RemoveObject(ctx, s.where.bucket, s.fullKey(key), minio.RemoveObjectOptions{})
	})
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return s.fail("delete", key, err)
}

func (s *s3Store) SweepUploads(ctx context.Context, prefix string, olderThan time.Duration) (int, error) {
	full := s.fullKey(prefix)
	swept, marker, idMarker := 0, "", ""
	for {
		var page minio.ListMultipartUploadsResult
		err := s.retry(ctx, "sweep", "", func(ctx context.Context) (err error) {
			page, err = s.core.ListMultipartUploads(ctx, s.where.bucket, full, marker, idMarker, "", listPage)
			return err
		})
		if err != nil {
			return swept, s.fail("sweep", "", err)
		}
		serverNow := time.Now().Add(time.Duration(s.clockOffset.Load()))
		for _, upload := range page.Uploads {
			key, ours := s.relativeKey(upload.Key)
			if !ours || !strings.HasPrefix(key, prefix) || serverNow.Sub(upload.Initiated) < olderThan {
				continue
			}
			err := s.retry(ctx, "sweep", key, func(ctx context.Context) error {
				return s.core.AbortMultipartUpload(ctx, s.where.bucket, upload.Key, upload.UploadID)
			})
			if err != nil && !errors.Is(err, ErrNotFound) {
				return swept, s.fail("sweep", key, err)
			}
			swept++
		}
		advanced := page.NextKeyMarker != marker || page.NextUploadIDMarker != idMarker
		if marker, idMarker = page.NextKeyMarker, page.NextUploadIDMarker; !page.IsTruncated || !advanced {
			return swept, nil
		}
	}
}

func objectFromS3(key string, info minio.ObjectInfo) Object {
	o := Object{Key: key, SizeBytes: info.Size, ModTime: info.LastModified, ETag: strings.Trim(info.ETag, `"`)}
	if len(info.UserMetadata) > 0 {
		o.Metadata = make(map[string]string, len(info.UserMetadata))
		for name, value := range info.UserMetadata {
			o.Metadata[strings.ToLower(name)] = value
		}
	}
	return o
}
