package snapshot

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
)

const (
	roleTimeout = 2 * time.Second  // of one request to an instance's or container's own address
	stsTimeout  = 10 * time.Second // of one request to the token service
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
}

type credentialSource struct {
	name     string
	provider credentials.Provider
	skip     bool // not configured; for a source that has no way to say so itself
}

// RetrieveWithCredContext implements credentials.Provider.
func (p *s3Provider) RetrieveWithCredContext(cc *credentials.CredContext) (credentials.Value, error) {
	var tried []string
	unreachable := false
	for _, source := range p.sources() {
		if source.skip {
			continue
		}
		value, err := source.provider.RetrieveWithCredContext(cc)
		if err == nil && value.AccessKeyID != "" && value.SecretAccessKey != "" {
			p.current = source.provider
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

// IsExpired implements credentials.Provider.
func (p *s3Provider) IsExpired() bool { return p.current == nil || p.current.IsExpired() }

// sources reads the environment anew, so that what is set there decides which of them count.
func (p *s3Provider) sources() []credentialSource {
	id, secret := os.Getenv("AWS_ACCESS_KEY_ID"), os.Getenv("AWS_SECRET_ACCESS_KEY")
	webIdentity := os.Getenv("AWS_WEB_IDENTITY_TOKEN_FILE") != ""
	container := cmp.Or(os.Getenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"), os.Getenv("AWS_CONTAINER_CREDENTIALS_FULL_URI")) != ""
	noInstance := strings.EqualFold(os.Getenv("AWS_EC2_METADATA_DISABLED"), "true")
	role := &credentials.IAM{Region: p.region, Client: roleClient()}
	name := "instance role"
	if webIdentity {
		role.Client, name = &http.Client{Timeout: stsTimeout}, "web identity"
	} else if container {
		name = "container role"
	}
	return []credentialSource{
		{name: "environment", provider: &credentials.EnvAWS{}, skip: id == "" && secret == ""},
		{name: "shared files", provider: &credentials.FileAWSCredentials{}},
		{name: name, provider: role, skip: noInstance && !webIdentity && !container},
	}
}

// roleClient asks addresses that are on this machine or nowhere: no proxy, and an answer at once or never.
func roleClient() *http.Client {
	return &http.Client{Timeout: roleTimeout, Transport: &http.Transport{
		DialContext:       (&net.Dialer{Timeout: roleTimeout}).DialContext,
		DisableKeepAlives: true,
	}}
}
