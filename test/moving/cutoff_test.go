package moving

import (
	"context"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// A cluster is cut off in the middle of a move, and comes back: the one that the Deployment leaves, or the one that it
// goes to. Its Pods run on meanwhile. There are never fewer than wanted, and at last the Deployment runs once.
func TestCutOffMoves(t *testing.T) {
	if !*thorough {
		t.Skip("-thorough is not set")
	}
	s := whole(t)
	s.namespace(t, "cutoff")
	for _, tt := range []struct {
		what, cut string
		settings  string
		ends      string
	}{
		{"from a cluster that is back", east, `{"maxSurge": 1}`, west},
		{"to a cluster that is back", west, `{"maxSurge": 1}`, west},
		{"to a cluster until the deadline", west, `{"maxSurge": 1, "deadline": "5s"}`, east},
	} {
		t.Run(tt.what, func(t *testing.T) {
			d := deployment("cutoff", fmt.Sprintf("web-%d", len(tt.what)), 4, map[string]string{readyAfter: "1s"})
			d.Labels[v1alpha1.ClusterLabel] = east
			d.Annotations[v1alpha1.TransitionAnnotation] = tt.settings
			a := s.create(t, d)
			g := s.witness.guard(a, 4)
			s.label(t, a, west)
			eventually(t, "the move has begun", func(context.Context) error {
				if by := s.witness.ready(a); by[west] == 0 {
					return fmt.Errorf("ready Pods:%s", textOf(by))
				}
				return nil
			})
			heal := s.cut(t, tt.cut)
			s.awaitCondition(t, tt.cut, v1alpha1.ClusterReady, metav1.ConditionFalse, v1alpha1.ReasonClusterUnreachable)
			b, err := s.binding(t.Context(), t, deploymentKind, a)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("while %s is cut off: %v, %s; ready Pods:%s", tt.cut, inEffect(b), transitionText(b), textOf(s.witness.ready(a)))
			heal()
			s.awaitIn(t, deploymentKind, a, tt.ends)
			eventually(t, "it runs once", func(context.Context) error {
				if by := s.witness.existing(a); by[tt.ends] != 4 || len(by) != 1 {
					return fmt.Errorf("Pods exist:%s", textOf(by))
				}
				return nil
			})
			least, most := g.end(t)
			t.Logf("between %d and %d ready Pods", least, most)
		})
	}
}

// The process of a member is killed, objects of ten kinds fail over, and the member is started again on its own data.
// Its copies are removed without a request.
func TestKilledMember(t *testing.T) {
	if !*thorough {
		t.Skip("-thorough is not set")
	}
	s := whole(t)
	apps := s.applyKinds(t, "killed", *workloads)
	s.evictSoon(t, east)
	before := s.settled(t, "killed")
	if err := s.Pull(east); err != nil {
		t.Fatal(err)
	}
	restored := false
	restore := func(ctx context.Context) {
		if restored {
			return
		}
		restored = true
		if err := s.Return(ctx, east); err != nil {
			t.Errorf("start %s again: %v", east, err)
		}
	}
	t.Cleanup(func() { restore(context.Background()) })
	for a, kind := range apps {
		s.awaitElsewhere(t, []app{a}, kind.replicas)
	}
	restore(t.Context())
	returned := time.Now()
	after := s.settled(t, "killed")
	took := time.Since(returned)
	t.Logf("duplicates were gone %s after the cluster ran again", took.Round(100*time.Millisecond))
	if took > time.Minute {
		t.Errorf("duplicates ran for %s", took)
	}
	if left := leftOf(after); left > 0 || len(after) != len(before) {
		t.Errorf("%d objects of %d are still in %s, and there were %d", left, len(after), east, len(before))
	}
	for a, kind := range apps {
		pods, err := s.members[east].CoreV1().Pods(a.namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + a.name})
		if err != nil {
			t.Fatal(err)
		}
		if by := s.witness.ready(a); len(pods.Items) > 0 || by[west]+by[north] != kind.replicas {
			t.Errorf("%s has %d Pods in %s; ready Pods:%s", a, len(pods.Items), east, textOf(by))
		}
	}
	s.awaitCondition(t, east, v1alpha1.ClusterReady, metav1.ConditionTrue, "")
	s.neverHalted(t)
}
