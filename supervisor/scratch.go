package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/etcd-warden/etcd-warden/snapshot"
)

// fencedRoom is what an etcd needs on its disk to start and to end: two segments of its log, reserved at once, and the
// growth of its database.
const fencedRoom = 192 << 20

// diskTrouble says why an etcd cannot work on the disk of a directory; nil where it can.
func diskTrouble(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("file system of %s: %w", dir, err)
	}
	switch {
	case st.Flags&unix.ST_RDONLY != 0:
		return fmt.Errorf("the file system of %s is read-only", dir)
	case st.Bavail*uint64(st.Bsize) < fencedRoom:
		return fmt.Errorf("the file system of %s has %d MB left, etcd needs %d", dir, st.Bavail*uint64(st.Bsize)>>20, fencedRoom>>20)
	}
	return nil
}

// scratchPrefix begins the names of our directories in the place for temporary files. It holds the instance, so that the
// next life of this warden knows what a crash left behind, and nobody else's is touched.
func (s *Supervisor) scratchPrefix() string { return "etcd-warden-" + s.state.Instance() + "-" }

// copyToScratch copies the files of a dead etcd to where there is room for it to run. The copy is private, and removed by
// the function returned.
func (s *Supervisor) copyToScratch(ctx context.Context) (EtcdConfig, func() error, error) {
	left, _ := filepath.Glob(filepath.Join(os.TempDir(), s.scratchPrefix()+"*")) // the pattern is well-formed
	for _, path := range left {
		os.RemoveAll(path) // what cannot be removed shows in the next step
	}
	dir, err := os.MkdirTemp("", s.scratchPrefix()) // 0700
	if err != nil {
		return EtcdConfig{}, nil, err
	}
	remove := func() error { return os.RemoveAll(dir) }
	cfg := *s.cfg.Etcd
	cfg.DataDir, cfg.WALDir = filepath.Join(dir, "data"), ""
	if err = diskTrouble(dir); err == nil {
		err = copyTree(ctx, filepath.Join(s.cfg.Etcd.DataDir, "member"), filepath.Join(cfg.DataDir, "member"))
	}
	if err == nil && s.cfg.Etcd.WALDir != "" {
		err = copyTree(ctx, s.cfg.Etcd.WALDir, filepath.Join(cfg.DataDir, "member", "wal"))
	}
	if err != nil {
		return EtcdConfig{}, nil, errors.Join(err, remove())
	}
	return cfg, remove, nil
}

// copyTree copies regular files. Preallocated files of etcd (*.tmp) hold nothing and are left out.
func copyTree(ctx context.Context, from, to string) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		below, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, below)
		switch {
		case entry.IsDir():
			return os.MkdirAll(target, 0o700)
		case !entry.Type().IsRegular(), filepath.Ext(path) == ".tmp":
			return nil
		}
		return copyFile(path, target)
	})
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close() // read only: nothing can be lost
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// socketDir is a directory for the sockets of a fenced etcd: beside the data or, on a disk that takes nothing, among the
// temporary files.
func (s *Supervisor) socketDir() (string, error) {
	dir, err := os.MkdirTemp(s.state.Path(), fencedDirPrefix) // 0700
	if err != nil {
		if dir, err = os.MkdirTemp("", s.scratchPrefix()+fencedDirPrefix); err != nil {
			return "", fmt.Errorf("make a directory for the fenced restart: %w", err)
		}
	}
	return dir, nil
}

// dirsOf is where an etcd of this configuration keeps its files.
func dirsOf(cfg EtcdConfig) snapshot.DataDirs {
	return snapshot.DataDirs{Data: cfg.DataDir, WAL: cfg.WALDir}
}
