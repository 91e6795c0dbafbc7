package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/etcd-warden/etcd-warden/signals"
)

// Command is what Start runs. Path and Args are required.
type Command struct {
	Path string   // looked up in PATH when it has no slash
	Args []string // argv, argv[0] included
	Env  []string // nil: inherited, byte for byte, but for what speaks of the warden itself (NOTIFY_SOCKET, LISTEN_PID, WATCHDOG_PID)
	Dir  string   // "": the warden's directory at its start

	// Private is for a helper beside the main child: stdin is /dev/null, it gets no terminal, no notify socket, no
	// activation sockets and no forwarded signal.
	Private        bool
	Stdout, Stderr *os.File // nil: the warden's own, as it is
}

// errEnded is returned by Init.Start once Run has returned.
var errEnded = errors.New("init has ended")

// spawn is a fork, ready to be made by the spawner.
type spawn struct {
	path  string
	args  []string
	attr  *syscall.ProcAttr
	reply chan<- spawned
}

type spawned struct {
	process *signals.Process
	err     error
}

// spawner makes every fork of the program, from one thread that lives as long as the warden: the parent-death signal
// is bound to the thread that forked. It is never unlocked, so what outlives the spawner is killed.
func (i *Init) spawner(ctx context.Context) error {
	runtime.LockOSThread()
	for {
		select {
		case s := <-i.spawns:
			p, err := i.reaper.Spawn(func() (int, error) { return syscall.ForkExec(s.path, s.args, s.attr) })
			s.reply <- spawned{p, err}
		case <-ctx.Done():
			return nil
		}
	}
}

// Start starts a command as the leader of its own process group, and of its own cgroup where one can be made. It returns
// when the program has been executed; the error then wraps *ExecError if it could not be. The child dies with the warden.
// Unless it is Private it becomes the main child, which signals are forwarded to; there is one at a time.
func (i *Init) Start(ctx context.Context, c Command) (*Child, error) {
	path, err := lookPath(c.Path, i.dir)
	if err != nil {
		return nil, execError(c.Path, err)
	}
	files, closeFiles, err := stdio(c)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Path, err)
	}
	defer closeFiles()
	s := spawn{path: path, args: c.Args, attr: &syscall.ProcAttr{Dir: c.Dir, Env: i.childEnv(c), Files: files, Sys: &syscall.SysProcAttr{
		Setpgid: true, Pdeathsig: unix.SIGKILL}}}
	if s.attr.Dir == "" {
		s.attr.Dir = i.dir
	}
	if !c.Private && i.cfg.Policy.TakesTerminal() && i.terminal.ours() {
		s.attr.Sys.Foreground, s.attr.Sys.Ctty = true, i.terminal.fd
	}
	process, cg, err := i.forkIn(ctx, s, c)
	if err != nil {
		return nil, err
	}
	child := &Child{init: i, process: process, cgroup: cg, private: c.Private}
	i.mu.Lock()
	i.children = append(i.children, child)
	i.mu.Unlock()
	if c.Private {
		return child, nil
	}
	i.afterMain()
	select {
	case i.mains <- child:
		return child, nil
	case <-ctx.Done():
		_, err := child.Stop(context.WithoutCancel(ctx), 0, nil) // bounded by SIGKILL
		return nil, errors.Join(context.Cause(ctx), err)
	}
}

// forkIn forks into a new cgroup if there is one to be had, else without; through the trampoline if the child needs it.
func (i *Init) forkIn(ctx context.Context, s spawn, c Command) (*signals.Process, *cgroup, error) {
	report := func(context.Context) error { return nil }
	if len(i.files) > 0 && !c.Private {
		var err error
		if report, err = i.throughTrampoline(&s); err != nil {
			return nil, nil, fmt.Errorf("start %s: %w", c.Path, err)
		}
	}
	cg, err := i.cgroups.child()
	if err == nil {
		err = i.startGuard(ctx)
	}
	if err != nil {
		i.log.Warn().Err(err).Msg("no cgroup for the child")
	}
	var process *signals.Process
	if cg != nil {
		s.attr.Sys.UseCgroupFD, s.attr.Sys.CgroupFD = true, cg.fd()
		process, err = i.fork(ctx, s)
		if cgroupRefused(err) {
			i.log.Warn().Err(err).Msg("no cgroup for the child")
			cg.remove()
			cg, s.attr.Sys.UseCgroupFD = nil, false
		}
	}
	if cg == nil {
		process, err = i.fork(ctx, s)
	}
	if err = errors.Join(err, report(ctx)); err != nil {
		cg.remove()
		if ctx.Err() != nil || errors.Is(err, errEnded) {
			return nil, nil, fmt.Errorf("start %s: %w", c.Path, err)
		}
		return nil, nil, execError(c.Path, err)
	}
	return process, cg, nil
}

