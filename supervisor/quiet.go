package supervisor

import (
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/etcd-warden/etcd-warden/snapshot"
)

// etcd saves its database every 100 ms (server/storage/backend, defaultBatchInterval). After three intervals without a
// write to log or database it has nothing left to save, whatever it still waits for: with open watch streams etcd 3.5
// and later linger 7 s after TERM.
const (
	quietFor   = 300 * time.Millisecond
	quietEvery = 20 * time.Millisecond
)

// quiescence returns a channel that is closed once the files of an etcd have not been written to for quietFor, or when
// hurry is closed, and a function that ends the watch. It is a hint for when to KILL, never a proof: the proof is read from the files later.
// A disk that hangs holds up nobody: the channel is just not closed.
func quiescence(d snapshot.DataDirs, exited, hurry <-chan struct{}) (now <-chan struct{}, stop func()) {
	found, ended := make(chan struct{}), make(chan struct{})
	go func() {
		every := time.NewTicker(quietEvery)
		defer every.Stop()
		last, since := lastWrite(d), time.Now()
		for {
			select {
			case <-every.C:
			case <-hurry:
				close(found)
				return
			case <-exited:
				return
			case <-ended:
				return
			}
			if now := lastWrite(d); !now.Equal(last) {
				last, since = now, time.Now()
			}
			if time.Since(since) >= quietFor {
				close(found)
				return
			}
		}
	}()
	return found, sync.OnceFunc(func() { close(ended) })
}

// lastWrite is the newest modification time of the database and of the log's segments.
func lastWrite(d snapshot.DataDirs) time.Time {
	segments, _ := filepath.Glob(filepath.Join(d.Log(), "*.wal")) // the pattern is well-formed
	var newest time.Time
	for _, path := range append(segments, d.DB()) {
		if st, err := os.Stat(path); err == nil && st.ModTime().After(newest) {
			newest = st.ModTime()
		}
	}
	return newest
}
