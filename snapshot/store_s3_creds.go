package snapshot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
)

// How long a source of credentials may take, all of its requests together.
const (
	roleTimeout = 2500 * time.Millisecond // an instance's or container's own address: it answers at once or is not there
	stsTimeout  = 10 * time.Second        // the token service
	fileTimeout = 30 * time.Second        // shared files: a credential_process may log in somewhere
)

// newS3Credentials prefers what the caller gave, then what the environment, the shared files, and the machine's role say. It never falls back to unsigned
// requests, as the library's own chain does: those must be asked for.
func newS3Credentials(where s3Location, static *Credentials) *credentials.Credentials {
	switch {
	case where.anonymous:
		return credentials.NewStatic("", "", "", credentials.SignatureAnonymous)
	case static != nil:
		return credentials.NewStaticV4(static.AccessKeyID, static.SecretAccessKey, static.SessionToken)
	}
	return credentials.New(&s3Provider{region: where.region})
}

// s3Provider asks its sources in order and stays with the one that had credentials until they expire. The library serialises its calls.
type s3Provider struct {
	region  string
	current credentials.Provider
	files   string // what the shared files looked like, when they are the current source
}

type credentialSource struct {
	name     string
	provider credentials.Provider
	timeout  time.Duration
	files    bool
	skip     bool // not configured; for a source that has no way to say so itself
}

// errSlowCredentials is what a source is told, and what is told of it, when its time is over. It is a net.Error: later may be better.
type errSlowCredentials struct{ after time.Duration }

func (e errSlowCredentials) Error() string   { return fmt.Sprintf("no answer within %s", e.after) }
func (e errSlowCredentials) Timeout() bool   { return true }
func (e errSlowCredentials) Temporary() bool { return true }

// ask bounds a source, whose own requests have a time-out each at best, and whose credential_process has none. What it still does after that is left
// to it; its answer is not used.
func (s credentialSource) ask(cc *credentials.CredContext) (credentials.Value, error) {
	var own credentials.CredContext
	if cc != nil {
		own = *cc
	}
	parent := own.Context
	if parent == nil {
		parent = context.Background()
	}
	ctx, cancel := context.WithTimeoutCause(parent, s.timeout, errSlowCredentials{s.timeout})
	defer cancel()
	own.Context = ctx
	type answer struct {
		value credentials.Value
		err   error
	}
	done := make(chan answer, 1)
	go func() {
		value, err := s.provider.RetrieveWithCredContext(&own)
		done <- answer{value, err}
	}()
	select {
	case a := <-done:
		if a.err != nil && ctx.Err() != nil {
			a.err = context.Cause(ctx)
		}
		return a.value, a.err
	case <-ctx.Done():
		return credentials.Value{}, context.Cause(ctx)
	}
}

// RetrieveWithCredContext implements credentials.Provider.
func (p *s3Provider) RetrieveWithCredContext(cc *credentials.CredContext) (credentials.Value, error) {
	var tried []string
	unreachable := false
	for _, source := range p.sources() {
		if source.skip {
			continue
		}
		files := ""
		if source.files {
			files = sharedFiles() // before they are read
		}
		value, err := source.ask(cc)
		if err == nil && value.AccessKeyID != "" && value.SecretAccessKey != "" {
			p.current, p.files = source.provider, files
			return value, nil
		}
		var netErr net.Error
		switch {
		case err == nil:
			tried = append(tried, source.name+": none")
		case errors.Is(err, fs.ErrNotExist):
			tried = append(tried, source.name+": not there")
		case errors.As(err, &netErr):
			unreachable = true
			tried = append(tried, fmt.Sprintf("%s: %v", source.name, netErr))
		default:
			tried = append(tried, fmt.Sprintf("%s: %v", source.name, err))
		}
	}
	return credentials.Value{}, &StoreError{
		Kind: ErrDenied, Code: "no credentials", Retry: unreachable, Err: errors.New(strings.Join(tried, "; ")),
		Hint: "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or add anonymous=true for unsigned requests",
	}
}

// Retrieve implements credentials.Provider.
func (p *s3Provider) Retrieve() (credentials.Value, error) { return p.RetrieveWithCredContext(nil) }

// IsExpired implements credentials.Provider. Shared files that changed are read anew: whoever rotates a key by writing it there does not restart us.
func (p *s3Provider) IsExpired() bool {
	return p.current == nil || p.current.IsExpired() || p.files != "" && p.files != sharedFiles()
}

// sharedFiles tells one state of the shared files from another.
func sharedFiles() string {
	home, _ := os.UserHomeDir() // without a home only the variables count
	state := "files"
	for _, file := range []struct{ variable, name string }{{"AWS_CONFIG_FILE", "config"}, {"AWS_SHARED_CREDENTIALS_FILE", "credentials"}} {
		if info, err := os.Stat(cmp.Or(os.Getenv(file.variable), filepath.Join(home, ".aws", file.name))); err == nil {
			state += fmt.Sprintf(" %s %d %d", file.name, info.ModTime().UnixNano(), info.Size())
		}
	}
	return state
}

// sources reads the environment anew, so that what is set there decides which of them count.
func (p *s3Provider) sources() []credentialSource {
	id, secret := os.Getenv("AWS_ACCESS_KEY_ID"), os.Getenv("AWS_SECRET_ACCESS_KEY")
	webIdentity := os.Getenv("AWS_WEB_IDENTITY_TOKEN_FILE") != ""
	container := cmp.Or(os.Getenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"), os.Getenv("AWS_CONTAINER_CREDENTIALS_FULL_URI")) != ""
	noInstance := strings.EqualFold(os.Getenv("AWS_EC2_METADATA_DISABLED"), "true")
	role := &credentials.IAM{Region: p.region, Client: roleClient()}
	name, timeout := "instance role", roleTimeout
	switch {
	case webIdentity:
		role.Client, name, timeout = &http.Client{}, "web identity", stsTimeout
		role.Endpoint = os.Getenv("AWS_ENDPOINT_URL_STS") // where there is no way to the public one
	case container:
		name = "container role"
	default:
		role.Endpoint = os.Getenv("AWS_EC2_METADATA_SERVICE_ENDPOINT")
	}
	return []credentialSource{
		{name: "environment", provider: &credentials.EnvAWS{}, timeout: roleTimeout, skip: id == "" && secret == ""},
		{name: "shared files", provider: &credentials.FileAWSCredentials{}, timeout: fileTimeout, files: true},
		{name: name, provider: role, timeout: timeout, skip: noInstance && !webIdentity && !container},
	}
}

// roleClient asks addresses that are on this machine or nowhere: no proxy, and an answer at once or never.
func roleClient() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
}
