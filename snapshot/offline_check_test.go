package snapshot

import (
	"errors"
	"os"
	"testing"
	"time"
)

// A page that is not what the tree says must be found before the snapshot is called final: at the restore it is too late.
func TestCheckFindsABrokenPage(t *testing.T) {
	dir, _ := filledDataDir(t)
	db := DataDirs{Data: dir}.DB()
	whole, err := os.ReadFile(db)
	if err != nil {
		t.Fatal(err)
	}
	o, err := OpenOffline(t.Context(), DataDirs{Data: dir}, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	used := o.Size()
	if err := errors.Join(o.Check(t.Context()), o.Close()); err != nil {
		t.Fatalf("%s is whole, but: %v", db, err)
	}
	found, page := 0, int64(os.Getpagesize())
	for off := 2 * page; off+page <= used; off += page { // behind the meta pages
		header := whole[off : off+16] // number, kind, count
		broken := make([]byte, len(header))
		for i := range header {
			broken[i] = header[i] ^ 0xff
		}
		overwrite(t, db, off, broken)
		o, err := OpenOffline(t.Context(), DataDirs{Data: dir}, time.Second)
		if err == nil {
			err = errors.Join(o.Check(t.Context()), o.Close())
		}
		switch {
		case errors.Is(err, ErrDBDamaged):
			found++
		case err != nil:
			t.Errorf("page %d broken: %v, want ErrDBDamaged", off/page, err)
		}
		overwrite(t, db, off, header)
	}
	if found < 2 { // the root and the keys; small buckets lie in the root, and other pages are free
		t.Errorf("of the broken pages %d were found", found)
	}
}
