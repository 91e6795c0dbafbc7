// Package storetest holds what tests of stores, and tests and demonstrations that need one, have in common: the contract suite that every store passes, a store
// in memory with faults to inject, a small S3 server in the process, a proxy that misbehaves on demand, and a start of a real S3 server.
package storetest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/etcd-warden/etcd-warden/snapshot"
)

// MemoryFault decides what goes wrong with one call of a Memory store. Op is put, get, stat, list, delete, sweep or probe. A before error is returned and nothing is
// done; an after error is returned although everything was done, as when an answer is lost.
type MemoryFault func(op, key string) (before, after error)

// Memory is a snapshot.Store in memory. It is safe for concurrent use. The zero value is not ready; call NewMemory.
type Memory struct {
	mu      sync.Mutex // guards what follows
	objects map[string]memoryObject
	fault   MemoryFault
	writes  int
}

type memoryObject struct {
	snapshot.Object
	data []byte
}

var _ snapshot.Store = (*Memory)(nil)

// NewMemory returns an empty store without faults.
func NewMemory() *Memory { return &Memory{objects: make(map[string]memoryObject)} }

// Inject makes every later call ask f first. Nil ends the faults.
func (m *Memory) Inject(f MemoryFault) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fault = f
}

// Corrupt changes an object's bytes behind the store's back, keeping its ETag.
func (m *Memory) Corrupt(key string, change func(data []byte) []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	object, ok := m.objects[key]
	if !ok {
		panic("storetest: no object " + key)
	}
	object.data = change(bytes.Clone(object.data))
	object.SizeBytes = int64(len(object.data))
	m.objects[key] = object
}

// Keys returns all keys, sorted.
func (m *Memory) Keys() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.objects))
}

// Writes counts the objects that were ever stored.
func (m *Memory) Writes() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.writes
}

func (m *Memory) String() string { return "memory" }

// do runs f, under the lock, between the faults of a call.
func (m *Memory) do(ctx context.Context, op, key string, f func() error) error {
	m.mu.Lock()
	fault := m.fault
	m.mu.Unlock()
	var before, after error
	if fault != nil {
		before, after = fault(op, key) // without the lock: it may wait for something
	}
	err := context.Cause(ctx)
	if err == nil {
		err = before
	}
	if err == nil && op != "list" && op != "sweep" && op != "probe" {
		err = snapshot.CheckKey(key)
	}
	if err == nil {
		m.mu.Lock()
		err = f()
		m.mu.Unlock()
	}
	if err == nil {
		err = after
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", op, key, err)
	}
	return nil
}

// Put implements snapshot.Store.
func (m *Memory) Put(ctx context.Context, key string, r io.Reader, opt snapshot.PutOptions) (snapshot.Object, error) {
	object, err := m.put(ctx, key, r, opt)
	if err != nil {
		if closer, ok := r.(io.Closer); ok {
			_ = closer.Close()
		}
		return snapshot.Object{}, err
	}
	return object, nil
}

func (m *Memory) put(ctx context.Context, key string, r io.Reader, opt snapshot.PutOptions) (stored snapshot.Object, err error) {
	if err := snapshot.CheckKey(key); err != nil {
		return stored, err
	}
	data, err := readAll(ctx, r)
	if err != nil {
		return stored, fmt.Errorf("put %s: %w", key, err)
	}
	if opt.Size > 0 && int64(len(data)) != opt.Size {
		return stored, fmt.Errorf("put %s: %w", key, &snapshot.SourceError{Err: fmt.Errorf("it holds %d bytes, %d were announced", len(data), opt.Size)})
	}
	err = m.do(ctx, "put", key, func() error {
		if _, ok := m.objects[key]; ok && opt.IfAbsent {
			return snapshot.ErrExists
		}
		stored = snapshot.Object{
			Key: key, SizeBytes: int64(len(data)), ModTime: time.Now(), ETag: fmt.Sprintf("%x", sha256.Sum256(data)), Metadata: maps.Clone(opt.Metadata),
		}
		m.objects[key] = memoryObject{Object: stored, data: data}
		m.writes++
		return nil
	})
	return stored, err
}

// readAll reads r to its end, or returns at once when ctx ends.
func readAll(ctx context.Context, r io.Reader) ([]byte, error) {
	type result struct {
		data []byte
		err  error
	}
	done := make(chan result, 1)
	go func() {
		data, err := io.ReadAll(r)
		done <- result{data, err}
	}()
	select {
	case got := <-done:
		if got.err != nil && !errors.As(got.err, new(*snapshot.SourceError)) {
			got.err = &snapshot.SourceError{Err: got.err}
		}
		return got.data, got.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Get implements snapshot.Store.
func (m *Memory) Get(ctx context.Context, key string, offset int64) (body io.ReadCloser, found snapshot.Object, err error) {
	err = m.do(ctx, "get", key, func() error {
		object, ok := m.objects[key]
		if !ok {
			return snapshot.ErrNotFound
		}
		if offset < 0 || offset > object.SizeBytes {
			return fmt.Errorf("%w: offset %d of %d bytes", snapshot.ErrInvalid, offset, object.SizeBytes)
		}
		found, body = object.Object, io.NopCloser(bytes.NewReader(object.data[offset:]))
		return nil
	})
	if err != nil {
		return nil, snapshot.Object{}, err
	}
	return body, found, nil
}

// Stat implements snapshot.Store.
func (m *Memory) Stat(ctx context.Context, key string) (found snapshot.Object, err error) {
	err = m.do(ctx, "stat", key, func() error {
		object, ok := m.objects[key]
		if !ok {
			return snapshot.ErrNotFound
		}
		found = object.Object
		return nil
	})
	return found, err
}

// List implements snapshot.Store.
func (m *Memory) List(ctx context.Context, prefix string) iter.Seq2[snapshot.Object, error] {
	return func(yield func(snapshot.Object, error) bool) {
		var found []snapshot.Object
		err := m.do(ctx, "list", prefix, func() error {
			for _, key := range slices.Sorted(maps.Keys(m.objects)) {
				if strings.HasPrefix(key, prefix) {
					object := m.objects[key].Object
					object.Metadata = nil
					found = append(found, object)
				}
			}
			return nil
		})
		for _, object := range found {
			if !yield(object, nil) {
				return
			}
		}
		if err != nil {
			yield(snapshot.Object{}, err)
		}
	}
}

// Delete implements snapshot.Store.
func (m *Memory) Delete(ctx context.Context, key string) error {
	return m.do(ctx, "delete", key, func() error {
		delete(m.objects, key)
		return nil
	})
}

// SweepUploads implements snapshot.Store. There is never anything to sweep.
func (m *Memory) SweepUploads(ctx context.Context, _ string, _ time.Duration) (int, error) {
	return 0, m.do(ctx, "sweep", "", func() error { return nil })
}

// Probe implements snapshot.Store.
func (m *Memory) Probe(ctx context.Context) (snapshot.Capabilities, error) {
	err := m.do(ctx, "probe", "", func() error { return nil })
	if err != nil {
		return snapshot.Capabilities{}, err
	}
	return snapshot.Capabilities{IfAbsent: true, IfAbsentMultipart: true, Deletes: true}, nil
}
