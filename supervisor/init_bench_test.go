package supervisor

import (
	"bufio"
	"bytes"
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
	"testing"
	"text/tabwriter"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// initBench compares inits: every measurement is made of each contender in turn, so that what else the machine does hits
// all of them alike. What comes out is medians, and the ratio to the first contender that is an init.
type initBench struct {
	b          testing.TB
	contenders []contender
	runs       int           // of each measurement
	orphans    int           // reaped in one run
	idle       time.Duration // watched for wake-ups
}

// contender is one init. The child's command line follows its own.
type contender struct {
	name string
	argv []string // empty: no init at all
}

// row is one line of the table: a value for each contender; nil where it could not be measured.
type row struct {
	what   string
	unit   string
	values [][]float64
}

// BenchmarkInit prints the table of `make bench-init`: bin/etcd-warden against those of tini and dumb-init that are
// installed. INIT_BENCH_PROGRAM names another program, INIT_BENCH_RUNS another number of runs.
func BenchmarkInit(b *testing.B) {
	program := os.Getenv("INIT_BENCH_PROGRAM")
	if program == "" {
		program = "../bin/etcd-warden"
	}
	program, err := filepath.Abs(program)
	if err == nil {
		_, err = os.Stat(program)
	}
	if err != nil {
		b.Skipf("%v; make build", err)
	}
	runs, err := strconv.Atoi(os.Getenv("INIT_BENCH_RUNS"))
	if err != nil || runs < 1 {
		runs = 50
	}
	bench := initBench{b: b, runs: runs, orphans: 10_000, idle: 5 * time.Second, contenders: []contender{{name: "bare"}}}
	for name, flags := range map[string][]string{"tini": {"-s", "--"}, "dumb-init": {"--"}} {
		if path, err := exec.LookPath(name); err == nil {
			bench.contenders = append(bench.contenders, contender{name, append([]string{path}, flags...)})
		}
	}
	slices.SortFunc(bench.contenders[1:], func(a, b contender) int { return strings.Compare(b.name, a.name) }) // tini first
	bench.contenders = append(bench.contenders, contender{"etcd-warden", []string{program, "run", "--http", "127.0.0.1:0", "--"}})
	for b.Loop() {
		fmt.Printf("\n%s", bench.table())
	}
}

// The benchmark itself must keep working; the figures of a race-checked build mean nothing.
func TestTheInitBenchmarkMeasuresEverything(t *testing.T) {
	bench := initBench{b: t, runs: 1, orphans: 50, idle: 10 * time.Millisecond,
		contenders: []contender{{name: "bare"}, {"init", []string{testBinary(t), "@init", "--"}}}}
	for _, r := range bench.rows() {
		if len(r.values[1]) == 0 && os.Geteuid() == 0 {
			t.Errorf("%s: nothing measured", r.what)
		}
	}
}

func (i *initBench) rows() []row {
	all := []row{
		i.measure("start to exit of true", "µs", i.runs, i.startToExit),
		i.measure("signal to child", "µs", i.runs, i.signalToChild),
		i.measure("TERM to exit", "µs", i.runs, i.termToExit),
		i.measure(fmt.Sprintf("%d orphans reaped", i.orphans), "µs", max(1, i.runs/10), i.reapOrphans),
	}
	return append(all, i.idling()...)
}

func (i *initBench) table() string {
	var text bytes.Buffer
	out := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(out, "median (ratio to the first init)\t")
	for _, c := range i.contenders {
		fmt.Fprintf(out, "%s\t", c.name)
	}
	fmt.Fprintln(out)
	for _, r := range i.rows() {
		fmt.Fprintf(out, "%s, %s\t", r.what, r.unit)
		for n, values := range r.values {
			switch {
			case len(values) == 0:
				fmt.Fprint(out, "-\t")
			case n > 1 && median(r.values[1]) > 0:
				fmt.Fprintf(out, "%.0f (%.2f)\t", median(values), median(values)/median(r.values[1]))
			default:
				fmt.Fprintf(out, "%.0f\t", median(values))
			}
		}
		fmt.Fprintln(out)
	}
	out.Flush()
	return text.String()
}

func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	values = slices.Sorted(slices.Values(values))
	return values[len(values)/2]
}

// measure runs one measurement of each contender in turn. One that gives no value is left out.
func (i *initBench) measure(what, unit string, runs int, one func(contender) (float64, error)) row {
	r := row{what, unit, make([][]float64, len(i.contenders))}
	for range runs {
		for n, c := range i.contenders {
			if v, err := one(c); err == nil {
				r.values[n] = append(r.values[n], v)
			} else if !errors.Is(err, errNotMeasured) {
				i.b.Errorf("%s of %s: %v", what, c.name, err)
			}
		}
	}
	return r
}

