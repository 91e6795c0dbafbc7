package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/etcd-warden/etcd-warden/signals"
)

// PIDs are given away again. What is meant for a child that is gone must not reach who has its PID now: neither a signal,
// nor a second stop, nor the SIGKILL for one that was seen in /proc before.
func TestASignalNeverReachesWhoGotThePIDLater(t *testing.T) {
	w := startInit(t, nil, asPID1(t), func(c *exec.Cmd) { c.Args[slices.Index(c.Args, "@init")] = "@reuse" })
	if got := w.line("reused "); got != "true" {
		t.Skip("no PID could be used twice: ", got)
	}
	w.line("signal true")
	w.line("stop true")
	w.line("seen before true")
	if got := w.line("the new one died of "); got != "SIGTERM" {
		t.Errorf("the new one died of %s, want its own TERM", got)
	}
	if code := w.code(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// reuseMain is @reuse: a child gets the PID of one that is gone, which is then addressed in every way there is.
func reuseMain() int {
	i, err := NewInit(InitConfig{Inbox: signals.Notify(), NoCgroup: true}, zerolog.Nop())
	if err != nil {
		fmt.Println("error", err)
		return 1
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	var running sync.WaitGroup
	running.Go(func() { i.Run(ctx) })
	defer running.Wait()
	defer cancel()
	if err := i.reusePID(ctx); err != nil {
		fmt.Println("error", err)
		return 1
	}
	return 0
}

func (i *Init) reusePID(ctx context.Context) error {
	start := func() (*Child, error) {
		return i.Start(ctx, Command{Path: "sleep", Args: []string{"sleep", "600"}, Private: true})
	}
	old, err := start()
	if err != nil {
		return err
	}
	seen, err := readProcess(old.PID())
	if err != nil {
		return err
	}
	if _, err := old.Stop(ctx, 0, nil); err != nil {
		return err
	}
	var now *Child
	for range 100 { // a new thread may get it first
		if err := os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(strconv.Itoa(old.PID()-1)), 0); err != nil {
			fmt.Println("reused", err)
			return nil
		}
		if now, err = start(); err != nil {
			return err
		}
		p, err := readProcess(now.PID()) // told apart by its start, in ticks of 10 ms
		if err == nil && now.PID() == old.PID() && p.start != seen.start {
			break
		}
		if _, err := now.Stop(ctx, 0, nil); err != nil {
			return err
		}
	}
	fmt.Println("reused", now.PID() == old.PID())
	fmt.Println("signal", errors.Is(old.Signal(unix.SIGKILL), os.ErrProcessDone))
	_, err = old.Stop(ctx, 0, nil)
	fmt.Println("stop", err == nil && old.Exit().Killed)
	fmt.Println("seen before", i.signalProcess(seen, unix.SIGKILL) == nil)
	exit, err := now.Stop(ctx, patience, nil)
	fmt.Println("the new one died of", signals.Name(exit.Signal))
	return err
}
