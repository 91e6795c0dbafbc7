package supervisor

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"github.com/etcd-warden/etcd-warden/snapshot"
)

// What time or the operator can mend must be tried again, or a disk that is not mounted yet would end the generation with
// nothing; what cannot be mended must not be tried for ever.
func TestOnlyDamageEndsTheTriesOfTheFinal(t *testing.T) {
	for name, c := range map[string]struct {
		err     error
		wal     string
		damaged bool
	}{
		"broken log":           {err: &snapshot.WALCorruptError{Segment: "s"}, damaged: true},
		"unreadable database":  {err: snapshot.ErrDBDamaged, damaged: true},
		"no database":          {err: snapshot.ErrNoDB, damaged: true},
		"no log":               {err: snapshot.ErrNoWAL, damaged: true},
		"log disk not mounted": {err: snapshot.ErrNoWAL, wal: "/wal"},
		"data disk not there":  {err: snapshot.ErrNoDataDir},
		"empty mount point":    {err: snapshot.ErrNotEtcd},
		"still locked":         {err: snapshot.ErrInUse},
		"newer storage":        {err: snapshot.ErrStorageNewer},
		"another member's":     {err: snapshot.ErrForeignMember},
		"not readable":         {err: fs.ErrPermission},
	} {
		t.Run(name, func(t *testing.T) {
			s := &Supervisor{cfg: Config{Etcd: &EtcdConfig{WALDir: c.wal}}}
			if _, got := errors.AsType[*damage](s.damaged(fmt.Errorf("open: %w", c.err))); got != c.damaged {
				t.Errorf("damaged: %v, want %v", got, c.damaged)
			}
		})
	}
}
