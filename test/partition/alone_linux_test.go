package partition_test

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// giveUpLimit is how long kube-apiserver takes to give up a server behind it that does
// not answer: it looks every 30 s, and ends a silent connection after 45 s.
const giveUpLimit = 50 * time.Second

// A member in which no server of Atoll runs is cut off from all others. What is its own
// goes on, except that no namespace can be finished, because nobody tells whether
// anything is left in it. How soon shared reads fail is up to kube-apiserver.
func TestAMemberCutOffWithoutAServer(t *testing.T) {
	if *cutTime < giveUpLimit {
		t.Skipf("waits until kube-apiserver gives up its servers: it takes -time %s", giveUpLimit)
	}
	s := stretched(t)
	if _, err := write(t.Context(), s.letters(t, "west"), nil, "read-me", "please"); err != nil {
		t.Fatal(err)
	}
	giveBack := s.killServer(t, "east")
	shared := startAsker(t, s, "east", "read-me")
	eventually(t, failoverLimit, "east is led to other servers", func(ctx context.Context) error { return s.calls(ctx, t, "east", "west", "north") })
	o := startObserver(t, "east", s.letters(t, "east"))
	w := startWriter(t, s.letters(t, "west"), "alone")
	local := startReader(t, s.client(t, "east"))
	pass(t, 4*time.Second)
	before := local.check(t, "before the cut", samples(nil))

	heal := s.network.cut(t, "east", s.network.others("east")...)
	cut := time.Now()
	s.useLocally(t, "east", "stuck")
	pass(t, *cutTime-time.Since(cut))
	local.check(t, "during it", before)
	namespace, err := s.client(t, "east").CoreV1().Namespaces().Get(t.Context(), "stuck", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if reason := stuckBecause(namespace); reason != "DiscoveryFailed" {
		t.Errorf("a namespace waits because of %q", reason)
	}
	heal()
	healed := time.Now()

	newest := w.last()
	eventually(t, giveUpLimit, "the watch in east is up to date", func(context.Context) error { return o.saw(newest) })
	eventually(t, giveUpLimit, "east reads what is shared", func(context.Context) error { return answered(shared.between(healed, time.Now())) })
	s.namespaceGoes(t, "east", "stuck", 2*time.Minute)
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
	giveBack()
	w.end()
	eventually(t, failoverLimit, "the watch saw everything", func(context.Context) error { return o.saw(w.last()) })
	o.check(t, w)
	w.check(t)
}

func stuckBecause(namespace *corev1.Namespace) string {
	for _, c := range namespace.Status.Conditions {
		if c.Type == corev1.NamespaceDeletionDiscoveryFailure && c.Status == corev1.ConditionTrue {
			return c.Reason
		}
	}
	return ""
}
