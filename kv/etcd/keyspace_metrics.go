package etcd

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/atoll-dev/atoll/kv"
)

// KeyspaceMetrics asks a keyspace how it is when the metrics are read.
type KeyspaceMetrics struct {
	ks                                                       kv.Keyspace
	up, revision, compacted, size, sizeUse, changes, unswept *prometheus.Desc
}

// historian is a keyspace that can tell how much history it keeps.
type historian interface {
	History(ctx context.Context) (kv.History, error)
}

// scrapeTimeout bounds how long a sick database can hold up a scrape.
const scrapeTimeout = 5 * time.Second

// NewKeyspaceMetrics makes metrics of ks. A Server has those of its own keyspace.
func NewKeyspaceMetrics(ks kv.Keyspace) *KeyspaceMetrics {
	desc := func(name, help string) *prometheus.Desc { return prometheus.NewDesc("atoll_kv_"+name, help, nil, nil) }
	return &KeyspaceMetrics{
		ks:        ks,
		up:        desc("up", "1 if the keyspace answers."),
		revision:  desc("revision", "Revision that the keyspace is at."),
		compacted: desc("compacted_revision", "Last compaction revision, 0 if there was none."),
		size:      desc("db_size_bytes", "What the database uses on disk."),
		sizeUse:   desc("db_size_in_use_bytes", "What of it holds data."),
		changes:   desc("history_changes", "Changes since the compaction revision, which can be read and watched."),
		unswept:   desc("history_unswept_changes", "Changes up to the compaction revision whose space is still to be given back."),
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
	h, ok := c.ks.(historian)
	if !ok {
		return
	}
	if kept, err := h.History(ctx); err == nil {
		gauge(c.changes, kept.Changes)
		gauge(c.unswept, kept.Unswept)
	}
}