var errNotMeasured = errors.New("not measured for this contender")

// running is a contender with its child.
type running struct {
	cmd *exec.Cmd
	out *bufio.Reader
}

func (c contender) start(child ...string) (*running, error) { return c.startIn(0, child...) }

// startIn starts it in namespaces of its own.
func (c contender) startIn(namespaces uintptr, child ...string) (*running, error) {
	argv := slices.Concat(c.argv, child)
	r := &running{cmd: exec.Command(argv[0], argv[1:]...)}
	r.cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: unix.SIGKILL, Cloneflags: namespaces}
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	r.out = bufio.NewReader(out)
	return r, r.cmd.Start()
}

// line is the child's next line, as numbers.
func (r *running) line() (first, second int64, err error) {
	text, err := r.out.ReadString('\n')
	if err == nil {
		_, err = fmt.Sscan(text, &first, &second)
	}
	return first, second, err
}

// end kills what runs: the child's PID is known, the init dies with or before it.
func (r *running) end(child int64) {
	if child > 0 {
		unix.Kill(int(child), unix.SIGKILL)
	}
	r.cmd.Process.Kill()
	r.cmd.Wait() // how it ended does not matter
}

func (i *initBench) startToExit(c contender) (float64, error) {
	began := time.Now()
	r, err := c.start("true")
	if err != nil {
		return 0, err
	}
	err = r.cmd.Wait()
	return micros(time.Since(began)), err
}

// sleeper says its PID, and then does nothing at all.
func sleeper() []string { return []string{"/bin/sh", "-c", "echo $$ 0; exec sleep 600"} }

func (i *initBench) termToExit(c contender) (float64, error) {
	r, err := c.start(sleeper()...)
	if err != nil {
		return 0, err
	}
	if _, _, err := r.line(); err != nil {
		return 0, err
	}
	began := time.Now()
	if err := r.cmd.Process.Signal(unix.SIGTERM); err != nil {
		return 0, err
	}
	r.cmd.Wait() // 0, 143 or death by TERM: each has its own way
	return micros(time.Since(began)), nil
}

// signalToChild is the time from kill(2) to the moment at which a child that waits for the signal runs.
func (i *initBench) signalToChild(c contender) (float64, error) {
	const signals = 10
	r, err := c.start(testBinary(i.b), "@bench", "signals")
	if err != nil {
		return 0, err
	}
	pid, _, err := r.line()
	defer func() { r.end(pid) }()
	if err != nil {
		return 0, err
	}
	var took []float64
	for range signals {
		sent := monotonic()
		if err := r.cmd.Process.Signal(unix.SIGUSR1); err != nil {
			return 0, err
		}
		got, _, err := r.line()
		if err != nil {
			return 0, err
		}
		took = append(took, micros(time.Duration(got-sent)))
	}
	return median(took), nil
}

// reapOrphans is the time from the death of a process with that many dead children until an init, as PID 1, has reaped
// them all.
func (i *initBench) reapOrphans(c contender) (float64, error) {
	if len(c.argv) == 0 || os.Geteuid() != 0 {
		return 0, errNotMeasured
	}
	inside := contender{c.name, append([]string{"/bin/sh", "-c", `mount --make-rprivate / && mount -t proc proc /proc && exec "$0" "$@"`}, c.argv...)}
	r, err := inside.startIn(unix.CLONE_NEWPID|unix.CLONE_NEWNS, testBinary(i.b), "@bench", "orphans", strconv.Itoa(i.orphans))
	if err != nil {
		return 0, err
	}
	defer r.end(0) // PID 1 takes the namespace along
	took, left, err := r.line()
	if err == nil && left > 0 {
		err = fmt.Errorf("%d orphans not reaped", left)
	}
	return micros(time.Duration(took)), err
}

// idling measures each contender once, below a child that does nothing.
func (i *initBench) idling() []row {
	rows := []row{{what: "idle: anonymous memory", unit: "KiB"}, {what: "idle: resident memory", unit: "KiB"}, {what: "idle: wake-ups", unit: "per " + i.idle.String()}}
	for _, c := range i.contenders {
		var values [3][]float64
		if len(c.argv) > 0 {
			anonymous, resident, wakes, err := i.watchIdle(c)
			if err != nil {
				i.b.Errorf("idle %s: %v", c.name, err)
			} else {
				values = [3][]float64{{anonymous}, {resident}, {wakes}}
			}
		}
		for n := range rows {
			rows[n].values = append(rows[n].values, values[n])
		}
	}
	return rows
}

