package moving

import (
	"context"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"k8s.io/client-go/dynamic"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// halfAtOnce lets a move be done in two steps, so that slow Pods do not make a test take minutes.
const halfAtOnce = `{"maxSurge": "50%"}`

// other returns the cluster of two that a Deployment goes to next.
func other(cluster string) string {
	if cluster == east {
		return west
	}
	return east
}

// A Deployment moves between two clusters, again and again. Its Pods take 3 to 8 s to become ready, and there are never
// fewer than wanted.
func TestMoves(t *testing.T) {
	s := whole(t)
	t.Parallel()
	s.namespace(t, "moves")
	d := deployment("moves", "web", 4, slowly())
	d.Labels[v1alpha1.ClusterLabel] = east
	d.Annotations[v1alpha1.TransitionAnnotation] = halfAtOnce
	a := s.create(t, d)
	at := east
	g := s.witness.guard(a, 4)
	for range *moves {
		at = other(at)
		began := time.Now()
		s.atoll(t, "move", "deployment/web", "-n", "moves", "--to", at)
		t.Logf("moved to %s in %s", at, time.Since(began).Round(100*time.Millisecond))
		if by := s.witness.existing(a); by[at] < 4 {
			t.Errorf("the command ended, and Pods exist:%s", textOf(by))
		}
	}
	s.awaitIn(t, deploymentKind, a, at)
	eventually(t, "the other cluster has no Pods", func(context.Context) error {
		if by := s.witness.existing(a); by[at] != 4 || len(by) != 1 {
			return fmt.Errorf("Pods exist:%s", textOf(by))
		}
		return nil
	})
	least, most := g.end(t)
	t.Logf("%d moves, between %d and %d ready Pods", *moves, least, most)
}

// The leading server is killed in each phase of a move. Another one completes it, and there are never fewer ready Pods
// than wanted.
func TestMovesOfKilledLeaders(t *testing.T) {
	s := whole(t)
	t.Parallel()
	s.namespace(t, "kills")
	d := deployment("kills", "web", 4, slowly())
	d.Labels[v1alpha1.ClusterLabel] = east
	d.Annotations[v1alpha1.TransitionAnnotation] = `{"maxSurge": "50%", "soak": "2s"}`
	a := s.create(t, d)
	phases := []v1alpha1.TransitionPhase{v1alpha1.PhaseGrowing, v1alpha1.PhaseSoaking, v1alpha1.PhaseShrinking, v1alpha1.PhaseWaiting}
	at := east
	for i := range *moves {
		phase := phases[i%len(phases)]
		at = other(at)
		g := s.witness.guard(a, 4)
		reached := s.awaitPhase(t, a, phase)
		s.label(t, a, at)
		<-reached
		killed := s.killLeader(t)
		began := time.Now()
		s.awaitIn(t, deploymentKind, a, at)
		took := time.Since(began)
		least, most := g.end(t)
		t.Logf("%s killed in phase %s: done %s later, between %d and %d ready Pods", s.Servers()[killed], phase, took.Round(100*time.Millisecond), least, most)
		s.restart(t, killed)
	}
}

// awaitPhase returns a channel that is closed when the transition of a Deployment has a phase.
func (s *stage) awaitPhase(t *testing.T, a app, phase v1alpha1.TransitionPhase) <-chan struct{} {
	t.Helper()
	config := s.config(t)
	config.Timeout = 0 // a watch goes on for as long as it takes
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), settle)
	watch, err := client.Resource(v1alpha1.ResourceBindingResource).Namespace(a.namespace).
		Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + v1alpha1.BindingName(deploymentKind, a.name)})
	if err != nil {
		t.Fatal(err)
	}
	reached := make(chan struct{})
	go func() {
		defer cancel()
		defer close(reached)
		defer watch.Stop()
		for e := range watch.ResultChan() {
			u, ok := e.Object.(*unstructured.Unstructured)
			b := &v1alpha1.ResourceBinding{}
			if !ok || runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, b) != nil {
				continue
			}
			if st := b.Status.Transition; st != nil && st.Phase == phase {
				return
			}
		}
		t.Errorf("%s did not reach phase %s", a, phase)
	}()
	return reached
}
