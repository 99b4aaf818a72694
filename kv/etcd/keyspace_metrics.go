package etcd

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/atoll-dev/atoll/kv"
)

// KeyspaceMetrics queries a keyspace when the metrics are read.
type KeyspaceMetrics struct {
	ks                                                       kv.Keyspace
	up, revision, compacted, size, sizeUse, changes, unswept *prometheus.Desc
}

// historyReporter is a keyspace that can report how much history it keeps.
type historyReporter interface {
	History(ctx context.Context) (kv.History, error)
}

// scrapeTimeout bounds how long a slow database can delay a scrape.
const scrapeTimeout = 5 * time.Second

// NewKeyspaceMetrics creates metrics of ks. A Server already has those of its own keyspace.
func NewKeyspaceMetrics(ks kv.Keyspace) *KeyspaceMetrics {
	desc := func(name, help string) *prometheus.Desc { return prometheus.NewDesc("atoll_kv_"+name, help, nil, nil) }
	return &KeyspaceMetrics{
		ks:        ks,
		up:        desc("up", "1 if the keyspace answers."),
		revision:  desc("revision", "Current revision of the keyspace."),
		compacted: desc("compacted_revision", "Last compaction revision, 0 if there was none."),
		size:      desc("db_size_bytes", "Size of the database on disk."),
		sizeUse:   desc("db_size_in_use_bytes", "Part of the database's size that holds data."),
		changes:   desc("history_changes", "Changes since the compaction revision, which can be read and watched."),
		unswept:   desc("history_unswept_changes", "Changes up to the compaction revision whose space is not freed yet."),
	}
}

// Describe implements prometheus.Collector.
func (c *KeyspaceMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.up, c.revision, c.compacted, c.size, c.sizeUse, c.changes, c.unswept} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *KeyspaceMetrics) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	gauge := func(d *prometheus.Desc, v int64) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v))
	}
	st, err := c.ks.Status(ctx)
	if err != nil {
		gauge(c.up, 0)
		return
	}
	gauge(c.up, 1)
	gauge(c.revision, st.Revision)
	gauge(c.compacted, st.Compacted)
	gauge(c.size, st.Size)
	gauge(c.sizeUse, st.SizeInUse)
	h, ok := c.ks.(historyReporter)
	if !ok {
		return
	}
	if kept, err := h.History(ctx); err == nil {
		gauge(c.changes, kept.Changes)
		gauge(c.unswept, kept.Unswept)
	}
}