func (i *initBench) watchIdle(c contender) (anonymous, resident, wakes float64, err error) {
	r, err := c.start(sleeper()...)
	if err != nil {
		return 0, 0, 0, err
	}
	pid, _, err := r.line()
	defer func() { r.end(pid) }()
	if err != nil {
		return 0, 0, 0, err
	}
	time.Sleep(i.idle / 2) // what follows a start is over: it is the length that is measured, no event
	before, err := wakeUps(r.cmd.Process.Pid)
	if err != nil {
		return 0, 0, 0, err
	}
	time.Sleep(i.idle)
	after, err := wakeUps(r.cmd.Process.Pid)
	if err != nil {
		return 0, 0, 0, err
	}
	file := fmt.Sprintf("/proc/%d/status", r.cmd.Process.Pid)
	anonymous, err = statusField(file, "RssAnon:")
	if err == nil {
		resident, err = statusField(file, "VmRSS:")
	}
	return anonymous, resident, after - before, err
}

// wakeUps counts how often the threads of a process went to sleep by themselves, which is how often they were woken.
func wakeUps(pid int) (total float64, err error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	for _, file := range files {
		n, err := statusField(file, "voluntary_ctxt_switches:")
		if err != nil {
			return 0, err
		}
		total += n
	}
	return total, err
}

func statusField(file, name string) (float64, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			return strconv.ParseFloat(strings.Fields(rest)[0], 64)
		}
	}
	return 0, fmt.Errorf("%s has no %s", file, name)
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }

func monotonic() int64 {
	var now unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // cannot fail for this clock
	return now.Nano()
}

// benchMain is the benchmark's child: @bench signals|signals-blocked|orphans N|dead N.
func benchMain(args []string) int {
	runtime.LockOSThread()
	usr1 := unix.Sigset_t{Val: [16]uint64{1 << (unix.SIGUSR1 - 1)}}
	var err error
	switch args[0] {
	case "signals": // executed again, all threads have the signal blocked
		if err = unix.PthreadSigmask(unix.SIG_BLOCK, &usr1, nil); err == nil {
			err = syscall.Exec(selfExe, []string{os.Args[0], "@bench", "signals-blocked"}, os.Environ())
		}
	case "signals-blocked":
		err = tellSignals(&usr1)
	case "orphans":
		err = watchOrphans(args[1])
	case "dead":
		err = leaveDead(args[1])
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// tellSignals prints its PID, then when each signal came, without the Go runtime's own handling between.
func tellSignals(set *unix.Sigset_t) error {
	fd, err := unix.Signalfd(-1, set, unix.SFD_CLOEXEC)
	if err != nil {
		return err
	}
	fmt.Printf("%d 0\n", os.Getpid())
	for info := make([]byte, unsafe.Sizeof(unix.SignalfdSiginfo{})); ; {
		if _, err := unix.Read(fd, info); err != nil {
			return err
		}
		fmt.Printf("%d 0\n", monotonic())
	}
}

// watchOrphans runs a process that leaves dead children behind, and prints how long it took until they were all reaped,
// and how many were not after a while.
func watchOrphans(count string) error {
	out, err := exec.Command(selfExe, "@bench", "dead", count).Output()
	if err != nil {
		return err
	}
	left := strings.Fields(string(out)) // when it died, then its children's PIDs
	died, err := strconv.ParseInt(left[0], 10, 64)
	if err != nil {
		return err
	}
	left = left[1:]
	for monotonic()-died < int64(patience) {
		left = slices.DeleteFunc(left, func(pid string) bool {
			n, err := strconv.Atoi(pid)
			return err == nil && unix.Kill(n, 0) != nil
		})
		if len(left) == 0 {
			break
		}
		time.Sleep(200 * time.Microsecond)
	}
	fmt.Printf("%d %d\n", monotonic()-died, len(left))
	select {}
}

// leaveDead forks children that end at once, does not wait for them, and ends.
func leaveDead(count string) error {
	n, err := strconv.Atoi(count)
	if err != nil {
		return err
	}
	pids := make([]string, 1, n+1)
	for range n {
		pid := forkAndExit()
		if pid < 0 {
			return errors.New("no fork")
		}
		pids = append(pids, strconv.Itoa(pid))
	}
	pids[0] = strconv.FormatInt(monotonic(), 10)
	fmt.Println(strings.Join(pids, " "))
	os.Exit(0)
	return nil
}

// forkAndExit forks a copy of this thread that ends at once.
//
//go:norace
//go:nosplit
func forkAndExit() int {
	pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		return -1
	}
	if pid == 0 {
		for {
			unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
	}
	return int(pid)
}
