package supervisor

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// ClientEndpoint is where the warden, on the same machine, reaches the etcd as a client: the first client listener, with
// a wildcard address replaced by the loopback's. tlsConfig is nil for a plain listener; otherwise it accepts exactly the
// certificate that etcd was configured with, read anew at each handshake as etcd does, and shows that pair where etcd
// asks for one.
func (c EtcdConfig) ClientEndpoint() (endpoint string, tlsConfig *tls.Config, err error) {
	if len(c.ListenClientURLs) == 0 {
		return "", nil, errors.New("etcd has no client listener")
	}
	u, err := url.Parse(c.ListenClientURLs[0])
	if err != nil {
		return "", nil, fmt.Errorf("etcd setting listen-client-urls: %w", err)
	}
	switch u.Scheme {
	case "unix", "unixs":
		path, err := filepath.Abs(strings.TrimPrefix(c.ListenClientURLs[0], u.Scheme+"://"))
		if err != nil {
			return "", nil, fmt.Errorf("etcd setting listen-client-urls: %w", err)
		}
		endpoint = u.Scheme + "://" + path
	case "http", "https":
		host := u.Hostname()
		if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
			host = "127.0.0.1"
			if ip.To4() == nil {
				host = "::1"
			}
		}
		endpoint = u.Scheme + "://" + net.JoinHostPort(host, u.Port())
	default:
		return "", nil, fmt.Errorf("etcd setting listen-client-urls: %s has no scheme of http, https, unix or unixs", c.ListenClientURLs[0])
	}
	if u.Scheme == "https" || u.Scheme == "unixs" {
		tlsConfig = c.clientTLSConfig()
	}
	return endpoint, tlsConfig, nil
}

func (c EtcdConfig) clientTLSConfig() *tls.Config {
	server, cert, key := c.ClientTLS.CertFile, c.ClientTLS.ClientCertFile, c.ClientTLS.ClientKeyFile
	if server == "" { // auto-tls; server/embed/config.go, ClientSelfCert
		server = filepath.Join(c.DataDir, "fixtures", "client", "cert.pem")
	}
	if cert == "" {
		cert, key = c.ClientTLS.CertFile, c.ClientTLS.KeyFile
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		// The name and the authority do not matter: the very certificate is compared.
		InsecureSkipVerify: true,
		VerifyConnection:   func(s tls.ConnectionState) error { return verifyPinned(server, s.PeerCertificates) },
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			if cert == "" {
				return &tls.Certificate{}, nil
			}
			pair, err := tls.LoadX509KeyPair(cert, key)
			return &pair, err
		},
	}
}

// verifyPinned accepts the certificate whose PEM is first in the file.
func verifyPinned(file string, shown []*x509.Certificate) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("etcd's certificate: %w", err)
	}
	block, _ := pem.Decode(b)
	if block == nil || len(shown) == 0 || !bytes.Equal(block.Bytes, shown[0].Raw) {
		return fmt.Errorf("the server does not show the certificate in %s: it is not our etcd, or has not reloaded it", file)
	}
	return nil
}
