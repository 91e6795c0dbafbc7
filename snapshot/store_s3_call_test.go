package snapshot

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"
)

// A line that moves is never given up, however slow it is; one that does not is, and so is a server that does not answer.
func TestOnlyAStallEndsACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, c := newCall(t.Context(), 30*time.Second)
		defer c.stop()
		for range 100 { // 100 times 29 s: a slow upload
			time.Sleep(29 * time.Second)
			c.moved()
		}
		c.rest() // the reader of the answer is busy
		time.Sleep(time.Hour)
		if err := context.Cause(ctx); err != nil {
			t.Fatalf("the call was ended: %v", err)
		}
		c.moved()
		time.Sleep(31 * time.Second)
		if err := context.Cause(ctx); !errors.As(err, new(errStalled)) {
			t.Errorf("a stalled call goes on; cause %v", err)
		}
	})
}

// The kernel may hold megabytes of a body that was "sent": the answer to a slow upload is waited for as long as the upload took.
func TestAnswerMayTakeAsLongAsTheBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, c := newCall(t.Context(), 30*time.Second)
		defer c.stop()
		for range 10 {
			time.Sleep(20 * time.Second)
			c.moved()
		}
		c.sent()
		time.Sleep(199 * time.Second)
		if err := context.Cause(ctx); err != nil {
			t.Errorf("the call was ended: %v", err)
		}
		time.Sleep(2 * time.Second)
		if err := context.Cause(ctx); !errors.As(err, new(errStalled)) {
			t.Errorf("the call goes on; cause %v", err)
		}
	})
}

// Lost if it fails: a part that holds bytes of the next one.
func TestEndedCallReadsItsBodyNoMore(t *testing.T) {
	_, c := newCall(t.Context(), time.Minute)
	body := &sentBody{ReadCloser: io.NopCloser(bytes.NewReader(make([]byte, 100))), call: c, left: 100}
	c.watch(body)
	if n, err := body.Read(make([]byte, 10)); n != 10 || err != nil {
		t.Fatalf("got %d bytes, error %v", n, err)
	}
	c.stop()
	if n, err := body.Read(make([]byte, 10)); n != 0 || err == nil {
		t.Errorf("got %d bytes, error %v; want none and an error", n, err)
	}
}

func TestRetryWaitIsBounded(t *testing.T) {
	for try := 1; try < 100; try++ {
		want := min(maxBackoff, 200*time.Millisecond<<min(try-1, 20))
		if got := retryWait(200*time.Millisecond, try); got < want/2 || got > want {
			t.Errorf("try %d: wait %s, want %s to %s", try, got, want/2, want)
		}
	}
}
