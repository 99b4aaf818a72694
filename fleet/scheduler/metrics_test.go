package scheduler

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/atoll-dev/atoll/fleet/placement"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

func TestDecisionsAreCounted(t *testing.T) {
	m := NewMetrics()
	decided(t, beginWith(t, Config{Metrics: m}, clusters+app), everything)
	if n := testutil.ToFloat64(m.decisions.WithLabelValues(placement.Placed)); n == 0 {
		t.Error("no decision was counted")
	}
	if n := testutil.CollectAndCount(m); n != 3 {
		t.Errorf("%d series, want one outcome, the histogram and the victims", n)
	}

	m = NewMetrics()
	beginWith(t, Config{Metrics: m}, app)
	fakeapi.Until(t, "a decision without clusters is counted", func() bool { return testutil.ToFloat64(m.decisions.WithLabelValues(placement.NoClusters)) > 0 })
}
