package snapshot

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"
)

// tempPrefix begins the names of files that are still being written. No key has a segment that begins with a dot.
const tempPrefix = ".warden-"

// dirStore keeps objects as files below a directory.
//
//  1. It never creates the directory itself: an unmounted mount point must not turn into a store on the wrong disk. For the same reason each call opens
//     the directory anew and makes sure that it is the one that was there at the start.
//  2. A file is written under a temporary name, synced, given its name by link(2) (fails when the name exists: if-absent) or rename(2), and then the
//     directory is synced. A kill at any point leaves the old object or the new one, and perhaps a temporary file for SweepUploads.
//  3. All names are resolved inside the directory (os.Root): a symbolic link in there leads nowhere else.
type dirStore struct {
	base string
	id   os.FileInfo
}

func openDirStore(base string) (*dirStore, error) {
	info, err := os.Stat(base)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%w: directory %s does not exist: mount it or create it; it is never created here, so as not to write beside a missing mount", ErrNoStore, base)
	case err != nil:
		return nil, fmt.Errorf("%w: open store directory: %w", ErrNoStore, err)
	case !info.IsDir():
		return nil, fmt.Errorf("%w store URL: %s is not a directory", ErrInvalid, base)
	}
	return &dirStore{base: base, id: info}, nil
}

func (d *dirStore) String() string { return "file://" + d.base }

// open returns the directory, if it is still the one that the store was opened with.
func (d *dirStore) open() (*os.Root, error) {
	root, err := os.OpenRoot(d.base)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w: directory %s is gone", ErrNoStore, d.base)
		}
		return nil, err
	}
	info, err := root.Stat(".")
	if err == nil && !os.SameFile(info, d.id) {
		err = fmt.Errorf("%w: %s is another directory than at the start: was something mounted or unmounted there?", ErrNoStore, d.base)
	}
	if err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return root, nil
}

func (d *dirStore) Put(ctx context.Context, key string, r io.Reader, opt PutOptions) (Object, error) {
	object, err := d.put(ctx, key, r, opt)
	if err != nil {
		closeSource(r)
		return Object{}, d.fail("put", key, err)
	}
	return object, nil
}

func (d *dirStore) put(ctx context.Context, key string, r io.Reader, opt PutOptions) (object Object, err error) {
	if err := CheckKey(key); err != nil {
		return Object{}, err
	}
	root, err := d.open()
	if err != nil {
		return Object{}, err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	if opt.IfAbsent { // spares reading the whole source for nothing; link decides
		if _, err := root.Lstat(key); err == nil {
			return Object{}, ErrExists
		}
	}
	if err := makeParents(root, key); err != nil {
		return Object{}, err
	}
	temp := path.Join(path.Dir(key), tempPrefix+rand.Text())
	f, err := root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return Object{}, err
	}
	defer func() {
		if errRemove := root.Remove(temp); err != nil && !errors.Is(errRemove, fs.ErrNotExist) {
			err = errors.Join(err, errRemove)
		}
	}()
	n, err := copyFromSource(ctx, f, r)
	if err == nil && opt.Size > 0 && n != opt.Size {
		err = &SourceError{Err: fmt.Errorf("it holds %d bytes, %d were announced", n, opt.Size)}
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return Object{}, err
	}
	return d.publish(root, temp, key, opt.IfAbsent)
}

// publish gives a finished file its name, durably.
func (d *dirStore) publish(root *os.Root, temp, key string, ifAbsent bool) (Object, error) {
	if ifAbsent {
		if err := root.Link(temp, key); err != nil && !linkedAnyway(root, temp) {
			return Object{}, err
		}
	} else if err := root.Rename(temp, key); err != nil {
		return Object{}, err
	}
	if err := syncDir(root, path.Dir(key)); err != nil {
		return Object{}, err
	}
	return statObject(root, key)
}

// linkedAnyway recognises a link(2) that worked although its answer says otherwise, as NFS does when an answer is lost and the request repeated: link(2), BUGS.
func linkedAnyway(root *os.Root, temp string) bool {
	info, err := root.Lstat(temp)
	if err != nil {
		return false
	}
	sys, ok := info.Sys().(*syscall.Stat_t)
	return ok && sys.Nlink == 2
}

