package supervisor

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrDirInUse is returned by OpenStateDir when another warden holds the data directory.
var ErrDirInUse = errors.New("data directory is in use by another etcd-warden")

// StateDir is the warden's own directory for one etcd data directory: the lock that makes sure there is one warden for
// it, the instance nonce and the marker of an unfinished handover. It lies beside the data directory
// (`/var/lib/etcd.warden`), or inside it (`/var/lib/etcd/.warden`) when the data directory is a mount point, where
// "beside" would be another, perhaps short-lived, file system.
type StateDir struct {
	path     string
	lock     *os.File
	instance string
}

// OpenStateDir creates the directory where needed (0700), takes the lock and reads or makes the instance nonce. The lock
// ends with the process, however it ends. The error wraps ErrDirInUse when another warden holds it.
func OpenStateDir(dataDir string) (*StateDir, error) {
	path := stateDirPath(dataDir)
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("create the warden's directory for %s: %w", dataDir, err)
	}
	lock, err := lockFile(filepath.Join(path, "lock"))
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", dataDir, err)
	}
	d := &StateDir{path: path, lock: lock}
	d.removeLeftovers()
	if d.instance, err = d.readInstance(); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return d, nil
}

// removeLeftovers removes what a warden that was killed in mid-write left behind. Only the holder of the lock may.
func (d *StateDir) removeLeftovers() {
	for _, pattern := range []string{".*.tmp", fencedDirPrefix + "*"} {
		left, _ := filepath.Glob(filepath.Join(d.path, pattern)) // the patterns are constant and well-formed
		for _, path := range left {
			os.RemoveAll(path) // a leftover that cannot be removed does no harm
		}
	}
}

// Path is the directory itself.
func (d *StateDir) Path() string { return d.path }

// Instance is the nonce that tells this installation from any other with the same owner id: 32 hex digits, made once.
func (d *StateDir) Instance() string { return d.instance }

// Close gives the lock up.
func (d *StateDir) Close() error { return d.lock.Close() }

func (d *StateDir) readInstance() (string, error) {
	file := filepath.Join(d.path, "instance")
	b, err := os.ReadFile(file)
	switch {
	case err == nil:
		if id := strings.TrimSpace(string(b)); len(id) == 32 {
			return id, nil
		}
		return "", fmt.Errorf("instance file %s is damaged: it must hold 32 hex digits; remove it only if no handover of this directory is unfinished", file)
	case !errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("read instance: %w", err)
	}
	var nonce [16]byte
	rand.Read(nonce[:])
	id := hex.EncodeToString(nonce[:])
	if err := writeFileDurably(file, []byte(id+"\n")); err != nil {
		return "", fmt.Errorf("write instance: %w", err)
	}
	return id, nil
}

// stateDirPath places the warden's directory beside the data directory, or inside where that is a mount point.
func stateDirPath(dataDir string) string {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, dataDir, 0, unix.STATX_TYPE, &st); err == nil && st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0 {
		return filepath.Join(dataDir, ".warden")
	}
	return filepath.Clean(dataDir) + ".warden"
}

func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	readOnly := errors.Is(err, unix.EROFS)
	if readOnly { // a disk that takes nothing any more still owes its final snapshot; a lock needs no writing
		f, err = os.Open(path)
	}
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		holder, _ := os.ReadFile(path)
		f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, err
		}
		return nil, fmt.Errorf("%w (pid %s)", ErrDirInUse, strings.TrimSpace(string(holder)))
	}
	if readOnly {
		return f, nil
	}
	// Who holds it is for people only; the lock is the kernel's.
	if err := errors.Join(f.Truncate(0), writeAt(f, fmt.Sprintf("%d\n", os.Getpid()))); err != nil && !errors.Is(err, unix.ENOSPC) {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func writeAt(f *os.File, s string) error { _, err := f.WriteAt([]byte(s), 0); return err }

// writeFileDurably replaces path by content: a reader, also one after a power cut, sees the old file or the new one.
func writeFileDurably(path string, content []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*.tmp")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // a no-op after the rename
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
