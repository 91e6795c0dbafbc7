package supervisor

import (
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/etcd-warden/etcd-warden/ownership"
)

// metrics are what /metrics shows. What is a state is read off the status at each scrape; what is an event is counted
// when it happens. The registry is our own: linked libraries of etcd fill the default one with theirs.
type metrics struct {
	status *board
	polls  *prometheus.CounterVec // by verdict
	alarms *prometheus.CounterVec // by code
	exits  *prometheus.CounterVec // by status, as a shell says it
	finals *prometheus.CounterVec // tries of the final snapshot, by result
}

func newMetrics(b *board) *metrics {
	counter := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "etcd_warden", Name: name, Help: help}, []string{label})
	}
	m := &metrics{
		status: b,
		polls:  counter("owner_polls_total", "Polls of the owner record, by verdict.", "verdict"),
		alarms: counter("alarms_total", "Alarms raised, by code; see docs/ownership.md.", "code"),
		exits:  counter("child_exits_total", "Ends of the child that nobody asked for, by status (128+n for signal n).", "status"),
		finals: counter("final_attempts_total", "Tries to store the final snapshot, by result.", "result"),
	}
	return m
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry(), promhttp.HandlerOpts{})
}

// registry is made for the first who asks: a warden that nobody scrapes needs none.
func (m *metrics) registry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(m.polls, m.alarms, m.exits, m.finals, statusCollector{m.status},
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

func (m *metrics) exited(e Exit) { m.exits.WithLabelValues(strconv.Itoa(e.Status())).Inc() }

// statusCollector turns the status into gauges.
type statusCollector struct{ board *board }

func description(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("etcd_warden_"+name, help, labels, nil)
}

var (
	descBuild      = description("build_info", "Always 1; the version is the label.", "version")
	descPhase      = description("phase", "1 for the phase that the warden is in.", "phase")
	descReady      = description("ready", "1 while etcd serves and we are owner.")
	descUp         = description("child_up", "1 while the child runs.")
	descRestarts   = description("child_restarts_total", "Restarts of the child by the restart policy.")
	descState      = description("ownership_state", "1 for the state of ownership; see docs/ownership.md.", "state")
	descLease      = description("ownership_lease_seconds", "How long etcd may go on serving without another confirmation by DNS.")
	descGeneration = description("generation", "The generation of the local data, 0 when unknown.")
	descHead       = description("journal_head", "The sequence number of the journal's last entry as last read, by kind.", "kind")
	descPending    = description("final_pending", "1 while a final snapshot is owed and not stored.")
	descStep       = description("handover_step_seconds", "How long each step of the last handover took.", "step")
	descStored     = description("handover_stored_bytes", "Bytes of the final snapshot that left for the store so far.")
)

// ownershipStates are all states, so that a scrape has a 0 for each that is not.
var ownershipStates = []ownership.State{ownership.Unknown, ownership.Owner, ownership.Suspect, ownership.Fencing, ownership.Fenced,
	ownership.Isolated, ownership.Finalizing, ownership.Finalized, ownership.Superseded, ownership.WaitFinal, ownership.Claiming}

// Describe implements prometheus.Collector.
func (c statusCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descBuild, descPhase, descReady, descUp, descRestarts, descState, descLease, descGeneration, descHead,
		descPending, descStep, descStored, descSnapshots, descSnapshotRevision, descSnapshotTime, descSnapshotTook} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c statusCollector) Collect(out chan<- prometheus.Metric) {
	st := c.board.read()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(descBuild, 1, st.Version)
	for p := Booting; p <= Ended; p++ {
		gauge(descPhase, truth(st.Phase == p), p.String())
	}
	gauge(descReady, truth(st.Ready))
	gauge(descUp, truth(st.Child.PID != 0))
	out <- prometheus.MustNewConstMetric(descRestarts, prometheus.CounterValue, float64(st.Child.Restarts))
	if o := st.Owner; o != nil {
		for _, state := range ownershipStates {
			gauge(descState, truth(o.State == string(state)), string(state))
		}
		gauge(descLease, float64(o.LeaseLeftMS)/1000)
		gauge(descGeneration, float64(o.Generation))
		if o.HeadSeq > 0 {
			gauge(descHead, float64(o.HeadSeq), o.HeadKind)
		}
	}
	collectSnapshots(out, st.Snapshots)
	if h := st.Handover; h != nil {
		gauge(descPending, truth(h.Step != handoverDone))
		gauge(descStored, float64(h.StoredBytes))
		for step, ms := range h.StepsMS {
			gauge(descStep, float64(ms)/1000, step)
		}
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
