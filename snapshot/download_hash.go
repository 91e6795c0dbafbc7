package snapshot

import (
	"crypto/sha256"
	"hash"
	"sync"
)

// sideHash hashes beside its writer: a download has two streams to hash, and decompression besides, while no etcd wants the CPUs. Write copies; so the
// caller's buffer is its own again at once. It holds 1 MiB.
type sideHash struct {
	hash   hash.Hash
	full   chan []byte
	free   chan []byte
	worker sync.WaitGroup
}

const (
	sideHashChunk  = 256 << 10
	sideHashChunks = 4
)

// newSideHash starts the goroutine that ends with sum or stop, one of which must be called.
func newSideHash() *sideHash {
	s := &sideHash{hash: sha256.New(), full: make(chan []byte, sideHashChunks), free: make(chan []byte, sideHashChunks)}
	for range sideHashChunks {
		s.free <- nil
	}
	s.worker.Go(func() {
		for chunk := range s.full {
			s.hash.Write(chunk)
			s.free <- chunk
		}
	})
	return s
}

// Write never fails.
func (s *sideHash) Write(b []byte) (int, error) {
	for rest := b; len(rest) > 0; {
		n := min(len(rest), sideHashChunk)
		s.full <- append((<-s.free)[:0], rest[:n]...)
		rest = rest[n:]
	}
	return len(b), nil
}

// stop ends the goroutine. It may be called again.
func (s *sideHash) stop() {
	if s.full != nil {
		close(s.full)
		s.worker.Wait()
		s.full = nil
	}
}

// sum is the hash of all that was written; nothing may be written afterwards.
func (s *sideHash) sum() []byte {
	s.stop()
	return s.hash.Sum(nil)
}
