package snapshot

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	liveCallTimeout = 10 * time.Second // of one small question to etcd
	liveStall       = 30 * time.Second // without a byte from etcd, while we wait for one
)

// LiveEtcd is how to reach an etcd that serves. The zero value reaches none.
type LiveEtcd struct {
	Endpoint     string      // http://host:port, https://host:port, unix:///path
	TLS          *tls.Config // for https and unixs
	User         string      // with etcd's authentication on: a user with the role root
	PasswordFile string      // read anew at each capture; a final newline is not part of it
}

// LiveIdentity is who answers at an endpoint.
type LiveIdentity struct {
	MemberID, ClusterID HexID
	Version             string // of the server
	Revision            int64  // of a linearizable moment during the call
}

// Identify asks the etcd who it is.
func (e LiveEtcd) Identify(ctx context.Context) (LiveIdentity, error) {
	c, err := e.dial()
	if err != nil {
		return LiveIdentity{}, err
	}
	defer c.Close()
	return e.identify(ctx, c)
}

func (e LiveEtcd) identify(ctx context.Context, c *clientv3.Client) (LiveIdentity, error) {
	ctx, cancel := context.WithTimeout(ctx, liveCallTimeout)
	defer cancel()
	st, err := pb.NewMaintenanceClient(c.ActiveConnection()).Status(ctx, &pb.StatusRequest{})
	if err != nil {
		return LiveIdentity{}, fmt.Errorf("ask etcd at %s for its status: %w", e.Endpoint, err)
	}
	id := LiveIdentity{MemberID: HexID(st.Header.MemberId), ClusterID: HexID(st.Header.ClusterId), Version: st.Version, Revision: st.Header.Revision}
	// The status is the member's own view. What it has not applied yet is not in the snapshot either, unless we wait for it.
	if err := readLinearizable(ctx, c); err != nil {
		return LiveIdentity{}, fmt.Errorf("read from etcd at %s: %w", e.Endpoint, err)
	}
	return id, nil
}

func (e LiveEtcd) dial() (*clientv3.Client, error) {
	password := ""
	if e.User != "" {
		b, err := os.ReadFile(e.PasswordFile)
		if err != nil {
			return nil, fmt.Errorf("password of etcd's user %s: %w", e.User, err)
		}
		password = strings.TrimRight(string(b), "\r\n")
	}
	c, err := dialEtcdAs(e.Endpoint, e.TLS, e.User, password)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// CaptureLive streams a snapshot out of a serving etcd into a generation of the store, with constant memory (and 8 bytes a page) and no temporary file. The
// manifest's revision, raft index and term are those of the very bytes that were stored: they are read off the pages that pass by. The key tells the
// revision of a moment just before the stream began, because a key is chosen before the first byte and the revision is known with the last one; so keys
// still sort as their contents do.
//
// The stream's own SHA-256 is verified. A stream that is cut, altered or silent for 30 s is a *SourceError, and nothing is stored.
func CaptureLive(ctx context.Context, etcd LiveEtcd, store Store, generation uint64, progress func(plain, stored int64)) (Manifest, error) {
	began := time.Now()
	c, err := etcd.dial()
	if err != nil {
		return Manifest{}, err
	}
	defer c.Close()
	id, err := etcd.identify(ctx, c)
	if err != nil {
		return Manifest{}, err
	}
	live := &liveStream{client: c, endpoint: etcd.Endpoint, scan: newPageScan()}
	return Upload(ctx, store, live.copyTo, Manifest{
		Generation: generation, Captured: CapturedLive, Revision: max(1, id.Revision), MemberID: id.MemberID, ClusterID: id.ClusterID,
		EtcdVersion: id.Version, CreatedAt: began,
	}, UploadOptions{Progress: progress, Complete: live.complete})
}

// liveStream is one snapshot stream.
type liveStream struct {
	client   *clientv3.Client
	endpoint string
	scan     *pageScan
	size     int64
}

// copyTo is a Source: it writes the stream to w and checks that it is whole.
func (l *liveStream) copyTo(ctx context.Context, w io.Writer) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := time.AfterFunc(liveStall, func() { cancel(fmt.Errorf("etcd sent nothing for %s", liveStall)) })
	defer silent.Stop()
	stream, err := pb.NewMaintenanceClient(l.client.ActiveConnection()).Snapshot(ctx, &pb.SnapshotRequest{})
	if err != nil {
		return fmt.Errorf("open snapshot stream of etcd at %s: %w", l.endpoint, err)
	}
	tail := &trailerCheck{}
	for {
		silent.Reset(liveStall)
		answer, err := stream.Recv()
		silent.Stop() // a slow store is no fault of etcd's
		if err == io.EOF {
			return tail.verify()
		}
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			}
			return fmt.Errorf("read snapshot stream of etcd at %s: %w", l.endpoint, err)
		}
		_, _ = l.scan.Write(answer.Blob) // never fails
		tail.write(answer.Blob)
		l.size += int64(len(answer.Blob))
		if _, err := w.Write(answer.Blob); err != nil {
			return err
		}
	}
}

// complete fills in what the content tells.
func (l *liveStream) complete(m *Manifest) error {
	content, err := l.scan.result()
	if err != nil {
		return fmt.Errorf("%w: read the revision of the stream: %w", ErrBadSnapshot, err)
	}
	if content.revision < m.Revision {
		return fmt.Errorf("%w: the stream has revision %d; etcd was at %d before it began", ErrBadSnapshot, content.revision, m.Revision)
	}
	m.Revision, m.RaftIndex, m.RaftTerm = content.revision, content.consistentIndex, content.term
	return nil
}

// trailerCheck compares the last 32 bytes of a stream with the SHA-256 of all before them: etcd's Snapshot ends so (server/etcdserver/api/v3rpc/maintenance.go).
type trailerCheck struct {
	held [sha256.Size]byte // the last bytes so far
	n    int64
	sum  hashingWriter
}

func (t *trailerCheck) write(b []byte) {
	if t.sum.hash == nil {
		t.sum = *newHashingWriter()
		t.sum.w = io.Discard
	}
	have := int(min(t.n, sha256.Size))
	t.n += int64(len(b))
	if len(b) >= sha256.Size {
		t.sum.hash.Write(t.held[:have])
		t.sum.hash.Write(b[:len(b)-sha256.Size])
		copy(t.held[:], b[len(b)-sha256.Size:])
		return
	}
	joined := append(append(make([]byte, 0, 2*sha256.Size), t.held[:have]...), b...)
	over := max(0, len(joined)-sha256.Size)
	t.sum.hash.Write(joined[:over])
	copy(t.held[:], joined[over:])
}

func (t *trailerCheck) verify() error {
	if t.n <= sha256.Size {
		return fmt.Errorf("%w: the stream has %d bytes", ErrBadSnapshot, t.n)
	}
	if got := t.sum.hash.Sum(nil); !bytes.Equal(got, t.held[:]) {
		return fmt.Errorf("%w: the stream has SHA-256 %x, its trailer says %x", ErrBadSnapshot, got, t.held)
	}
	return nil
}

// Validate says what is missing.
func (e LiveEtcd) Validate() error {
	switch {
	case e.Endpoint == "":
		return errors.New("no etcd endpoint given")
	case (e.User == "") != (e.PasswordFile == ""):
		return errors.New("etcd's user and its password file belong together")
	}
	_, _, err := splitEndpoint(e.Endpoint)
	return err
}
