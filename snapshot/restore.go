package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	etcdsnapshot "go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Why Restore refuses, besides ErrBadSnapshot and ErrInUse. The target is untouched in every case.
var (
	ErrTargetNotEmpty = errors.New("target directory is not empty")
	ErrCannotRun      = errors.New("the target's etcd cannot run this snapshot")
)

// RestoreConfig says what to restore where.
type RestoreConfig struct {
	File   string                                       // a plain snapshot file; or
	Source func(ctx context.Context, w io.Writer) error // writes one, and returns an error unless it was whole

	DataDir             string   // target
	WALDir              string   // must be empty: a separate log directory is not supported
	Name                string   // of the member
	InitialCluster      string   // "name=http://host:2380,…"
	InitialClusterToken string   // empty: "etcd-cluster", etcd's default
	PeerURLs            []string // --initial-advertise-peer-urls; spelled as in InitialCluster, or names are looked up

	EtcdVersion string // of the etcd that will run there ("3.6.16"); empty: unknown, not checked
	Revision    int64  // that the snapshot must have; 0: any
	ForceRename bool   // a target that is not empty is renamed, not refused
}

// Validate reports the first thing that makes a restore impossible whatever the snapshot.
func (c RestoreConfig) Validate() error {
	switch {
	case (c.File == "") == (c.Source == nil):
		return errors.New("restore: give either a snapshot file or a source")
	case c.DataDir == "":
		return errors.New("restore: no target directory given; set --data-dir")
	case c.WALDir != "":
		return fmt.Errorf("restore: a separate write-ahead log directory (%s) cannot be replaced in one step with the data directory; restore without --wal-dir, then move %s there and start etcd with --wal-dir",
			c.WALDir, filepath.Join(c.DataDir, "member", "wal"))
	case c.Name == "":
		return errors.New("restore: no member name given; set --name")
	case len(c.PeerURLs) == 0:
		return errors.New("restore: no peer URL given; set --initial-advertise-peer-urls")
	case c.InitialCluster == "":
		return errors.New("restore: no initial cluster given; set --initial-cluster NAME=PEER-URL")
	}
	return nil
}

// RestoreResult is what was restored.
type RestoreResult struct {
	FileStatus
	DataDir  string // the target, symbolic links resolved
	Replaced string // where the former content is now; empty if there was none
	Proof    Proof  // of the restored directory: member and cluster id, log position
}

// Restore makes a data directory for a new one-member or many-member cluster from a snapshot, with the restore code of
// etcd 3.6 itself. All is verified and built in a scratch directory on the target's file system before the target is
// touched; then what was there is renamed and the new directory is renamed into place. Both renames are durable when it
// returns. A crash leaves either the old directory, or the new one, or neither and both under their other names; a
// second Restore is right in all cases. With an error, RestoreResult.Replaced still says where the former content went. Scratch directories of crashed ones are removed; so nothing else may restore to
// the same target at the same time.
func Restore(ctx context.Context, cfg RestoreConfig) (RestoreResult, error) {
	if err := cfg.Validate(); err != nil {
		return RestoreResult{}, err
	}
	// 1. The target: refuse before a byte is fetched.
	t, err := openTarget(ctx, cfg.DataDir, cfg.ForceRename)
	if err != nil {
		return RestoreResult{}, fmt.Errorf("restore to %s: %w", cfg.DataDir, err)
	}
	res, err := restoreInto(ctx, cfg, t)
	if err = errors.Join(err, t.removeScratch()); err != nil {
		return res, fmt.Errorf("restore to %s: %w", cfg.DataDir, err)
	}
	return res, nil
}

func restoreInto(ctx context.Context, cfg RestoreConfig, t *target) (res RestoreResult, err error) {
	res.DataDir = t.dir
	// 2. The snapshot, verified.
	file := cfg.File
	if cfg.Source != nil {
		file = filepath.Join(t.scratch, "snapshot.db")
		if err := writeSource(ctx, cfg.Source, file); err != nil {
			return res, err
		}
	}
	if res.FileStatus, err = CheckSnapshotFile(ctx, file); err != nil {
		return res, err
	}
	if err := checkRunnable(res.FileStatus, cfg); err != nil {
		return res, err
	}
	// 3. A directory from it, verified and durable.
	built := filepath.Join(t.scratch, "data")
	if err := buildDataDir(cfg, file, built); err != nil {
		return res, err
	}
	if res.Proof, err = proveBuilt(ctx, built, res.Revision); err != nil {
		return res, err
	}
	if err := t.finish(built); err != nil {
		return res, err
	}
	// 4. The exchange.
	if ctx.Err() != nil {
		return res, context.Cause(ctx)
	}
	res.Replaced, err = t.exchange(built, time.Now())
	return res, err
}

