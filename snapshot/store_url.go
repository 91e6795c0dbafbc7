package snapshot

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// storeLocation is a parsed store URL: either a directory or a bucket.
type storeLocation struct {
	dir string
	s3  s3Location
}

// s3Location is all that a URL says of an S3 store.
type s3Location struct {
	bucket, prefix string // prefix without slashes at its ends; may be empty
	endpoint       string // host:port
	secure         bool
	region         string
	pathStyle      string // auto, true, false
	caFile         string
	skipVerify     bool
	anonymous      bool
	checksum       string // crc32c, md5, none
	partBytes      int
	parallel       int
}

const (
	defaultPartBytes = 8 << 20
	defaultParallel  = 3
	minPartBytes     = 5 << 20 // S3 refuses smaller ones, but for the last
	maxPartBytes     = 512 << 20
	maxParallel      = 16
)

func parseStoreURL(raw string) (storeLocation, error) {
	if raw == "" {
		return storeLocation{}, fmt.Errorf("%w store URL: it is empty; write file:///directory or s3://bucket/prefix", ErrInvalid)
	}
	u, err := url.Parse(raw)
	if err != nil {
		// url.Error repeats the whole URL, which may hold a password.
		return storeLocation{}, fmt.Errorf("%w store URL: it cannot be parsed; write file:///directory or s3://bucket/prefix, with %%XX for special characters", ErrInvalid)
	}
	refuse := func(format string, args ...any) (storeLocation, error) {
		return storeLocation{}, fmt.Errorf("%w store URL %s: %s", ErrInvalid, redactURL(u), fmt.Sprintf(format, args...))
	}
	switch {
	case u.User != nil:
		return refuse("credentials do not belong in it; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE")
	case u.Fragment != "":
		return refuse("it has a fragment (#…); write %%23 for a # in a name")
	}
	switch u.Scheme {
	case "file":
		dir, err := parseDirURL(u)
		if err != nil {
			return refuse("%v", err)
		}
		return storeLocation{dir: dir}, nil
	case "s3":
		where, err := parseS3URL(u)
		if err != nil {
			return refuse("%v", err)
		}
		return storeLocation{s3: where}, nil
	case "":
		return refuse("it has no scheme; write file://%s for a directory or s3://bucket/prefix", "/"+strings.TrimPrefix(u.Path, "/"))
	default:
		return refuse("scheme %q is not supported; write file:// or s3://, with endpoint=https://host for other makers of S3", u.Scheme)
	}
}

func parseDirURL(u *url.URL) (string, error) {
	switch {
	case u.Host != "":
		return "", fmt.Errorf("it names the host %q; write three slashes: file:///%s%s", u.Host, u.Host, u.Path)
	case u.Opaque != "" || !strings.HasPrefix(u.Path, "/"):
		return "", fmt.Errorf("the directory must be absolute: file:///var/backups/etcd")
	case u.RawQuery != "":
		return "", fmt.Errorf("a directory takes no parameters")
	case filepath.Clean(u.Path) == "/":
		return "", fmt.Errorf("the root directory is no place for a store; name a directory of its own")
	}
	return filepath.Clean(u.Path), nil
}