// makeParents creates the directories above key, durably and for us alone.
func makeParents(root *os.Root, key string) error {
	segments := strings.Split(path.Dir(key), "/")
	if segments[0] == "." {
		return nil
	}
	for i := range segments {
		dir := path.Join(segments[:i+1]...)
		if err := root.Mkdir(dir, 0o700); errors.Is(err, fs.ErrExist) {
			continue
		} else if err != nil {
			return err
		}
		if err := syncDir(root, path.Dir(dir)); err != nil {
			return err
		}
	}
	return nil
}

func syncDir(root *os.Root, dir string) error {
	f, err := root.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func (d *dirStore) Get(ctx context.Context, key string, offset int64) (io.ReadCloser, Object, error) {
	body, object, err := d.get(ctx, key, offset)
	if err != nil {
		return nil, Object{}, d.fail("get", key, err)
	}
	return body, object, nil
}

func (d *dirStore) get(ctx context.Context, key string, offset int64) (_ io.ReadCloser, _ Object, err error) {
	if err := cmp.Or(CheckKey(key), context.Cause(ctx)); err != nil {
		return nil, Object{}, err
	}
	root, err := d.open()
	if err != nil {
		return nil, Object{}, err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	f, err := root.Open(key)
	if err != nil {
		return nil, Object{}, err
	}
	info, err := f.Stat()
	if err == nil {
		err = regular(info)
	}
	if err == nil && (offset < 0 || offset > info.Size()) {
		err = fmt.Errorf("%w: offset %d of %d bytes", ErrInvalid, offset, info.Size())
	}
	if err == nil {
		_, err = f.Seek(offset, io.SeekStart)
	}
	if err != nil {
		return nil, Object{}, errors.Join(err, f.Close())
	}
	return f, objectOf(key, info), nil
}

func (d *dirStore) Stat(ctx context.Context, key string) (Object, error) {
	var object Object
	err := cmp.Or(CheckKey(key), context.Cause(ctx))
	if err == nil {
		err = d.within(func(root *os.Root) (err error) {
			object, err = statObject(root, key)
			return err
		})
	}
	if err != nil {
		return Object{}, d.fail("stat", key, err)
	}
	return object, nil
}

func (d *dirStore) Delete(ctx context.Context, key string) error {
	err := cmp.Or(CheckKey(key), context.Cause(ctx))
	if err == nil {
		err = d.within(func(root *os.Root) error {
			if _, err := statObject(root, key); err != nil {
				return err // never a directory
			}
			return errors.Join(root.Remove(key), syncDir(root, path.Dir(key)))
		})
	}
	if isAbsent(err) {
		return nil
	}
	return d.fail("delete", key, err)
}

func (d *dirStore) List(ctx context.Context, prefix string) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) {
		done := errors.New("done")
		err := d.within(func(root *os.Root) error {
			return walkDir(ctx, root, startDir(prefix), func(key string, info fs.FileInfo) error {
				if !strings.HasPrefix(key, prefix) || CheckKey(key) != nil {
					return nil
				}
				if !yield(objectOf(key, info), nil) {
					return done
				}
				return nil
			})
		})
		if err != nil && !errors.Is(err, done) {
			yield(Object{}, d.fail("list", prefix, err))
		}
	}
}

func (d *dirStore) SweepUploads(ctx context.Context, prefix string, olderThan time.Duration) (int, error) {
	swept := 0
	err := d.within(func(root *os.Root) error {
		return walkDir(ctx, root, ".", func(name string, info fs.FileInfo) error {
			if !strings.HasPrefix(path.Base(name), tempPrefix) || !strings.HasPrefix(name, prefix) || time.Since(info.ModTime()) < olderThan {
				return nil
			}
			if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			swept++
			return nil
		})
	})
	return swept, d.fail("sweep", "", err)
}

func (d *dirStore) Probe(ctx context.Context) (Capabilities, error) {
	began := time.Now()
	key := probePrefix + rand.Text()
	create := func() error {
		_, err := d.Put(ctx, key, strings.NewReader("probe"), PutOptions{IfAbsent: true})
		return err
	}
	if err := create(); err != nil {
		return Capabilities{}, fmt.Errorf("probe: %w", err)
	}
	exclusive := errors.Is(create(), ErrExists)
	deletes := d.Delete(ctx, key) == nil
	return Capabilities{IfAbsent: exclusive, IfAbsentMultipart: exclusive, Deletes: deletes, Took: time.Since(began)}, nil
}

