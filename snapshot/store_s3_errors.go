package snapshot

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"

	"github.com/minio/minio-go/v7"
)

// failure is what to do about the error of one attempt.
type failure struct {
	err   error
	again bool // try again
	now   bool // without a wait
}

// fail completes an error with what was being done. A nil error stays nil.
func (s *s3Store) fail(op, key string, err error) error {
	if err == nil {
		return nil
	}
	var source *SourceError
	if errors.As(err, &source) {
		return fmt.Errorf("%s %s: %w", op, key, source)
	}
	var e *StoreError
	if errors.As(err, &e) {
		named := *e
		named.Op, named.Key, named.Store = op, key, s.String()
		return &named
	}
	for _, kind := range []error{ErrExists, ErrNotFound, ErrNoStore, ErrInvalid} {
		if errors.Is(err, kind) {
			named := &StoreError{Op: op, Key: key, Store: s.String(), Kind: kind}
			if err != kind {
				named.Err = err
			}
			return named
		}
	}
	return fmt.Errorf("%s %s (%s): %w", op, key, s, err)
}

// classify turns the error of the nth attempt into a *StoreError and decides about another one.
func (s *s3Store) classify(err error, c *call, try int) failure {
	var known *StoreError
	var answer minio.ErrorResponse
	switch {
	case errors.As(err, &known):
		return failure{err: known, again: known.Retry}
	case errors.As(err, &answer) && (answer.StatusCode != 0 || answer.Code != ""):
		return s.classifyAnswer(answer, c, try)
	default:
		e := classifyTransport(err)
		return failure{err: e, again: e.Retry}
	}
}

// classifyTransport is for errors without an answer.
func classifyTransport(err error) *StoreError {
	e := &StoreError{Kind: ErrUnavailable, Retry: true, Err: err}
	var unknownCA x509.UnknownAuthorityError
	var badCert *tls.CertificateVerificationError
	var badHost x509.HostnameError
	var dns *net.DNSError
	switch {
	case errors.As(err, &unknownCA), errors.As(err, &badCert), errors.As(err, &badHost):
		e.Kind, e.Retry, e.Hint = ErrInvalid, false, "the endpoint's certificate is not trusted: name its authority with ca-file="
	case errors.Is(err, http.ErrSchemeMismatch):
		e.Kind, e.Retry, e.Hint = ErrInvalid, false, "the endpoint speaks http: write endpoint=http://…"
	case errors.As(err, &dns) && dns.IsNotFound:
		e.Hint = "the endpoint's name does not resolve" // worth retrying: resolvers recover
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		e.Err = fmt.Errorf("the server closed the connection: %w", err)
	case errors.Is(err, context.DeadlineExceeded):
		e.Err = errors.New("timed out")
	}
	return e
}

// classifyAnswer is for errors that the server told us.
func (s *s3Store) classifyAnswer(a minio.ErrorResponse, c *call, try int) failure {
	after, asked := c.after()
	e := &StoreError{Kind: ErrUnavailable, Code: a.Code, HTTP: a.StatusCode}
	if strings.HasPrefix(a.Code, strconv.Itoa(a.StatusCode)) {
		e.Code = "" // the library's stand-in for an answer without a code
	}
	if a.Message != "" && a.Message != a.Code {
		e.Err = errors.New(a.Message)
	}
	out := failure{err: e}
	retry := func(hint string) { e.Retry, out.again, e.Hint = true, true, hint }
	kind := func(k error, hint string) { e.Kind, e.Hint = k, hint }
	switch {
	case a.Code == "NoSuchBucket":
		kind(ErrNoStore, "create the bucket or correct its name")
	case a.Code == "NoSuchKey", a.Code == "NoSuchUpload", a.StatusCode == http.StatusNotFound:
		kind(ErrNotFound, "")
		e.Err = nil
	case a.Code == "PreconditionFailed", a.Code == "BlobAlreadyExists", a.StatusCode == http.StatusPreconditionFailed:
		kind(ErrExists, "")
	case a.Code == "ExpiredToken", a.Code == "ExpiredTokenException", a.Code == "TokenRefreshRequired":
		s.creds.Expire()
		retry("")
		e.Kind, out.now = ErrDenied, try == 1
	case a.Code == "RequestTimeTooSkewed":
		kind(ErrDenied, "set the clock of this machine or of the store")
		e.Err = &SkewError{Offset: c.clockOffset()}
	case a.Code == "SignatureDoesNotMatch":
		// Sporadic in the field; once more, then it is the secret.
		kind(ErrDenied, "check the secret key")
		out.again = try == 1
	case a.Region != "" && a.Region != s.where.region && a.StatusCode >= 300 && a.StatusCode < 500:
		kind(ErrInvalid, fmt.Sprintf("the bucket is in region %s: write region=%s", a.Region, a.Region))
	case a.StatusCode == http.StatusUnauthorized, a.StatusCode == http.StatusForbidden:
		kind(ErrDenied, "check the credentials and what they may do in this bucket")
	case isThrottle(a), a.StatusCode == http.StatusServiceUnavailable && asked:
		retry("")
		e.Err = &ThrottledError{After: after}
	case a.StatusCode == http.StatusNotImplemented:
		kind(ErrInvalid, "the server does not know this request")
	case a.StatusCode == http.StatusInsufficientStorage, a.Code == "QuotaExceeded", a.Code == "XMinioStorageFull":
		kind(ErrFull, "")
	case a.StatusCode >= 500, a.StatusCode == http.StatusConflict, a.StatusCode == http.StatusRequestTimeout, a.StatusCode == 499,
		a.Code == "RequestTimeout", a.Code == "BadDigest", a.Code == "InternalError", a.StatusCode == 0, a.StatusCode == http.StatusOK:
		retry("")
	case a.StatusCode >= 300 && a.StatusCode < 400:
		kind(ErrInvalid, "the endpoint redirects, which is never followed: name the right endpoint and region")
	default:
		kind(ErrInvalid, "the server refuses the request; if it does not know checksums, add checksum=md5 or checksum=none")
	}
	return out
}

func isThrottle(a minio.ErrorResponse) bool {
	switch a.Code {
	case "SlowDown", "SlowDownRead", "SlowDownWrite", "Throttling", "ThrottlingException", "RequestLimitExceeded", "RequestThrottled", "TooManyRequests":
		return true
	}
	return a.StatusCode == http.StatusTooManyRequests
}
