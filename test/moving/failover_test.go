package moving

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/programs"
)

// evictAfter is how long clusters may be unreachable in these tests.
const evictAfter = 20 * time.Second

// preferring is a Placement for one cluster, east if possible. The last argument is the rest of its spec.
const preferring = `
apiVersion: fleet.atoll.dev/v1alpha1
kind: Placement
metadata: {name: one, namespace: %s}
spec:
  clusterCount: {max: 1}
  affinity: [{weight: 10, clusters: {names: [east]}}]
  %s
`

// prefer applies this policy, and waits until the scheduler has it: an object that it places before stays where it is.
func (s *stage) prefer(t *testing.T, namespace, more string) {
	t.Helper()
	s.apply(t, fmt.Sprintf(preferring, namespace, more))
	if _, err := programs.Run(t.Context(), s.dir, "kubectl", s.running(), "", "wait", "placement.fleet.atoll.dev/one", "-n", namespace, "--for=condition=Accepted", "--timeout=60s"); err != nil {
		t.Fatal(err)
	}
}

// evictSoon sets how long members may be unreachable, for the time of the test.
func (s *stage) evictSoon(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		s.setCluster(t, name, map[string]any{"evictAfter": evictAfter.String()}, map[string]any{"evictAfter": nil, "failover": nil})
	}
}

// cut cuts members off until the returned function is called, or the test ends.
func (s *stage) cut(t *testing.T, names ...string) (heal func()) {
	t.Helper()
	for _, name := range names {
		s.links[name].Cut()
	}
	heal = func() {
		for _, name := range names {
			s.links[name].Heal()
		}
	}
	t.Cleanup(func() {
		heal()
		for _, name := range names {
			eventually(t, name+" is Ready", func(context.Context) error {
				return s.condition(context.Background(), t, name, v1alpha1.ClusterReady, metav1.ConditionTrue, "")
			})
		}
	})
	return heal
}