func writeSource(ctx context.Context, source func(context.Context, io.Writer) error, path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("create scratch file: %w", err)
	}
	return errors.Join(source(ctx, f), f.Close())
}

// checkRunnable refuses what etcd would refuse at its start, after the old directory is gone from its place.
func checkRunnable(st FileStatus, cfg RestoreConfig) error {
	if cfg.Revision != 0 && st.Revision != cfg.Revision {
		return fmt.Errorf("%w: it has revision %d, expected is %d", ErrBadSnapshot, st.Revision, cfg.Revision)
	}
	if newerStorage(st.StorageVersion) {
		return fmt.Errorf("%w: it has storage version %s, known is up to %s; use a newer etcd-warden", ErrStorageNewer, st.StorageVersion, newestStorage)
	}
	return checkVersions(st.StorageVersion, cfg.EtcdVersion)
}

// checkVersions knows that etcd 3.6 and later refuse a storage version above their own ("version 3.7.0 is not
// supported"), while 3.4 and 3.5 do not look at it and start.
func checkVersions(storage, etcd string) error {
	if storage == "" || etcd == "" || compareMinor(etcd, "3.6.0") < 0 || compareMinor(storage, etcd) <= 0 {
		return nil
	}
	return fmt.Errorf("%w: it has storage version %s and etcd here is %s; run etcd %s or newer, or downgrade the source cluster first",
		ErrCannotRun, storage, etcd, strings.TrimSuffix(storage, ".0"))
}

// buildDataDir runs etcd's restore. It logs fatal conditions where others return errors; they become errors here.
func buildDataDir(cfg RestoreConfig, file, dir string) (err error) {
	last := &lastError{}
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("etcd's restore code: %v %s", r, last.text)
		}
	}()
	token := cfg.InitialClusterToken
	if token == "" {
		token = "etcd-cluster"
	}
	err = etcdsnapshot.NewV3(zap.New(last, zap.WithFatalHook(zapcore.WriteThenPanic))).Restore(etcdsnapshot.RestoreConfig{
		SnapshotPath:        file,
		Name:                cfg.Name,
		OutputDataDir:       dir,
		PeerURLs:            cfg.PeerURLs,
		InitialCluster:      cfg.InitialCluster,
		InitialClusterToken: token,
	})
	if err != nil {
		return fmt.Errorf("etcd's restore code: %w", err)
	}
	return nil
}

// proveBuilt reads the new directory as that of a dead etcd.
func proveBuilt(ctx context.Context, dir string, revision int64) (Proof, error) {
	o, err := OpenOffline(ctx, DataDirs{Data: dir}, time.Second)
	if err != nil {
		return Proof{}, fmt.Errorf("verify the restored directory: %w", err)
	}
	p := o.Proof()
	if err := o.Close(); err != nil {
		return p, fmt.Errorf("verify the restored directory: %w", err)
	}
	if !p.Exact() || p.Revision != revision {
		return p, fmt.Errorf("verify the restored directory: it has revision %d (expected %d), consistent index %d, last log entry %d",
			p.Revision, revision, p.ConsistentIndex, p.LastIndex)
	}
	return p, nil
}

// lastError is a log core that keeps the text of the last error, which etcd says only in its log before it panics.
type lastError struct{ text string }

func (*lastError) Enabled(l zapcore.Level) bool        { return l >= zapcore.ErrorLevel }
func (c *lastError) With([]zapcore.Field) zapcore.Core { return c }
func (*lastError) Sync() error                         { return nil }
func (c *lastError) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return ce.AddCore(e, c)
	}
	return ce
}

func (c *lastError) Write(_ zapcore.Entry, fields []zapcore.Field) error {
	enc := zapcore.NewMapObjectEncoder()
	for _, f := range fields {
		f.AddTo(enc)
	}
	c.text = fmt.Sprint(enc.Fields)
	return nil
}
