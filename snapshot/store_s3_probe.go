package snapshot

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/minio/minio-go/v7"
)

// probePrefix is where Probe writes its canaries.
const probePrefix = "probe/"

// Probe writes an object, tries to create it again both ways, and deletes it. Our own "does it exist" question, which Put asks first, is left out: what is
// wanted is what the server decides.
func (s *s3Store) Probe(ctx context.Context) (Capabilities, error) {
	began := time.Now()
	var caps Capabilities
	key := probePrefix + rand.Text()
	if _, err := s.Put(ctx, key, bytes.NewReader([]byte("probe")), PutOptions{IfAbsent: true, Size: 5}); err != nil {
		return Capabilities{}, s.fail("probe", key, err)
	}
	err := s.probeAgain(ctx, key, &caps)
	errDelete := s.Delete(context.WithoutCancel(ctx), key)
	caps.Deletes = errDelete == nil
	if errors.Is(errDelete, ErrDenied) {
		errDelete = nil // a store that we may only add to is fine
	}
	caps.ClockOffset = time.Duration(s.clockOffset.Load()).Round(time.Second)
	caps.Took = time.Since(began)
	if err := errors.Join(err, errDelete); err != nil {
		return Capabilities{}, s.fail("probe", key, err)
	}
	return caps, nil
}

func (s *s3Store) probeAgain(ctx context.Context, key string, caps *Capabilities) error {
	again := func() *s3Write {
		return &s3Write{store: s, key: key, opt: PutOptions{IfAbsent: true}, mark: rand.Text(), conditional: true}
	}
	w := again()
	_, err := w.putSingle(ctx, []byte("again"))
	if err != nil && !errors.Is(err, ErrExists) {
		return err
	}
	caps.IfAbsent = errors.Is(err, ErrExists) && w.conditional

	w = again()
	id, err := w.initiate(ctx)
	if err != nil {
		return err
	}
	defer w.abort(ctx, id)
	done, err := w.sendPart(ctx, id, part{number: 1, data: []byte("again"), last: true})
	if err != nil {
		return err
	}
	_, err = w.complete(ctx, id, []minio.CompletePart{done}, 5)
	if err != nil && !errors.Is(err, ErrExists) {
		return err
	}
	caps.IfAbsentMultipart = errors.Is(err, ErrExists) && w.conditional
	return nil
}
