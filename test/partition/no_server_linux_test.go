package partition_test

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// giveUpLimit is the time after which kube-apiserver gives up an aggregated server that does not answer:
// it probes every 30 s, and closes a silent connection after 45 s.
const giveUpLimit = 50 * time.Second

// TestMemberWithoutServerCutOff cuts off a member that has no server of Atoll. Local kinds keep working,
// but no namespace can be deleted, because the namespace controller cannot discover the shared kinds.
// How soon shared reads fail depends on kube-apiserver.
func TestMemberWithoutServerCutOff(t *testing.T) {
	if *cutTime < giveUpLimit {
		t.Skipf("waits until kube-apiserver gives up aggregated servers: run with -time %s", giveUpLimit)
	}
	s := stretched(t)
	if _, err := write(t.Context(), s.notes(t, "west"), nil, "read-me", "please"); err != nil {
		t.Fatal(err)
	}
	restore := s.killServer(t, "east")
	shared := startSharedReader(t, s, "east", "read-me")
	eventually(t, failoverLimit, "east uses the other servers", func(ctx context.Context) error { return s.usesServers(ctx, t, "east", "west", "north") })
	o := startObserver(t, "east", s.notes(t, "east"))
	w := startWriter(t, s.notes(t, "west"), "alone")
	local := startReader(t, s.client(t, "east"))
	pass(t, 4*time.Second)
	before := local.check(t, "before the cut", samples(nil))

	heal := s.network.cut(t, "east", s.network.others("east")...)
	cut := time.Now()
	s.useLocally(t, "east", "stuck")
	pass(t, *cutTime-time.Since(cut))
	local.check(t, "during the cut", before)
	namespace, err := s.client(t, "east").CoreV1().Namespaces().Get(t.Context(), "stuck", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if reason := deletionFailure(namespace); reason != "DiscoveryFailed" {
		t.Errorf("the deletion of a namespace waits because of %q", reason)
	}
	heal()
	healed := time.Now()

	newest := w.last()
	eventually(t, giveUpLimit, "the watch in east has caught up", func(context.Context) error { return o.saw(newest) })
	eventually(t, giveUpLimit, "east reads shared objects", func(context.Context) error { return answered(shared.between(healed, time.Now())) })
	s.waitDeleted(t, "east", "stuck", 2*time.Minute)
	t.Logf("the first event in east came %s after the end of the cut", o.firstAfter(healed).Round(time.Millisecond))
	var early, late samples
	for _, a := range shared.between(cut, healed.Add(-time.Second)) {
		if a.began.Sub(cut) < giveUpLimit {
			early = append(early, a.took)
			continue
		}
		late = append(late, a.took)
		if !apierrors.IsServiceUnavailable(a.err) || a.took > time.Second {
			t.Errorf("%s after the cut: after %s: %v", a.began.Sub(cut).Round(time.Millisecond), a.took, a.err)
		}
	}
	t.Logf("shared reads in the first %s: %v; later: %v", giveUpLimit, early, late)
	restore()
	w.end()
	eventually(t, failoverLimit, "the watch got all events", func(context.Context) error { return o.saw(w.last()) })
	o.check(t, w)
	w.check(t)
}

func deletionFailure(namespace *corev1.Namespace) string {
	for _, c := range namespace.Status.Conditions {
		if c.Type == corev1.NamespaceDeletionDiscoveryFailure && c.Status == corev1.ConditionTrue {
			return c.Reason
		}
	}
	return ""
}
