package supervisor

import "github.com/prometheus/client_golang/prometheus"

var (
	descSnapshots        = description("snapshots_total", "Scheduled snapshots, by result: taken, failed, skipped.", "result")
	descSnapshotRevision = description("snapshot_last_revision", "The revision of the last scheduled snapshot.")
	descSnapshotTime     = description("snapshot_last_timestamp_seconds", "When the last scheduled snapshot was stored, in Unix time; 0 before the first.")
	descSnapshotTook     = description("snapshot_last_duration_seconds", "How long the last scheduled snapshot took.")
)

// collectSnapshots shows nothing where there is no schedule.
func collectSnapshots(out chan<- prometheus.Metric, s *SnapshotStatus) {
	if s == nil {
		return
	}
	for result, n := range map[string]int{"taken": s.Taken, "failed": s.Failed, "skipped": s.Skipped} {
		out <- prometheus.MustNewConstMetric(descSnapshots, prometheus.CounterValue, float64(n), result)
	}
	at := 0.0
	if !s.LastAt.IsZero() {
		at = float64(s.LastAt.UnixMilli()) / 1000
	}
	for desc, v := range map[*prometheus.Desc]float64{descSnapshotRevision: float64(s.LastRevision), descSnapshotTime: at, descSnapshotTook: float64(s.LastTookMS) / 1000} {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, v)
	}
}