// within runs f on the opened directory.
func (d *dirStore) within(f func(*os.Root) error) error {
	root, err := d.open()
	if err != nil {
		return err
	}
	return errors.Join(f(root), root.Close())
}

// fail gives an error of the file system its kind. A nil error stays nil.
func (d *dirStore) fail(op, key string, err error) error {
	if err == nil {
		return nil
	}
	e := &StoreError{Op: op, Key: key, Store: d.String(), Kind: ErrUnavailable, Retry: true, Err: err}
	if source, ok := errors.AsType[*SourceError](err); ok {
		return fmt.Errorf("%s %s: %w", op, key, source)
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%s %s: %w", op, key, err)
	}
	for _, k := range []struct{ cause, kind error }{
		{ErrNoStore, ErrNoStore}, {ErrInvalid, ErrInvalid}, {ErrExists, ErrExists}, {ErrNotFound, ErrNotFound},
		{fs.ErrExist, ErrExists}, {fs.ErrNotExist, ErrNotFound}, {syscall.ENOTDIR, ErrNotFound}, {fs.ErrPermission, ErrDenied}, {syscall.EROFS, ErrDenied},
		{syscall.ENOSPC, ErrFull}, {syscall.EDQUOT, ErrFull}, {syscall.ENAMETOOLONG, ErrInvalid}, {syscall.ENOSYS, ErrInvalid}, {syscall.EOPNOTSUPP, ErrInvalid},
	} {
		if errors.Is(err, k.cause) {
			e.Kind, e.Retry = k.kind, false
			break
		}
	}
	if err.Error() == e.Kind.Error() {
		e.Err = nil // nothing to add
	}
	return e
}

func isAbsent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrNotFound) || errors.Is(err, syscall.ENOTDIR)
}

// regular refuses whatever is not an object of ours: directories, links, devices.
func regular(info fs.FileInfo) error {
	if !info.Mode().IsRegular() {
		return ErrNotFound
	}
	return nil
}

func statObject(root *os.Root, key string) (Object, error) {
	info, err := root.Lstat(key)
	if err == nil {
		err = regular(info)
	}
	if err != nil {
		return Object{}, err
	}
	return objectOf(key, info), nil
}

func objectOf(key string, info fs.FileInfo) Object {
	o := Object{Key: key, SizeBytes: info.Size(), ModTime: info.ModTime()}
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		o.ETag = fmt.Sprintf("%x-%x-%x", sys.Ino, info.Size(), info.ModTime().UnixNano())
	}
	return o
}

// startDir is the deepest directory that holds all keys with the prefix.
func startDir(prefix string) string {
	if dir := path.Dir(prefix + "x"); CheckKey(dir) == nil {
		return dir
	}
	return "."
}

// walkDir calls f for every regular file below dir, ordered by name as keys are: a directory sorts as its name with a slash. It holds the names of one
// directory per level in memory.
func walkDir(ctx context.Context, root *os.Root, dir string, f func(name string, info fs.FileInfo) error) error {
	entries, err := readDir(root, dir)
	if err != nil {
		if isAbsent(err) {
			return nil // removed meanwhile, or never there
		}
		return err
	}
	sortName := func(e fs.DirEntry) string {
		if e.IsDir() {
			return e.Name() + "/"
		}
		return e.Name()
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(sortName(a), sortName(b)) })
	for _, entry := range entries {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		name := path.Join(dir, entry.Name())
		if entry.IsDir() {
			err = walkDir(ctx, root, name, f)
		} else if entry.Type().IsRegular() {
			var info fs.FileInfo
			if info, err = entry.Info(); err == nil {
				err = f(name, info)
			} else if isAbsent(err) {
				err = nil
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func readDir(root *os.Root, dir string) ([]fs.DirEntry, error) {
	f, err := root.Open(dir)
	if err != nil {
		return nil, err
	}
	entries, err := f.ReadDir(-1)
	return entries, errors.Join(err, f.Close())
}
