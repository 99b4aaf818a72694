package etcd

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/atoll-dev/atoll/kv/mvcc"
)

// EngineMetrics exports an engine's observations as metrics. Open the engine with Observer,
// and register the metrics in a registry:
//
//	m := etcd.NewEngineMetrics()
//	ks, err := mvcc.Open(ctx, table, db, mvcc.Options{Observer: m.Observer()})
//	…
//	server.Registry().MustRegister(m)
type EngineMetrics struct {
	commitSeconds, commitWrites, sweepSeconds       prometheus.Histogram
	changes, failedCommits, failedSweeps, lag, cuts prometheus.Counter
	optimistic                                      *prometheus.CounterVec
}

// NewEngineMetrics creates metrics that are all zero.
func NewEngineMetrics() *EngineMetrics {
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: "atoll_kv_" + name, Help: help, Buckets: buckets})
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "atoll_kv_" + name, Help: help})
	}
	seconds := prometheus.ExponentialBuckets(0.0001, 2, 18)
	return &EngineMetrics{
		commitSeconds: histogram("commit_seconds", "Duration of commits to the database.", seconds),
		commitWrites:  histogram("commit_writes", "Client writes that shared a commit.", prometheus.ExponentialBuckets(1, 2, 12)),
		sweepSeconds:  histogram("sweep_seconds", "Duration of steps of removing compacted history.", seconds),
		changes:       counter("changes_total", "Committed changes of keys."),
		failedCommits: counter("commit_failures_total", "Commits that failed, or whose outcome is unknown."),
		failedSweeps:  counter("sweep_failures_total", "Steps of removing compacted history that failed."),
		lag:           counter("watch_lags_total", "Times that a watch fell behind and read history."),
		optimistic: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "atoll_kv_optimistic_commits_total",
			Help: "Optimistic commits, made without locking the keyspace because other servers write to it: done, or repeated because of a conflict with another server."},
			[]string{"outcome"}),
		cuts: counter("history_cuts_total", "Times that history was compacted early because it had too many changes."),
	}
}

// Observer returns the observer for the engine's options.
func (m *EngineMetrics) Observer() mvcc.Observer {
	return mvcc.Observer{
		Commit: func(writes, changes int, took time.Duration, err error) {
			if err != nil {
				m.failedCommits.Inc()
				return
			}
			m.commitSeconds.Observe(took.Seconds())
			m.commitWrites.Observe(float64(writes))
			m.changes.Add(float64(changes))
		},
		WatchLag:        func(int64) { m.lag.Inc() },
		EarlyCompaction: func() { m.cuts.Inc() },
		Optimistic: func(done bool) {
			outcome := "again"
			if done {
				outcome = "done"
			}
			m.optimistic.WithLabelValues(outcome).Inc()
		},
		Sweep: func(took time.Duration, _ bool, err error) {
			if err != nil {
				m.failedSweeps.Inc()
				return
			}
			m.sweepSeconds.Observe(took.Seconds())
		},
	}
}

func (m *EngineMetrics) all() []prometheus.Collector {
	return []prometheus.Collector{
		m.commitSeconds, m.commitWrites, m.sweepSeconds, m.changes, m.failedCommits, m.failedSweeps, m.lag, m.cuts, m.optimistic,
	}
}

// Describe implements prometheus.Collector.
func (m *EngineMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, c := range m.all() {
		c.Describe(out)
	}
}

// Collect implements prometheus.Collector.
func (m *EngineMetrics) Collect(out chan<- prometheus.Metric) {
	for _, c := range m.all() {
		c.Collect(out)
	}
}
