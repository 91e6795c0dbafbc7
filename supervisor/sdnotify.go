package supervisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Notifier speaks sd_notify for the warden and its child. systemd listens to the main PID only (NotifyAccess=main), so
// what the child says is read from a socket of our own and passed on. It is safe for concurrent use. Where there is no
// service manager its methods do nothing and return nil.
type Notifier struct {
	out   int           // unconnected datagram socket; -1: nobody to tell
	to    string        // its address
	in    *net.UnixConn // where the child writes; nil: it is not listened to
	ready chan struct{} // the child said READY=1; nil unless asked for
}

// sendPatience bounds a send to a service manager that does not read.
const sendPatience = time.Second

// maxNotification is the longest datagram that systemd takes is a page; descriptors come 253 at most (SCM_MAX_FD).
const (
	maxNotification = 8 << 10
	maxDescriptors  = 253
)

// newNotifier speaks to the socket at address ("": nobody). With wantReady the child is listened to in any case. The
// Notifier is usable also when there is an error.
func newNotifier(address string, wantReady bool) (*Notifier, error) {
	n := &Notifier{out: -1}
	if wantReady {
		n.ready = make(chan struct{}, 1)
	}
	var err error
	switch {
	case address == "":
	case address[0] != '/' && address[0] != '@':
		err = fmt.Errorf("notify socket %q: only paths and abstract names are supported", address)
	default:
		n.to = address
		if n.out, err = unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err == nil {
			patience := unix.NsecToTimeval(int64(sendPatience))
			err = unix.SetsockoptTimeval(n.out, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &patience)
		}
	}
	if err != nil || (n.out < 0 && !wantReady) {
		return n, err
	}
	// An abstract name that the kernel chooses: nothing is written to any file system.
	if n.in, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram"}); err != nil {
		return n, fmt.Errorf("socket for the child's notifications: %w", err)
	}
	return n, errors.Join(setsockopt(n.in, unix.SO_PASSCRED, 1))
}

func setsockopt(c *net.UnixConn, option, value int) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	err = raw.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, option, value) })
	return errors.Join(err, set)
}

// Send sends one notification, one or more lines of NAME=value; sd_notify(3).
func (n *Notifier) Send(state string) error { return n.send([]byte(state), nil, 0) }

// Ready says that the service is up.
func (n *Notifier) Ready() error { return n.Send("READY=1") }

// Status says in a few words what is going on. It does not wait for a service manager that does not read: a change of
// phase must not.
func (n *Notifier) Status(text string) error {
	return n.send([]byte("STATUS="+strings.ReplaceAll(text, "\n", " ")), nil, unix.MSG_DONTWAIT)
}

// Stopping says that the stop has begun.
func (n *Notifier) Stopping() error { return n.Send("STOPPING=1") }

// Reloading says that the configuration is being read again; Ready ends it.
func (n *Notifier) Reloading() error {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return fmt.Errorf("notify: %w", err)
	}
	return n.Send(fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d", now.Nano()/1000))
}

// Extend asks for more time, from now on, for the start or stop that goes on.
func (n *Notifier) Extend(by time.Duration) error {
	return n.Send(fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", by.Microseconds()))
}

// Watchdog says that all is well. WatchdogInterval tells how often it is due.
func (n *Notifier) Watchdog() error { return n.Send("WATCHDOG=1") }

// WatchdogInterval is half of what the service manager waits for a Watchdog; 0 when it does not.
func (n *Notifier) WatchdogInterval() time.Duration {
	var usec, pid int64
	if _, err := fmt.Sscan(os.Getenv("WATCHDOG_USEC"), &usec); err != nil || usec <= 0 || n.out < 0 {
		return 0
	}
	if _, err := fmt.Sscan(os.Getenv("WATCHDOG_PID"), &pid); err == nil && int(pid) != os.Getpid() {
		return 0
	}
	return time.Duration(usec) * time.Microsecond / 2
}

func (n *Notifier) send(state, descriptors []byte, flags int) error {
	if n.out < 0 {
		return nil
	}
	// An address each time: unix.SockaddrUnix keeps the kernel's form in itself and is not safe for concurrent use.
	if err := unix.Sendmsg(n.out, state, descriptors, &unix.SockaddrUnix{Name: n.to}, unix.MSG_NOSIGNAL|flags); err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	return nil
}

// childSocket is the child's NOTIFY_SOCKET; empty: it is left as it is.
func (n *Notifier) childSocket() string {
	if n.in == nil {
		return ""
	}
	return n.in.LocalAddr().String()
}

// proxy passes on what the child says until ctx ends.
func (n *Notifier) proxy(ctx context.Context) error {
	if n.in == nil {
		<-ctx.Done()
		return nil
	}
	stop := context.AfterFunc(ctx, func() { n.in.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	state := make([]byte, maxNotification)
	control := make([]byte, unix.CmsgSpace(4*maxDescriptors)+unix.CmsgSpace(unix.SizeofUcred))
	for {
		size, controlSize, flags, _, err := n.in.ReadMsgUnix(state, control)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the child's notifications: %w", err)
		}
		sender, descriptors := decodeControl(control[:controlSize])
		if allowed(sender) && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) == 0 {
			n.pass(state[:size], descriptors)
		}
		for _, fd := range descriptors {
			unix.Close(fd) // ours is a copy; an open one would hold a barrier up for ever
		}
	}
}

// pass sends one datagram of the child on, less the lines that would make somebody else the main process.
func (n *Notifier) pass(state []byte, descriptors []int) {
	kept, ready := filterNotification(state)
	if ready && n.ready != nil {
		select {
		case n.ready <- struct{}{}:
		default: // one is waiting to be read
		}
	}
	if len(kept) == 0 {
		return
	}
	var rights []byte
	if len(descriptors) > 0 {
		rights = unix.UnixRights(descriptors...)
	}
	n.send(kept, rights, 0) // as a child of a service manager that is gone would, go on without
}

// filterNotification drops the lines about the main process, which stays ours, and looks for READY=1.
func filterNotification(state []byte) (kept []byte, ready bool) {
	for line := range bytes.Lines(state) {
		name, value, _ := bytes.Cut(bytes.TrimRight(line, "\n"), []byte("="))
		switch string(name) {
		case "MAINPID", "MAINPIDFDID", "MAINPIDFD", "NOTIFYACCESS":
			continue
		case "READY":
			ready = ready || string(value) == "1"
		}
		kept = append(kept, line...)
	}
	return bytes.TrimRight(kept, "\n"), ready
}

// decodeControl reads the sender's credentials and the descriptors that came along.
func decodeControl(control []byte) (sender *unix.Ucred, descriptors []int) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil, nil
	}
	for _, m := range messages {
		if cred, err := unix.ParseUnixCredentials(&m); err == nil {
			sender = cred
		}
		if fds, err := unix.ParseUnixRights(&m); err == nil {
			descriptors = append(descriptors, fds...)
		}
	}
	return sender, descriptors
}

// allowed says whether a sender may speak for the service: abstract sockets have no permissions of their own.
func allowed(sender *unix.Ucred) bool {
	return sender != nil && (sender.Uid == 0 || int(sender.Uid) == os.Geteuid())
}
