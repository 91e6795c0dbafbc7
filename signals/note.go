//go:build amd64 || arm64

package signals

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Six signals need a handler of our own, in assembly (note_*.s). It writes the head of the siginfo to a pipe and
// returns; exec puts it back to the default in every child, which SIG_IGN would not be.
//
//   - SIGPROF, 32, 34: os/signal does not deliver them; 32 and 34 (SIGRTMIN for glibc) would end the program.
//   - SIGPIPE, SIGTTIN, SIGTTOU: only siginfo tells one that was sent to us from one that our own write or read caused.
//
// 33 stays with the Go runtime.

const (
	noteSize  = 24 // si_signo, si_errno, si_code, padding, si_pid, si_uid
	siKernel  = 0x80
	saSiginfo = 0x4
	saOnStack = 0x08000000
	saRestart = 0x10000000
)

// sigaction is the kernel's struct on both architectures.
type sigaction struct {
	handler  uintptr
	flags    uint64
	restorer uintptr
	mask     uint64
}

// In note_*.s.
func noteHandler() uintptr    // address of the handler
func noteRestorer() uintptr   // address of what it returns to, 0 where the kernel provides it
func setNoteFile(fd int32)    // the pipe that it writes to; before that it does nothing
func saRestorerFlag() uintptr // SA_RESTORER, 0 where the kernel needs none

func noted(sig unix.Signal) bool {
	switch sig {
	case unix.SIGPIPE, unix.SIGTTIN, unix.SIGTTOU, unix.SIGPROF, 32, 34:
		return true
	}
	return false
}

// takeNotes installs our own handler. Where there is no pipe to be had the signals keep Go's treatment.
func (in *Inbox) takeNotes() {
	// Go's side of SIGPIPE becomes "ignored": a write to a closed stdout is an ordinary error then, not our death.
	signal.Ignore(unix.SIGPIPE)
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return
	}
	setNoteFile(int32(p[1])) // open for the life of the process
	in.notes = os.NewFile(uintptr(p[0]), "signal notes")
	act := sigaction{handler: noteHandler(), flags: saSiginfo | saOnStack | saRestart | uint64(saRestorerFlag()), restorer: noteRestorer(), mask: ^uint64(0)}
	for sig := unix.Signal(1); sig <= lastSignal; sig++ {
		switch {
		case !noted(sig):
		case inheritedIgnored(sig):
			in.ignored = append(in.ignored, sig)
		default:
			rtSigaction(sig, &act, nil) // the arguments are right, so it cannot fail
		}
	}
}

// readNotes decodes what the handler wrote until ctx ends.
func (in *Inbox) readNotes(ctx context.Context) error {
	if err := in.notes.SetReadDeadline(time.Time{}); err != nil {
		return fmt.Errorf("read signal notes: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { in.notes.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	for note := [noteSize]byte{}; ; {
		if _, err := io.ReadFull(in.notes, note[:]); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("read signal notes: %w", err)
		}
		sig, fromOutside := decodeNote(note, os.Getpid())
		if !fromOutside {
			continue
		}
		select {
		case in.signals <- sig:
		case <-ctx.Done():
			return nil
		}
	}
}

// decodeNote reads a siginfo's head. A SIGPIPE or SIGPROF that we caused ourselves names us as its sender, a TTIN or
// TTOU of the terminal comes from the kernel.
func decodeNote(note [noteSize]byte, self int) (sig unix.Signal, fromOutside bool) {
	word := func(at int) int32 { return int32(binary.NativeEndian.Uint32(note[at:])) }
	sig, code, pid := unix.Signal(word(0)), word(8), word(16)
	return sig, code != siKernel && int(pid) != self
}

func rtSigaction(sig unix.Signal, set, old *sigaction) unix.Errno {
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(set)), uintptr(unsafe.Pointer(old)), 8, 0, 0)
	return errno
}

const sigIgn = 1

func ignoredNow(sig unix.Signal) bool {
	var now sigaction
	return rtSigaction(sig, nil, &now) == 0 && now.handler == sigIgn
}
