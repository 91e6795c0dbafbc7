package snapshot

import (
	"context"
	"io"
)

// copyFromSource copies r to w until it ends, or returns the cause of ctx at once when that ends first, even while r hangs. In that case r may be read once
// more after the return; nothing is written any more.
func copyFromSource(ctx context.Context, w io.Writer, r io.Reader) (int64, error) {
	chunks := readAhead(ctx, r)
	var n int64
	for {
		select {
		case <-ctx.Done():
			return n, context.Cause(ctx)
		case c := <-chunks:
			if len(c.data) > 0 {
				written, err := w.Write(c.data)
				if n += int64(written); err != nil {
					return n, err
				}
			}
			if c.err == io.EOF {
				return n, nil
			}
			if c.err != nil {
				return n, asSourceError(c.err)
			}
		}
	}
}

// chunk is what one read of a source brought. err is set in the last one: io.EOF at the regular end.
type chunk struct {
	data []byte
	err  error
}

// readAhead reads r into two buffers in turn. Its goroutine ends with the stream, or with the read that is under way when ctx ends.
func readAhead(ctx context.Context, r io.Reader) <-chan chunk {
	const size = 256 << 10
	out := make(chan chunk)
	go func() {
		buffers := [2][]byte{make([]byte, size), make([]byte, size)}
		for i := 0; ; i++ {
			// The receiver is done with the other buffer's predecessor once it took the next chunk: the channel has no room to run ahead.
			buf := buffers[i%2]
			n, err := r.Read(buf)
			select {
			case out <- chunk{buf[:n], err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return out
}

// asSourceError marks an error of the caller's reader, unless that reader is a pipeline of ours which has done so already.
func asSourceError(err error) error {
	if isSourceError(err) {
		return err
	}
	return &SourceError{Err: err}
}
