package signals

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// The test binary also plays a program that tells what Notify found (@notify). Everything else runs in the tests' own
// process, which has one Inbox, as any program.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "@notify" {
		os.Exit(notifyMain())
	}
	os.Exit(m.Run())
}

// notifyMain prints what was inherited, "ready PID", then each signal until TERM.
func notifyMain() int {
	in := Notify()
	ctx, cancel := context.WithCancel(context.Background())
	var pump sync.WaitGroup
	pump.Go(func() {
		if err := in.Run(ctx); err != nil {
			fmt.Println("error", err)
		}
	})
	defer pump.Wait()
	defer cancel()
	fmt.Println("ignored", in.Ignored())
	fmt.Println("files", in.Files())
	fmt.Println("ready", os.Getpid())
	for sig := range in.Signals() {
		fmt.Println("got", int(sig.(unix.Signal)))
		if sig == unix.SIGTERM {
			return 0
		}
		if sig == unix.SIGUSR1 {
			// Our own SIGPIPE, the kernel's answer to a write into a closed pipe.
			r, w, err := os.Pipe()
			if err != nil {
				return 1
			}
			r.Close()
			_, err = w.WriteString("x")
			fmt.Println("write", err)
		}
	}
	return 0
}

// inbox is the tests' one Inbox.
func inbox(t *testing.T) *Inbox {
	t.Helper()
	return sharedInbox()
}

var sharedInbox = sync.OnceValue(Notify)
