package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	scratchMark  = ".restoring-" // "<.name><mark><random>": our scratch directories, removed at the next restore
	replacedMark = ".replaced-"  // "<name><mark><UTC time>": what a restore replaced, for the operator to remove
	memberDir    = "member"
)

// target is where a restored directory goes. It is exchanged as a whole, or, where it is a mount point or its parent
// may not be written to, in its entry "member", which is all that etcd keeps there.
type target struct {
	dir     string // absolute, symbolic links resolved
	inside  bool   // exchange dir/member instead of dir
	exists  bool   // what is exchanged exists, maybe empty
	scratch string // on the same file system as what is exchanged
	owner   *syscall.Stat_t
}

// openTarget judges the target and makes the scratch directory. It changes nothing in the target besides.
func openTarget(ctx context.Context, dir string, force bool) (*target, error) {
	t, err := findTarget(dir)
	if err != nil {
		return nil, err
	}
	used, err := t.used()
	if err != nil {
		return nil, err
	}
	if len(used) > 0 && !force {
		return nil, fmt.Errorf("%w: it holds %s; use --force-rename to rename what is there", ErrTargetNotEmpty, strings.Join(used[:min(3, len(used))], ", "))
	}
	if err := t.checkUnused(ctx); err != nil {
		return nil, err
	}
	return t, t.makeScratch()
}

// findTarget resolves the path; it need not exist, but its parent must.
func findTarget(dir string) (*target, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	real, err := filepath.EvalSymlinks(abs)
	if errors.Is(err, fs.ErrNotExist) {
		parent, err := filepath.EvalSymlinks(filepath.Dir(abs))
		if err != nil {
			return nil, fmt.Errorf("the directory to create it in: %w", err)
		}
		if _, err := os.Lstat(abs); err == nil {
			return nil, errors.New("it is a symbolic link to nowhere")
		}
		return &target{dir: filepath.Join(parent, filepath.Base(abs))}, nil
	}
	if err != nil {
		return nil, err
	}
	st, err := os.Stat(real)
	if err != nil {
		return nil, err
	}
	if !st.IsDir() {
		return nil, errors.New("it is not a directory")
	}
	t := &target{dir: real, exists: true}
	t.owner, _ = st.Sys().(*syscall.Stat_t)
	if t.inside, err = isMountPoint(real); err != nil {
		return nil, err
	}
	return t, nil
}

// used lists what a restore would put aside. Traces of earlier restores and of file systems do not count.
func (t *target) used() ([]string, error) {
	if !t.exists {
		return nil, nil
	}
	entries, err := os.ReadDir(t.dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		switch name := e.Name(); {
		case name == "lost+found", strings.HasPrefix(name, "."+memberDir+scratchMark), strings.HasPrefix(name, memberDir+replacedMark):
		case t.inside && strings.HasPrefix(name, "."): // the warden's own directory, a volume's bookkeeping
		default:
			names = append(names, name)
		}
	}
	return names, nil
}

// checkUnused makes sure that no etcd runs on the directory that is about to be renamed.
func (t *target) checkUnused(ctx context.Context) error {
	f, err := os.Open(DataDirs{Data: t.dir}.DB())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close() // releases the lock
	return lockShared(ctx, f, time.Second)
}

// makeScratch removes the leftovers of crashed restores and makes a new scratch directory, beside the target where that
// is possible.
func (t *target) makeScratch() error {
	if !t.inside {
		err := t.makeScratchIn(filepath.Dir(t.dir), "."+filepath.Base(t.dir)+scratchMark)
		denied := errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS)
		if err == nil || !denied || !t.exists {
			return err
		}
		t.inside = true
	}
	return t.makeScratchIn(t.dir, "."+memberDir+scratchMark)
}

func (t *target) makeScratchIn(dir, prefix string) (err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("look for leftovers of an earlier restore: %w", err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) {
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return fmt.Errorf("remove what an earlier restore left: %w", err)
			}
		}
	}
	if t.scratch, err = os.MkdirTemp(dir, prefix+"*"); err != nil { // mode 0700
		return fmt.Errorf("create scratch directory: %w", err)
	}
	return nil
}

func (t *target) removeScratch() error { return os.RemoveAll(t.scratch) }

// finish gives the new files the owner of the old directory, so that an etcd of another user can read them, and makes
// them durable.
func (t *target) finish(built string) error {
	err := filepath.WalkDir(built, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if t.owner != nil && os.Geteuid() == 0 {
			if err := os.Lchown(path, int(t.owner.Uid), int(t.owner.Gid)); err != nil {
				return err
			}
		}
		if !d.IsDir() {
			return syncPath(path)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("finish the restored files: %w", err)
	}
	// Directories after what they hold.
	return filepath.WalkDir(built, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			err = syncPath(path)
		}
		return err
	})
}

// exchange renames the old directory away and the new one into its place, durably. It returns the old one's new path.
func (t *target) exchange(built string, now time.Time) (replaced string, err error) {
	place := t.dir
	if t.inside {
		place, built = filepath.Join(t.dir, memberDir), filepath.Join(built, memberDir)
	}
	if empty, err := removeEmpty(place); err != nil {
		return "", err
	} else if !empty {
		replaced = place + replacedMark + now.UTC().Format("20060102T150405.000000000Z")
		if err := os.Rename(place, replaced); err != nil {
			return "", fmt.Errorf("put the old directory aside: %w", err)
		}
	}
	if err := os.Rename(built, place); err != nil {
		err = fmt.Errorf("put the restored directory in place: %w", err)
		if replaced != "" {
			err = errors.Join(err, os.Rename(replaced, place))
		}
		return "", err
	}
	if err := syncPath(filepath.Dir(place)); err != nil {
		return replaced, fmt.Errorf("make the exchange durable: %w", err)
	}
	return replaced, nil
}

// removeEmpty makes way where there is nothing to keep: no such directory, or an empty one.
func removeEmpty(dir string) (bool, error) {
	err := os.Remove(dir)
	switch {
	case err == nil, errors.Is(err, fs.ErrNotExist):
		return true, nil
	case errors.Is(err, syscall.ENOTEMPTY), errors.Is(err, syscall.EEXIST), errors.Is(err, syscall.ENOTDIR):
		return false, nil
	}
	return false, fmt.Errorf("make way for the restored directory: %w", err)
}

func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// isMountPoint looks the directory up in the kernel's list: a bind mount has the same device number as its parent.
func isMountPoint(dir string) (bool, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return false, fmt.Errorf("look whether it is a mount point: %w", err)
	}
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	for line := range strings.Lines(string(b)) {
		// "36 35 98:0 /root /mount/point options …"; proc_pid_mountinfo(5)
		if f := strings.Fields(line); len(f) > 4 && unescape.Replace(f[4]) == dir {
			return true, nil
		}
	}
	return false, nil
}
