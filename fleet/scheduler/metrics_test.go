package scheduler

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/atoll-dev/atoll/fleet/placement"
)

func TestDecisionsAreCounted(t *testing.T) {
	m := NewMetrics()
	decided(t, beginMeasured(t, nil, nil, m, func(string, []byte) {}, clusters+app), everything)
	if n := testutil.ToFloat64(m.decisions.WithLabelValues(placement.Placed)); n == 0 {
		t.Error("no decision was counted")
	}
	if n := testutil.CollectAndCount(m); n != 2 {
		t.Errorf("%d series, want one outcome and the histogram", n)
	}

	m = NewMetrics()
	beginMeasured(t, nil, nil, m, func(string, []byte) {}, app)
	for deadline := time.Now().Add(10 * time.Second); testutil.ToFloat64(m.decisions.WithLabelValues(placement.NoClusters)) == 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no decision without clusters was counted")
		}
	}
}