// Many objects fail over from a cluster that is cut off, at a limited rate. It comes back, and all copies are gone without
// a person. Objects whose policy has failback return once; others stay where they are.
func TestFailover(t *testing.T) {
	s := whole(t)
	const (
		rate      = 2
		ofEach    = 6
		replicas  = 2
		returning = "returning"
		staying   = "staying"
	)
	s.evictSoon(t, east)
	s.setCluster(t, east, map[string]any{"failover": map[string]any{"rate": rate}}, map[string]any{})
	var guards []*guard
	apps := map[string][]app{}
	for namespace, more := range map[string]string{returning: "failback: {after: 5s}", staying: ""} {
		s.namespace(t, namespace)
		s.prefer(t, namespace, more)
		for i := range ofEach {
			a := app{namespace, fmt.Sprintf("web-%d", i)}
			d := deployment(a.namespace, a.name, replicas, nil)
			if _, err := s.client(t).AppsV1().Deployments(a.namespace).Create(t.Context(), d, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			apps[namespace] = append(apps[namespace], a)
		}
	}
	all := slices.Concat(apps[returning], apps[staying])
	for _, a := range all {
		s.awaitReady(t, a, replicas)
		s.awaitReported(t, a)
		s.awaitIn(t, deploymentKind, a, east)
		guards = append(guards, s.witness.guard(a, replicas))
	}

	heal := s.cut(t, east)
	s.awaitCondition(t, east, v1alpha1.ClusterReady, metav1.ConditionFalse, v1alpha1.ReasonClusterUnreachable)
	if *thorough {
		s.awaitElsewhere(t, all[:1], replicas)
		defer s.restart(t, s.killLeader(t))
	}
	s.awaitElsewhere(t, all, replicas)
	left := s.failovers(t, all)
	span := left[len(left)-1].Sub(left[0])
	t.Logf("%d objects left within %s", len(left), span)
	// The first ones may leave at once, and times are in whole seconds. A new leader's first turn comes at once.
	if least := time.Duration(len(all)-rate)*time.Second/rate - time.Second; span < least && !*thorough {
		t.Errorf("%d objects left within %s, which is more than %d a second: %v", len(all), span, rate, left)
	}
	heal()
	healed := time.Now()
	s.awaitCondition(t, east, v1alpha1.ClusterReady, metav1.ConditionTrue, "")
	ready := time.Now()
	eventually(t, "nothing runs twice", func(ctx context.Context) error {
		for _, a := range apps[staying] {
			if by := s.witness.existing(a); by[east] != 0 {
				return fmt.Errorf("%s has Pods:%s", a, textOf(by))
			}
		}
		return nil
	})
	t.Logf("duplicates were gone %s after the cluster was reachable, and %s after it was Ready", time.Since(healed).Round(100*time.Millisecond), time.Since(ready).Round(100*time.Millisecond))
	if took := time.Since(healed); took > time.Minute {
		t.Errorf("duplicates ran for %s", took)
	}
	for _, a := range apps[returning] {
		s.awaitIn(t, deploymentKind, a, east)
	}
	t.Logf("all had returned %s after the cluster was Ready", time.Since(ready).Round(100*time.Millisecond))
	eventually(t, "each runs once", func(ctx context.Context) error {
		for _, a := range all {
			by := s.witness.existing(a)
			if back := a.namespace == returning; len(by) != 1 || (by[east] == replicas) != back || by[east]+by[west]+by[north] != replicas {
				return fmt.Errorf("%s has Pods:%s", a, textOf(by))
			}
		}
		return nil
	})
	for _, a := range apps[returning] {
		b, err := s.binding(t.Context(), t, deploymentKind, a)
		if err != nil {
			t.Fatal(err)
		}
		if b.Spec.Home != nil || len(b.Status.Failovers) != 1 {
			t.Errorf("%s returned, and has the home %+v and the failovers %+v", a, b.Spec.Home, b.Status.Failovers)
		}
	}
	for _, g := range guards {
		g.end(t)
	}
	s.neverHalted(t)
}

// awaitElsewhere waits until all apps run in clusters other than east.
func (s *stage) awaitElsewhere(t *testing.T, all []app, replicas int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d run elsewhere", len(all)), func(context.Context) error {
		for _, a := range all {
			if by := s.witness.ready(a); by[west]+by[north] != replicas {
				return fmt.Errorf("%s has ready Pods:%s", a, textOf(by))
			}
		}
		return nil
	})
}

// failovers returns when each app left east, in order.
func (s *stage) failovers(t *testing.T, all []app) (left []time.Time) {
	t.Helper()
	for _, a := range all {
		eventually(t, a.String()+" records its failover", func(ctx context.Context) error {
			b, err := s.binding(ctx, t, deploymentKind, a)
			if err != nil {
				return err
			}
			if len(b.Status.Failovers) != 1 || b.Status.Failovers[0].Cluster != east {
				return fmt.Errorf("failovers are %+v", b.Status.Failovers)
			}
			left = append(left, b.Status.Failovers[0].Time.Time)
			return nil
		})
	}
	slices.SortFunc(left, time.Time.Compare)
	return left
}

// neverHalted fails the test if Atoll ever waited for a person before it deleted something.
func (s *stage) neverHalted(t *testing.T) {
	t.Helper()
	list, err := s.client(t).CoreV1().Events("").List(t.Context(), metav1.ListOptions{FieldSelector: "reason=" + v1alpha1.EventDeletionsHalted})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list.Items {
		t.Errorf("deletions were halted: %s", e.Message)
	}
}

// divided creates Deployments that run in all members, and returns their bindings and guards.
func (s *stage) divided(t *testing.T, namespace string, count int) (before map[string]*v1alpha1.ResourceBinding, guards []*guard) {
	t.Helper()
	s.namespace(t, namespace)
	for i := range count {
		const replicas = 6
		a := s.create(t, deployment(namespace, fmt.Sprintf("web-%d", i), replicas, nil))
		guards = append(guards, s.witness.guard(a, replicas))
	}
	eventually(t, "all are placed", func(ctx context.Context) (err error) {
		if before, err = s.bindings(ctx, t, namespace); err != nil {
			return err
		}
		var errs []error
		for _, b := range before {
			if b.Spec.Resource.Kind == "Deployment" {
				errs = append(errs, restsIn(b, east, north, west))
			}
		}
		return errors.Join(errs...)
	})
	return before, guards
}