func (i *Init) fork(ctx context.Context, s spawn) (*signals.Process, error) {
	reply := make(chan spawned, 1)
	s.reply = reply
	select {
	case i.spawns <- s:
		r := <-reply // a fork is not cancelled: its process would be lost
		return r.process, r.err
	case <-i.ended:
		return nil, errEnded
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// afterMain lets go of what only the main child needs.
func (i *Init) afterMain() {
	if !i.cfg.KeepFiles {
		for _, fd := range i.files {
			unix.Close(fd)
		}
		i.files = nil
	}
	if i.cfg.LeaveDir && i.dir != "" {
		if err := os.Chdir("/"); err != nil {
			i.log.Warn().Err(err).Msg("working directory stays in use")
		}
	}
}

// childEnv is the child's environment: the given one or ours, less what is addressed to the warden.
func (i *Init) childEnv(c Command) []string {
	env := slices.Clone(c.Env)
	if c.Env == nil {
		env = os.Environ()
	}
	var drop []string
	proxy := i.notifier.childSocket()
	if proxy != "" || c.Private {
		drop = []string{"NOTIFY_SOCKET", "WATCHDOG_PID"} // without WATCHDOG_PID, WATCHDOG_USEC is meant for whoever reads it
	}
	if c.Private {
		drop = append(drop, "WATCHDOG_USEC", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "LISTEN_PIDFDID")
	}
	env = slices.DeleteFunc(env, func(e string) bool {
		name, _, _ := strings.Cut(e, "=")
		return slices.Contains(drop, name)
	})
	if proxy != "" && !c.Private {
		env = append(env, "NOTIFY_SOCKET="+proxy)
	}
	return env
}

// stdio is the child's descriptors 0 to 2, and what to close after the fork.
func stdio(c Command) ([]uintptr, func(), error) {
	files, done := []uintptr{0, 1, 2}, func() {}
	if c.Private {
		null, err := os.Open(os.DevNull)
		if err != nil { // a chroot without /dev: the read end of a closed pipe gives the same end of file
			var w *os.File
			if null, w, err = os.Pipe(); err != nil {
				return nil, nil, fmt.Errorf("no stdin for it: %w", err)
			}
			w.Close()
		}
		files[0], done = null.Fd(), func() { null.Close() }
	}
	for n, f := range []*os.File{c.Stdout, c.Stderr} {
		if f != nil {
			files[n+1] = f.Fd()
		}
	}
	return files, done, nil
}

// lookPath finds the program as a shell does. A relative path with a slash is taken from dir, where the warden started.
func lookPath(name, dir string) (string, error) {
	if strings.Contains(name, "/") && !filepath.IsAbs(name) && dir != "" {
		name = filepath.Join(dir, name)
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", err
	}
	return path, nil
}

// firstActivationFile is where the sockets of socket activation begin; sd_listen_fds(3).
const firstActivationFile = 3

// activationFiles lists the descriptors of socket activation: LISTEN_FDS many from 3 up, if they are meant for us and
// were really inherited.
func activationFiles(inherited []int) []int {
	n, err := strconv.Atoi(os.Getenv("LISTEN_FDS"))
	if err != nil || n < 1 || os.Getenv("LISTEN_PID") != strconv.Itoa(os.Getpid()) {
		return nil
	}
	var files []int
	for fd := firstActivationFile; fd < firstActivationFile+n && slices.Contains(inherited, fd); fd++ {
		files = append(files, fd)
	}
	return files
}
