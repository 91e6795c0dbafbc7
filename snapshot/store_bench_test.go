package snapshot_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"testing"

	"github.com/etcd-warden/etcd-warden/snapshot"
	"github.com/etcd-warden/etcd-warden/snapshot/storetest"
)

// repeat is an endless stream of a block that does not compress.
type repeat struct {
	block []byte
	at    int
}

func (r *repeat) Read(b []byte) (int, error) {
	n := copy(b, r.block[r.at:])
	r.at = (r.at + n) % len(r.block)
	return n, nil
}

// stream repeats little, so that the memory that a benchmark needs is the store's.
func stream(size int64) io.Reader {
	return io.LimitReader(&repeat{block: storetest.Bytes(1 << 20)}, size)
}

func BenchmarkPutToVersityGW(b *testing.B) {
	gw := storetest.StartS3(b)
	store, err := snapshot.OpenStore(b.Context(), gw.StoreURL("test", "bench"), snapshot.OpenOptions{Credentials: &gw.Credentials})
	if err != nil {
		b.Fatal(err)
	}
	const size = 512 << 20
	b.SetBytes(size)
	for i := 0; b.Loop(); i++ {
		if _, err := store.Put(b.Context(), fmt.Sprint("o", i%2), stream(size), snapshot.PutOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}

// sink is a store that takes everything and keeps the size.
type sink struct {
	snapshot.Store
	size map[string]int64
}

func (s *sink) Put(_ context.Context, key string, r io.Reader, _ snapshot.PutOptions) (snapshot.Object, error) {
	n, err := io.Copy(io.Discard, r)
	s.size[key] = n
	return snapshot.Object{Key: key, SizeBytes: n}, err
}

func (s *sink) Stat(_ context.Context, key string) (snapshot.Object, error) {
	return snapshot.Object{Key: key, SizeBytes: s.size[key]}, nil
}

func BenchmarkUploadPipeline(b *testing.B) {
	const size = 256 << 20
	text := bytes.Repeat([]byte("/registry/pods/default/x-0123456789 "), 1<<15)
	block := append(storetest.Bytes(len(text)/3), text...)
	b.SetBytes(size)
	for b.Loop() {
		src := snapshot.ReaderSource(io.LimitReader(&repeat{block: block}, size))
		m := snapshot.Manifest{Generation: 1, Revision: 1, Captured: snapshot.CapturedOffline}
		if _, err := snapshot.Upload(b.Context(), &sink{size: map[string]int64{}}, src, m, snapshot.UploadOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}
