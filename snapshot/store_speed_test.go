package snapshot_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/etcd-warden/etcd-warden/snapshot"
	"github.com/etcd-warden/etcd-warden/snapshot/storetest"
)

// speedJob, in the environment, makes this test binary a program that does one transfer: so its memory and CPU are that of the transfer alone.
const speedJob = "STORE_SPEED_JOB"

// job is one transfer of a child.
type job struct {
	Do    string // put, upload, download, zstd
	File  string
	Store string
	Creds snapshot.Credentials
}

// cost is what a transfer took.
type cost struct {
	Seconds float64
	CPU     float64
	RSSMiB  float64
}

func TestMain(m *testing.M) {
	if text := os.Getenv(speedJob); text != "" {
		var j job
		err := json.Unmarshal([]byte(text), &j)
		if err == nil {
			err = j.run(context.Background())
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func (j job) run(ctx context.Context) error {
	f, err := os.Open(j.File)
	if err != nil {
		return err
	}
	defer f.Close()
	source := struct{ io.Reader }{f} // a stream: no size, no seeking
	if j.Do == "zstd" {
		w, err := zstd.NewWriter(io.Discard, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
		if err != nil {
			return err
		}
		if _, err := io.CopyBuffer(struct{ io.Writer }{w}, source, make([]byte, 256<<10)); err != nil {
			return err
		}
		return w.Close()
	}
	store, err := snapshot.OpenStore(ctx, j.Store, snapshot.OpenOptions{Credentials: &j.Creds})
	if err != nil {
		return err
	}
	switch j.Do {
	case "put":
		_, err = store.Put(ctx, "speed/put", source, snapshot.PutOptions{})
	case "upload":
		_, err = snapshot.Upload(ctx, store, snapshot.ReaderSource(source), snapshot.Manifest{Generation: 1, Revision: 1, Captured: snapshot.CapturedOffline}, snapshot.UploadOptions{})
	case "download":
		m, errNewest := snapshot.NewestManifest(ctx, store, 1)
		if errNewest != nil {
			return errNewest
		}
		err = snapshot.Verify(ctx, store, m, nil)
	}
	return err
}

// child does a job in a process of its own.
func (j job) child(t *testing.T) cost {
	t.Helper()
	text, err := json.Marshal(j)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), speedJob+"="+string(text))
	return run(t, cmd)
}

func run(t *testing.T, cmd *exec.Cmd) cost {
	t.Helper()
	began := time.Now()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", filepath.Base(cmd.Path), err, out)
	}
	took := time.Since(began).Seconds()
	usage := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	return cost{Seconds: took, CPU: (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds(), RSSMiB: float64(usage.Maxrss) / 1024}
}

func envInt(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil && n > 0 {
		return n
	}
	return otherwise
}

// etcdLike writes size bytes that compress about as an API server's database does, 3 to 4 to 1, or random ones.
func etcdLike(t *testing.T, path string, size int64, random bool) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	source, block := rand.NewChaCha8([32]byte{7}), make([]byte, 1<<20)
	text := bytes.Repeat([]byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"default","labels":{"app":"web"}},`), 1+len(block)/90)
	for left := size; left > 0; left -= int64(len(block)) {
		_, _ = source.Read(block)
		if !random {
			for at := 0; at+1024 <= len(block); at += 1024 {
				copy(block[at:at+760], text[at:])
			}
		}
		if _, err := f.Write(block[:min(left, int64(len(block)))]); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// The speed and memory of a transfer beside those of curl and of zstd, in the same run on the same machine. By default small, so that it is only known to
// work; with STORE_SPEED_MIB=2048 and STORE_SPEED_ROUNDS=5 it is a measurement (TMPDIR in memory, or the disk is what is measured). Times are reported, not judged; memory, which does
// not depend on what else the machine does, is.
func TestStoreSpeed(t *testing.T) {
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Skip("no curl to compare with: install curl")
	}
	mib, rounds := envInt("STORE_SPEED_MIB", 48), envInt("STORE_SPEED_ROUNDS", 1)
	gw := storetest.StartS3(t)
	dir := t.TempDir()
	random, db := filepath.Join(dir, "random"), filepath.Join(dir, "db")
	etcdLike(t, random, int64(mib)<<20, true)
	etcdLike(t, db, int64(mib)<<20, false)
	client, err := minio.New(gw.Endpoint[len("http://"):], &minio.Options{Creds: credentials.NewStaticV4(gw.Credentials.AccessKeyID, gw.Credentials.SecretAccessKey, ""), Region: "us-east-1"})
	if err != nil {
		t.Fatal(err)
	}
	put, err := client.PresignedPutObject(t.Context(), "test", "curl", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	with := func(do, file, prefix string) job {
		return job{Do: do, File: file, Store: gw.StoreURL("test", prefix), Creds: gw.Credentials}
	}
	var ratioUp, ratioDown, ratioCPU, rss []float64
	for round := range rounds {
		theirs := run(t, exec.CommandContext(t.Context(), curl, "-sSf", "-T", random, put.String()))
		ours := with("put", random, "speed").child(t)
		full := with("upload", db, fmt.Sprint("pipe", round)).child(t)
		alone := with("zstd", db, "").child(t)
		with("upload", random, fmt.Sprint("down", round)).child(t)
		get := presignedSnapshot(t, client, fmt.Sprint("down", round))
		theirsDown := run(t, exec.CommandContext(t.Context(), curl, "-sSf", "-o", os.DevNull, get))
		oursDown := with("download", random, fmt.Sprint("down", round)).child(t)
		ratioUp, ratioDown = append(ratioUp, theirs.Seconds/ours.Seconds), append(ratioDown, theirsDown.Seconds/oursDown.Seconds)
		ratioCPU, rss = append(ratioCPU, full.CPU/alone.CPU), append(rss, ours.RSSMiB, full.RSSMiB, oursDown.RSSMiB)
		t.Logf("round %d, %d MiB: curl -T %.0f MiB/s, put %.0f MiB/s (%.1f CPU s, %.0f MiB RSS); pipeline %.0f MiB/s (%.2f CPU s, %.0f MiB RSS), zstd 1 alone %.2f CPU s; curl %.0f MiB/s down, download and verify %.0f MiB/s (%.2f CPU s, %.0f MiB RSS)",
			round, mib, float64(mib)/theirs.Seconds, float64(mib)/ours.Seconds, ours.CPU, ours.RSSMiB, float64(mib)/full.Seconds, full.CPU, full.RSSMiB, alone.CPU,
			float64(mib)/theirsDown.Seconds, float64(mib)/oursDown.Seconds, oursDown.CPU, oursDown.RSSMiB)
	}
	t.Logf("medians: put %.2fx of curl -T, download and verify %.2fx of curl, pipeline %.2fx the CPU of zstd 1 alone, at most %.0f MiB RSS",
		median(ratioUp), median(ratioDown), median(ratioCPU), slices.Max(rss))
	if most := slices.Max(rss); !raceDetector && most > 64 {
		t.Errorf("a transfer needed %.0f MiB of memory, want at most 64", most)
	}
}

// presignedSnapshot is a URL for curl of the one snapshot below a prefix.
func presignedSnapshot(t *testing.T, client *minio.Client, prefix string) string {
	t.Helper()
	for info := range client.ListObjectsIter(t.Context(), "test", minio.ListObjectsOptions{Prefix: prefix + "/generations/", Recursive: true}) {
		if _, ok := snapshot.ParseSnapshotKey(info.Key[len(prefix)+1:]); ok {
			url, err := client.PresignedGetObject(t.Context(), "test", info.Key, time.Hour, nil)
			if err != nil {
				t.Fatal(err)
			}
			return url.String()
		}
	}
	t.Fatal("no snapshot below " + prefix)
	return ""
}
