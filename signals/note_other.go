//go:build !amd64 && !arm64

package signals

import (
	"context"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// Where there is no handler of our own, SIGPIPE is dropped, TTIN and TTOU go through os/signal, and SIGPROF, 32 and 34
// keep the Go runtime's treatment.

func noted(sig unix.Signal) bool { return sig == unix.SIGPIPE }

func (in *Inbox) takeNotes() { signal.Notify(make(chan<- os.Signal), unix.SIGPIPE) }

func (in *Inbox) readNotes(context.Context) error { return nil }

func ignoredNow(sig unix.Signal) bool { return signal.Ignored(sig) }
