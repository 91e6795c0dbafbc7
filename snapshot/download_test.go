package snapshot_test

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"testing"

	"github.com/etcd-warden/etcd-warden/snapshot"
	"github.com/etcd-warden/etcd-warden/snapshot/storetest"
	"github.com/klauspost/compress/zstd"
)

func TestDownloadReturnsWhatWasUploaded(t *testing.T) {
	forEachStore(t, func(t *testing.T, store snapshot.Store) {
		data := append(bytes.Repeat([]byte("etcd "), 1<<18), storetest.Bytes(10<<20)...)
		m := upload(t, store, snapshot.Manifest{Generation: 1, Revision: 1, Captured: snapshot.CapturedLive}, data)
		var got bytes.Buffer
		var plain, stored int64
		if err := snapshot.Download(t.Context(), store, m, &got, func(p, s int64) { plain, stored = p, s }); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Bytes(), data) {
			t.Errorf("got %d other bytes", got.Len())
		}
		if plain != m.PlainBytes || stored == 0 || stored > m.StoredBytes {
			t.Errorf("last progress is %d, %d of %d, %d", plain, stored, m.PlainBytes, m.StoredBytes)
		}
	})
}

// Lost if it fails: a cluster restored from garbage. The kinds of damage call for different people.
func TestDamageIsRecognisedAndNamed(t *testing.T) {
	data := append(bytes.Repeat([]byte("etcd "), 1<<18), storetest.Bytes(1<<20)...)
	flip := func(at func(n int) int) func([]byte) []byte {
		return func(b []byte) []byte { b[at(len(b))] ^= 0x40; return b }
	}
	for _, tt := range []struct {
		name     string
		change   func([]byte) []byte
		manifest func(*snapshot.Manifest)
		want     snapshot.Damage
	}{
		{name: "cut by one byte", change: func(b []byte) []byte { return b[:len(b)-1] }, want: snapshot.DamageTruncated},
		{name: "cut in half", change: func(b []byte) []byte { return b[:len(b)/2] }, want: snapshot.DamageTruncated},
		{name: "empty", change: func([]byte) []byte { return nil }, want: snapshot.DamageTruncated},
		{name: "first byte", change: flip(func(int) int { return 0 }), want: snapshot.DamageCorrupted},
		{name: "middle", change: flip(func(n int) int { return n / 2 }), want: snapshot.DamageCorrupted},
		{name: "last byte", change: flip(func(n int) int { return n - 1 }), want: snapshot.DamageCorrupted},
		{name: "longer", change: func(b []byte) []byte { return append(b, 0) }, want: snapshot.DamageMismatch},
		{name: "plain hash", manifest: func(m *snapshot.Manifest) { m.PlainSHA256 = exampleManifest().PlainSHA256 }, want: snapshot.DamageMismatch},
		{name: "stored hash", manifest: func(m *snapshot.Manifest) { m.StoredSHA256 = exampleManifest().StoredSHA256 }, want: snapshot.DamageCorrupted},
		{name: "plain size too small", manifest: func(m *snapshot.Manifest) { m.PlainBytes-- }, want: snapshot.DamageMismatch},
		{name: "plain size too large", manifest: func(m *snapshot.Manifest) { m.PlainBytes++ }, want: snapshot.DamageMismatch},
	} {
		t.Run(tt.name, func(t *testing.T) {
			store := storetest.NewMemory()
			m := upload(t, store, snapshot.Manifest{Generation: 1, Revision: 1, Captured: snapshot.CapturedLive}, data)
			if tt.change != nil {
				store.Corrupt(m.Key, tt.change)
			}
			if tt.manifest != nil {
				tt.manifest(&m)
			}
			wantDamage(t, snapshot.Verify(t.Context(), store, m, nil), tt.want)
		})
	}
}

