package clusters

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

func TestProbesAreCounted(t *testing.T) {
	s := open(t, map[string]string{"east": ""})
	s.waitReady("east", v1alpha1.ReasonClusterReady)
	probes := func(result string) float64 {
		return testutil.ToFloat64(s.metrics.probes.WithLabelValues("east", result))
	}
	fakeapi.Until(t, "a probe is counted", func() bool { return probes("ready") > 0 })
	contact := testutil.ToFloat64(s.metrics.contact.WithLabelValues("east"))
	if age := float64(s.clock.Now().Unix()) - contact; age < -1 || age > 60 {
		t.Errorf("the last contact was %v s ago", age)
	}
	s.id.Store("id-2")
	s.waitReady("east", v1alpha1.ReasonWrongCluster)
	fakeapi.Until(t, "another cluster is counted", func() bool { return probes("wrong_cluster") > 0 })
	s.metrics.forget("east")
	if n := testutil.CollectAndCount(s.metrics.contact); n != 0 {
		t.Errorf("%d series of a cluster that has left", n)
	}
}

func TestHeartbeatsAreContacts(t *testing.T) {
	s := prepare(t, map[string]string{"west": "id-1"})
	c := newController(t.Context(), s.session(t.Context()), s.serve, noNamespaces, s.metrics)
	c.heartbeats = &heartbeats{last: map[string]lastHeartbeat{}, clock: s.clock}
	hear := func(cluster string) {
		now := metav1.NewMicroTime(s.clock.Now())
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.HeartbeatLease(cluster), Labels: map[string]string{v1alpha1.HeartbeatLabel: cluster}},
			Spec: coordinationv1.LeaseSpec{RenewTime: &now}}
		if c.heartbeats.record(lease) {
			c.heartbeat(cluster)
		}
	}
	hear("west")
	if got := testutil.ToFloat64(s.metrics.contact.WithLabelValues("west")); int64(got) != s.clock.Now().Unix() {
		t.Errorf("the last contact was at %v", got)
	}
	hear("unknown")
	if n := testutil.CollectAndCount(s.metrics.contact); n != 1 {
		t.Errorf("%d series, want none of a cluster that has not joined", n)
	}
	s.metrics.end()
	if n := testutil.CollectAndCount(s.metrics.contact); n != 0 {
		t.Errorf("%d series after this server stopped leading", n)
	}
}
