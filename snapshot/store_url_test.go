package snapshot_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/etcd-warden/etcd-warden/snapshot"
)

func TestGoodURLsAreTaken(t *testing.T) {
	dir := t.TempDir()
	for url, want := range map[string]string{
		"file://" + dir:                     "file://" + dir,
		"file://" + dir + "/":               "file://" + dir,
		"s3://bucket":                       "s3://bucket",
		"s3://bucket/":                      "s3://bucket",
		"s3://bucket/some/prefix/":          "s3://bucket/some/prefix",
		"s3://bucket/p?region=eu-central-1": "s3://bucket/p",
		"s3://b.u-cket/p?endpoint=https://host:9000&path-style=true&checksum=md5&part-size-mib=16&parallel=2": "s3://b.u-cket/p",
		"s3://bucket/p?endpoint=http://127.0.0.1:9000":                                                        "s3://bucket/p",
		"s3://bucket/p?endpoint=http://[::1]:9000":                                                            "s3://bucket/p",
		"s3://bucket/p?endpoint=http://host:9000&insecure-http=true":                                          "s3://bucket/p",
		"s3://bucket/p?endpoint=https://host/&insecure-skip-verify=true":                                      "s3://bucket/p",
		"s3://bucket/p?endpoint=https://storage.googleapis.com&region=auto":                                   "s3://bucket/p",
	} {
		if got := openStore(t, url, testOptions()).String(); got != want {
			t.Errorf("%s: got %s, want %s", url, got, want)
		}
	}
}

// One line: what is wrong, where, what to do; and nothing secret.
func TestBadURLsAreExplained(t *testing.T) {
	for _, tt := range []struct{ url, want string }{
		{"", "file:///directory"},
		{"/var/backups", "file:///var/backups"},
		{"var/backups", "no scheme"},
		{"file://var/backups", "three slashes"},
		{"file:var/backups", "must be absolute"},
		{"file:///", "root directory"},
		{"file:///var?x=hunter2", "no parameters"},
		{"file:///etc/passwd", "not a directory"},
		{"mem://", `"mem" is not supported`},
		{"gs://bucket", "endpoint="},
		{"s3://", "bucket"},
		{"s3://Bucket/p", "lower-case"},
		{"s3://bucket/../p", "dot"},
		{"s3://bucket//p", ""},
		{"s3://key:hunter2@bucket/p", "AWS_ACCESS_KEY_ID"},
		{"s3://key:hunter2@bucket/%zz", "cannot be parsed"},
		{"s3://bucket/p#hunter2", "%23"},
		{"s3://bucket/p?secret=hunter2", "secret: unknown"},
		{"s3://bucket/p?region=a&region=b", "2 times"},
		{"s3://bucket/p?region=", "leave it out"},
		{"s3://bucket/p?endpoint=host:9000", "https://host:port"},
		{"s3://bucket/p?endpoint=https://host/bucket", "has a path"},
		{"s3://bucket/p?endpoint=https://user:hunter2@host", "more than"},
		{"s3://bucket/p?endpoint=http://host:9000", "insecure-http=true"},
		{"s3://bucket/p?path-style=yes", "auto, true, false"},
		{"s3://bucket/p?insecure-skip-verify=1", "true, false"},
		{"s3://bucket/p?checksum=sha1", "crc32c, md5, none"},
		{"s3://bucket/p?part-size-mib=4", "from 5 to"},
		{"s3://bucket/p?parallel=many", "from 1 to"},
		{"s3://bucket/p?ca-file=ca.pem", "absolute"},
		{"s3://bucket/p?ca-file=/absent.pem", "absent.pem"},
		{"s3://bucket/p?ca-file=/etc/passwd", "no PEM"},
	} {
		_, err := snapshot.OpenStore(t.Context(), tt.url, testOptions())
		if tt.want == "" {
			continue // only must not panic
		}
		if err == nil || !errors.Is(err, snapshot.ErrInvalid) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got error %v, want one with %q", tt.url, err, tt.want)
			continue
		}
		if strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: the error has a secret or more than one line: %v", tt.url, err)
		}
	}
}
