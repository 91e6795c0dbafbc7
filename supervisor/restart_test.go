package supervisor

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestRestartDecisions(t *testing.T) {
	p := RestartPolicy{Mode: RestartOnFailure, First: time.Second, Longest: 10 * time.Second, Jitter: 0.2, GoodRun: time.Minute, Burst: 6}
	always := p
	always.Mode = RestartAlways
	crash, clean := Exit{Code: 2}, Exit{}
	for _, c := range []struct {
		name     string
		policy   RestartPolicy
		failures int
		exit     Exit
		ran      time.Duration
		random   float64
		want     Restart
	}{
		{"first", p, 0, crash, time.Second, .5, Restart{Again: true, Delay: time.Second, Failures: 1}},
		{"doubles", p, 3, crash, time.Second, .5, Restart{Again: true, Delay: 8 * time.Second, Failures: 4}},
		{"is bounded", p, 5, crash, time.Second, .5, Restart{Again: true, Delay: 10 * time.Second, Failures: 6}},
		{"jitter down", p, 0, crash, time.Second, 0, Restart{Again: true, Delay: 800 * time.Millisecond, Failures: 1}},
		{"jitter up", p, 0, crash, time.Second, 1, Restart{Again: true, Delay: 1200 * time.Millisecond, Failures: 1}},
		{"a good run forgets", p, 6, crash, time.Minute, .5, Restart{Again: true, Delay: time.Second, Failures: 1}},
		{"a burst ends", p, 6, crash, time.Second, .5, Restart{Failures: 6, Reason: "it ended 7 times in a row without a good run"}},
		{"good end", p, 0, clean, time.Second, .5, Restart{Reason: "it ended well"}},
		{"good end, always", always, 0, clean, time.Second, .5, Restart{Again: true, Delay: time.Second, Failures: 1}},
		{"signal", p, 0, Exit{Signal: unix.SIGKILL}, time.Second, .5, Restart{Again: true, Delay: time.Second, Failures: 1}},
		{"a stranger's TERM is a failure", p, 0, Exit{Signal: unix.SIGTERM}, time.Second, .5, Restart{Again: true, Delay: time.Second, Failures: 1}},
		{"Ctrl-C", p, 0, Exit{Signal: unix.SIGINT}, time.Second, .5, Restart{Reason: "it was interrupted"}},
		{"our stop, always", always, 0, Exit{Signal: unix.SIGTERM, Stopped: true}, time.Second, .5, Restart{Reason: "the stop was asked for"}},
		{"never", RestartPolicy{Mode: RestartNever}, 0, crash, time.Second, .5, Restart{Reason: "restart is off"}},
		{"zero policy", RestartPolicy{}, 0, crash, time.Second, .5, Restart{Reason: "restart is off"}},
	} {
		if got := c.policy.Decide(c.failures, c.exit, c.ran, c.random); got != c.want {
			t.Errorf("%s:\n got %+v\nwant %+v", c.name, got, c.want)
		}
	}
}

// No number of failures may overflow the delay into the past: that would be a busy loop of starts.
func TestRestartDelayStaysInBounds(t *testing.T) {
	p := DefaultRestartPolicy()
	for failures := range 10000 {
		d := p.Decide(failures, Exit{Code: 1}, 0, float64(failures%11)/10).Delay
		if d < p.First*8/10 || d > p.Longest*12/10 {
			t.Fatalf("after %d failures: %s", failures, d)
		}
	}
}

func TestRestartPolicyRefusesWhatCannotBeMeant(t *testing.T) {
	if _, err := ParseRestart("sometimes"); err == nil || !strings.Contains(err.Error(), "never, on-failure or always") {
		t.Errorf("got %v", err)
	}
	for mode, change := range map[string]func(*RestartPolicy){
		"first": func(p *RestartPolicy) { p.First = 0 }, "longest": func(p *RestartPolicy) { p.Longest = p.First - 1 },
		"jitter": func(p *RestartPolicy) { p.Jitter = 1.5 }, "good run": func(p *RestartPolicy) { p.GoodRun = -1 },
		"burst": func(p *RestartPolicy) { p.Burst = -1 },
	} {
		p := DefaultRestartPolicy()
		change(&p)
		if p.Validate() == nil {
			t.Errorf("a wrong %s was accepted", mode)
		}
	}
}

// A child that crashes is started again, in a bounded burst, with what it left cleared away first.
func TestRestartAfterFailureUntilTheBurstEnds(t *testing.T) {
	w := startInit(t, append([]string{"-restart", "on-failure", "-burst", "3"}, shell("echo run; exit 4")...))
	if got := w.code(); got != 4 {
		t.Errorf("got %d, want the last child's 4", got)
	}
	runs := 0
	for _, l := range w.all() {
		if l == "run" {
			runs++
		}
	}
	if runs != 4 {
		t.Errorf("got %d runs, want the first and 3 more", runs)
	}
}

// A stop that was asked for is never answered with a restart.
func TestNoRestartAfterARequestedStop(t *testing.T) {
	w := startInit(t, append([]string{"-restart", "always"}, visible(t, "reraise")...))
	w.ready()
	w.signal(unix.SIGTERM)
	if got := w.code(); got != 0 {
		t.Errorf("got %d, want 0", got)
	}
	for _, l := range w.all() {
		if strings.HasPrefix(l, "ready") {
			t.Error("the child was started again")
		}
	}
}
