package etcd

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
)

// quotaMetrics reports the quota under etcd's name, so that etcd's dashboards and alerts
// work, and reads the alarm when the metrics are read.
type quotaMetrics struct {
	f            *adapter
	quota        int64
	bytes, alarm *prometheus.Desc
}

func newQuotaMetrics(f *adapter, quota int64) *quotaMetrics {
	return &quotaMetrics{
		f: f, quota: quota,
		bytes: prometheus.NewDesc("etcd_server_quota_backend_bytes", "Quota of the database in bytes, 0 for no quota.", nil, nil),
		alarm: prometheus.NewDesc("atoll_kv_alarm_nospace", "1 if the NOSPACE alarm is raised, so that writes are refused.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *quotaMetrics) Describe(out chan<- *prometheus.Desc) {
	out <- c.bytes
	out <- c.alarm
}

// Collect implements prometheus.Collector.
func (c *quotaMetrics) Collect(out chan<- prometheus.Metric) {
	out <- prometheus.MustNewConstMetric(c.bytes, prometheus.GaugeValue, float64(c.quota))
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	if alarms, err := c.f.listAlarms(ctx); err == nil {
		out <- prometheus.MustNewConstMetric(c.alarm, prometheus.GaugeValue, float64(len(alarms)))
	}
}
