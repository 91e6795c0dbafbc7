package supervisor

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/etcd-warden/etcd-warden/signals"
)

// The test binary plays three parts: the tests, a warden (argv[1] @init) and a visible child (argv[1] @child), which
// prints what it gets. The parts are real processes; the tests wait for what they print.
func TestMain(m *testing.M) {
	if code, handled := Trampoline(os.Args); handled {
		os.Exit(code)
	}
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "@init":
			os.Exit(initMain(os.Args[2:]))
		case "@child":
			os.Exit(childMain(os.Args[2:]))
		case "@reuse":
			os.Exit(reuseMain())
		case "@bench":
			os.Exit(benchMain(os.Args[2:]))
		}
	}
	os.Exit(m.Run())
}

// initMain is a plain warden: @init [flags] -- command...
func initMain(args []string) int {
	inbox := signals.Notify()
	flags := flag.NewFlagSet("@init", flag.ContinueOnError)
	cfg := InitConfig{Inbox: inbox}
	var o RunOptions
	var mode string
	var etcd bool
	flags.DurationVar(&o.Grace, "grace", 10*time.Second, "")
	flags.DurationVar(&o.RestGrace, "rest-grace", 5*time.Second, "")
	flags.DurationVar(&cfg.AlarmTime, "alarm", 10*time.Second, "")
	flags.DurationVar(&cfg.KillEvery, "kill-every", time.Second, "")
	flags.BoolVar(&cfg.LeaveDir, "leave-dir", false, "")
	flags.BoolVar(&etcd, "etcd", false, "")
	flags.StringVar(&mode, "restart", "never", "")
	flags.IntVar(&o.Restart.Burst, "burst", 0, "")
	private := flags.Bool("private", false, "")
	noSubreaper := flags.Bool("no-subreaper", false, "")
	if err := flags.Parse(args); err != nil {
		return 64
	}
	o.Restart.Mode, o.Restart.First, o.Restart.Longest = RestartMode(mode), time.Millisecond, 4*time.Millisecond
	cfg.KeepFiles = o.Restart.Mode != RestartNever
	if etcd {
		cfg.Policy, cfg.Ready = signals.ForEtcd, true
	}
	if *noSubreaper {
		if err := refusePrctl(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 99
		}
	}
	i, err := NewInit(cfg, zerolog.New(os.Stderr).Level(zerolog.WarnLevel))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 99
	}
	code, err := RunCommand(context.Background(), i, Command{Path: flags.Arg(0), Args: flags.Args(), Private: *private}, o)
	var notExecuted *ExecError
	if errors.As(err, &notExecuted) {
		return notExecuted.Code
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 99
	}
	return code
}

// childMain is the visible child: it prints "ready PID GROUP", then each signal as "got NAME".
//
//	signals        end with 0 on TERM
//	stubborn       go on at TERM
//	reraise        at TERM die of TERM, as etcd does
//	slow           at TERM print "bye", end with 0
//	notify LINE... send the lines as one datagram each to NOTIFY_SOCKET, then as signals
//	barrier        send BARRIER=1 with a descriptor, then as signals
func childMain(args []string) int {
	inbox := signals.Notify()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go inbox.Run(ctx)
	switch args[0] {
	case "notify":
		if err := sendDatagrams(args[1:]); err != nil {
			fmt.Println("error", err)
			return 1
		}
	case "barrier":
		if err := sendBarrier(); err != nil {
			fmt.Println("error", err)
			return 1
		}
	}
	fmt.Printf("ready %d %d\n", os.Getpid(), unix.Getpgrp())
	for sig := range inbox.Signals() {
		fmt.Printf("got %s\n", signals.Name(sig.(unix.Signal)))
		if sig != unix.SIGTERM || args[0] == "stubborn" {
			continue
		}
		switch args[0] {
		case "reraise":
			dieOf(unix.SIGTERM)
		case "slow":
			fmt.Println("bye")
		}
		return 0
	}
	return 0
}