// unmoved checks until some time after a cluster was lost that nothing moves.
func (s *stage) unmoved(t *testing.T, namespace string, before map[string]*v1alpha1.ResourceBinding, since time.Time) {
	t.Helper()
	awaitNothing(t, since.Add(2*evictAfter), "nothing moves", func(ctx context.Context) error {
		after, err := s.bindings(ctx, t, namespace)
		if err != nil {
			return nil // a server was killed at this moment
		}
		return sameIn(before, after)
	})
}

// Two of three clusters are cut off at once. Nothing moves, and both say that failovers are held.
func TestFailoverIsHeld(t *testing.T) {
	s := whole(t)
	lost := []string{east, west}
	before, guards := s.divided(t, "held", 4)
	s.evictSoon(t, lost...)
	heal := s.cut(t, lost...)
	var since time.Time
	for _, name := range lost {
		s.awaitCondition(t, name, v1alpha1.ClusterReady, metav1.ConditionFalse, v1alpha1.ReasonClusterUnreachable)
		s.awaitCondition(t, name, v1alpha1.ClusterFailoverHeld, metav1.ConditionTrue, v1alpha1.ReasonManyUnreachable)
		c, err := s.cluster(t.Context(), t, name)
		if err != nil {
			t.Fatal(err)
		}
		if at := c.Status.UnreachableSince; at == nil {
			t.Errorf("%s has no unreachableSince", name)
		} else if at.After(since) {
			since = at.Time
		}
	}
	s.unmoved(t, "held", before, since)
	heal()
	for _, name := range lost {
		s.awaitCondition(t, name, v1alpha1.ClusterReady, metav1.ConditionTrue, "")
		s.awaitCondition(t, name, v1alpha1.ClusterFailoverHeld, metav1.ConditionFalse, v1alpha1.ReasonFewUnreachable)
	}
	s.unmoved(t, "held", before, time.Time{})
	for _, g := range guards {
		g.end(t)
	}
}

// A cluster rejects Atoll's credentials. It is not Ready, and nothing leaves it.
func TestRejectedCredentials(t *testing.T) {
	s := whole(t)
	t.Parallel()
	before, guards := s.divided(t, "rejected", 4)
	s.evictSoon(t, north)
	s.authenticate(t, north, func(u *clientcmdapi.AuthInfo) { *u = clientcmdapi.AuthInfo{Token: "swordfish"} })
	restore := func() { s.authenticate(t, north, func(*clientcmdapi.AuthInfo) {}) }
	t.Cleanup(restore)
	s.awaitCondition(t, north, v1alpha1.ClusterReady, metav1.ConditionFalse, v1alpha1.ReasonInvalidKubeConfig)
	s.unmoved(t, "rejected", before, time.Now())
	restore()
	s.awaitCondition(t, north, v1alpha1.ClusterReady, metav1.ConditionTrue, "")
	s.unmoved(t, "rejected", before, time.Time{})
	for _, g := range guards {
		g.end(t)
	}
}

// authenticate has Atoll use other credentials for a member.
func (s *stage) authenticate(t *testing.T, name string, change func(*clientcmdapi.AuthInfo)) {
	t.Helper()
	kubeconfig, err := s.kubeconfigOver(name, change)
	if err != nil {
		t.Fatal(err)
	}
	patch := patchOf(t, map[string]any{"data": map[string][]byte{v1alpha1.KubeconfigSecretKey: kubeconfig}})
	// Not the test's context: cleanups call this, too.
	if _, err := s.client(t).CoreV1().Secrets(v1alpha1.SystemNamespace).
		Patch(context.Background(), "cluster-"+name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}