func parseS3URL(u *url.URL) (s3Location, error) {
	where := s3Location{
		bucket: u.Host, prefix: strings.Trim(u.Path, "/"), endpoint: "s3.amazonaws.com", secure: true,
		pathStyle: "auto", checksum: "crc32c", partBytes: defaultPartBytes, parallel: defaultParallel,
	}
	if !regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]$`).MatchString(where.bucket) {
		return where, fmt.Errorf("bucket %q is not 3 to 63 lower-case letters, digits, dots and hyphens", where.bucket)
	}
	if where.prefix != "" {
		if err := CheckKey(where.prefix); err != nil {
			return where, fmt.Errorf("prefix: %w", err)
		}
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return where, fmt.Errorf("its parameters cannot be parsed; write ?name=value&name=value")
	}
	insecureHTTP := false
	for name, values := range query {
		if len(values) != 1 {
			return where, fmt.Errorf("parameter %s is given %d times", name, len(values))
		}
		if err := where.set(name, values[0], &insecureHTTP); err != nil {
			return where, fmt.Errorf("parameter %s: %w", name, err)
		}
	}
	if !where.secure && !insecureHTTP && !isLoopback(where.endpoint) {
		return where, fmt.Errorf("endpoint http://%s is not encrypted; use https://, or add insecure-http=true to accept that", where.endpoint)
	}
	if where.region == "" {
		where.region = defaultRegion(where.endpoint)
	}
	return where, nil
}

// set takes one parameter. No error repeats the value of an unknown one: it may be a secret.
func (s *s3Location) set(name, value string, insecureHTTP *bool) (err error) {
	oneOf := func(allowed ...string) (string, error) {
		for _, a := range allowed {
			if value == a {
				return value, nil
			}
		}
		return "", fmt.Errorf("%q is none of %s", value, strings.Join(allowed, ", "))
	}
	yes := func() (bool, error) { v, err := oneOf("true", "false"); return v == "true", err }
	switch name {
	case "endpoint":
		s.endpoint, s.secure, err = parseEndpoint(value)
	case "region":
		if s.region = value; value == "" {
			err = fmt.Errorf("it is empty; leave it out for the default")
		}
	case "path-style":
		s.pathStyle, err = oneOf("auto", "true", "false")
	case "ca-file":
		if s.caFile = value; !filepath.IsAbs(value) {
			err = fmt.Errorf("%q is not an absolute path", value)
		}
	case "insecure-http":
		*insecureHTTP, err = yes()
	case "insecure-skip-verify":
		s.skipVerify, err = yes()
	case "anonymous":
		s.anonymous, err = yes()
	case "checksum":
		s.checksum, err = oneOf("crc32c", "md5", "none")
	case "part-size-mib":
		s.partBytes, err = atoiWithin(value, minPartBytes>>20, maxPartBytes>>20)
		s.partBytes <<= 20
	case "parallel":
		s.parallel, err = atoiWithin(value, 1, maxParallel)
	default:
		err = fmt.Errorf("unknown; known are endpoint, region, path-style, ca-file, checksum, part-size-mib, parallel, anonymous, insecure-http, insecure-skip-verify")
	}
	return err
}

func parseEndpoint(value string) (host string, secure bool, err error) {
	u, errParse := url.Parse(value)
	switch {
	case errParse != nil || (u.Scheme != "https" && u.Scheme != "http") || u.Host == "":
		return "", false, fmt.Errorf("it must be https://host or https://host:port")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return "", false, fmt.Errorf("it holds more than https://host:port")
	case strings.Trim(u.Path, "/") != "":
		return "", false, fmt.Errorf("it has a path, %s; endpoints have none: the bucket and prefix go into s3://bucket/prefix", u.Path)
	}
	return u.Host, u.Scheme == "https", nil
}

func atoiWithin(value string, low, high int) (int, error) {
	n, err := strconv.Atoi(value)
	if err != nil || n < low || n > high {
		return 0, fmt.Errorf("%q is not a number from %d to %d", value, low, high)
	}
	return n, nil
}

// defaultRegion is what the usual environment says, or the endpoint's own name, or what servers without regions accept.
func defaultRegion(endpoint string) string {
	for _, name := range []string{"AWS_REGION", "AWS_DEFAULT_REGION"} {
		if v := os.Getenv(name); v != "" {
			return v
		}
	}
	if m := regexp.MustCompile(`^s3[.-](?:dualstack\.)?([a-z]{2,}-[a-z-]+-\d)\.amazonaws\.com(?:\.cn)?$`).FindStringSubmatch(endpoint); m != nil {
		return m[1]
	}
	return "us-east-1"
}

func isLoopback(endpoint string) bool {
	host, _, err := net.SplitHostPort(endpoint)
	if err != nil {
		host = endpoint
	}
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// redactURL is the URL without anything that may be secret: user, password, query, fragment.
func redactURL(u *url.URL) string {
	c := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, Opaque: ""}
	return c.String()
}