// Lost if it fails: the machine's disk or memory, to four kilobytes in a bucket.
func TestBombIsStoppedAtThePromisedSize(t *testing.T) {
	store := storetest.NewMemory()
	m := upload(t, store, snapshot.Manifest{Generation: 1, Revision: 1, Captured: snapshot.CapturedLive}, []byte("small"))
	var bomb bytes.Buffer
	encoder, err := zstd.NewWriter(&bomb)
	if err != nil {
		t.Fatal(err)
	}
	zeros := make([]byte, 1<<20)
	for range 64 {
		if _, err := encoder.Write(zeros); err != nil {
			t.Fatal(err)
		}
	}
	if err := encoder.Close(); err != nil {
		t.Fatal(err)
	}
	store.Corrupt(m.Key, func([]byte) []byte { return bomb.Bytes() })
	m.StoredBytes = int64(bomb.Len())
	var got bytes.Buffer
	wantDamage(t, snapshot.Download(t.Context(), store, m, &got, nil), snapshot.DamageMismatch)
	if int64(got.Len()) > m.PlainBytes {
		t.Errorf("%d bytes were written, the manifest promised %d", got.Len(), m.PlainBytes)
	}
	// A frame that asks for a window of 2 GiB.
	store.Corrupt(m.Key, func([]byte) []byte { return append([]byte{0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xa8}, make([]byte, 100)...) })
	m.StoredBytes = 106
	wantDamage(t, snapshot.Verify(t.Context(), store, m, nil), snapshot.DamageCorrupted)
}

func isGet(r *http.Request) bool { return r.Method == http.MethodGet }

func TestDownloadResumesWhereTheLineBroke(t *testing.T) {
	server := storetest.NewS3Server("test")
	proxy := startProxy(t, server)
	store := openStore(t, storetest.S3URL(proxy.URL(), "test", "p"), testOptions())
	data := storetest.Bytes(3 << 20)
	m := upload(t, store, snapshot.Manifest{Generation: 1, Revision: 1, Captured: snapshot.CapturedLive}, data)
	proxy.Inject(storetest.Fault{Mode: storetest.CutAnswer, Match: isGet, Times: 8})
	var got bytes.Buffer
	if err := snapshot.Download(t.Context(), store, m, &got, nil); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), data) {
		t.Errorf("got %d other bytes", got.Len())
	}
	if hits := proxy.Hits(storetest.CutAnswer); hits != 8 {
		t.Errorf("the line broke %d times, want 8", hits)
	}
}

// Lost if it fails: a database put together from two.
func TestDownloadDoesNotResumeOnAnotherObject(t *testing.T) {
	server := storetest.NewS3Server("test")
	proxy := startProxy(t, server)
	store := openStore(t, storetest.S3URL(proxy.URL(), "test", "p"), testOptions())
	m := upload(t, store, snapshot.Manifest{Generation: 1, Revision: 1, Captured: snapshot.CapturedLive}, storetest.Bytes(3<<20))
	proxy.Inject(storetest.Fault{Mode: storetest.CutAnswer, Times: 1, Match: isGet})
	proxy.Inject(storetest.Fault{Mode: storetest.Pass, Times: 1, Match: func(r *http.Request) bool {
		again := isGet(r) && proxy.Hits(storetest.CutAnswer) == 1
		if again {
			server.PutObject("p/"+m.Key, storetest.Bytes(int(m.StoredBytes)))
		}
		return again
	}})
	wantDamage(t, snapshot.Verify(t.Context(), store, m, nil), snapshot.DamageMismatch)
}

func TestDownloadTellsOutageFromDamage(t *testing.T) {
	store := storetest.NewMemory()
	m := upload(t, store, snapshot.Manifest{Generation: 1, Revision: 1, Captured: snapshot.CapturedLive}, []byte("data"))
	denied := &snapshot.StoreError{Op: "get", Kind: snapshot.ErrDenied}
	store.Inject(func(op, _ string) (error, error) { return denied, nil })
	err := snapshot.Verify(t.Context(), store, m, nil)
	wantIs(t, err, snapshot.ErrDenied)
	if errors.As(err, new(*snapshot.CorruptError)) {
		t.Errorf("%v is called damage", err)
	}
}

type fullDisk struct{ err error }

func (f fullDisk) Write([]byte) (int, error) { return 0, f.err }

func TestFailingWriterIsNoDamage(t *testing.T) {
	store := storetest.NewMemory()
	m := upload(t, store, snapshot.Manifest{Generation: 1, Revision: 1, Captured: snapshot.CapturedLive}, []byte("data"))
	err := snapshot.Download(t.Context(), store, m, fullDisk{io.ErrShortBuffer}, nil)
	wantIs(t, err, io.ErrShortBuffer)
	if errors.As(err, new(*snapshot.CorruptError)) {
		t.Errorf("%v is called damage", err)
	}
}
