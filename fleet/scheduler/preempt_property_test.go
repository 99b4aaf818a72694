package scheduler

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/placement"
)

// contest is a random fleet of small clusters, and objects of several priorities that want more than there is.
type contest struct {
	t     *testing.T
	seed  uint64
	r     *rand.Rand
	state *State
	cpu   map[object]int64
	size  map[string]int64 // CPUs of a cluster's only node
}

func decode[T any](t *testing.T, data string) *T {
	t.Helper()
	out := new(T)
	if err := json.Unmarshal([]byte(data), out); err != nil {
		t.Fatalf("%v in %s", err, data)
	}
	return out
}

func newContest(t *testing.T, seed uint64) *contest {
	c := &contest{t: t, seed: seed, r: rand.New(rand.NewPCG(seed, 5)), cpu: map[object]int64{}, size: map[string]int64{},
		state: &State{At: time.Date(2026, 2, 1, 0, 0, 0, 0, time.UTC), Namespaces: map[string]map[string]string{"shop": {}}, bindings: map[string]*v1alpha1.ResourceBinding{},
			knowledge: interpret.BuiltIn(), accounts: newAccountRoles(), classes: map[string]*unstructured.Unstructured{}}}
	for i := range 1 + c.r.IntN(4) {
		name := fmt.Sprint("c", i)
		c.size[name] = 4 + c.r.Int64N(9)
		c.state.Clusters = append(c.state.Clusters, decode[v1alpha1.Cluster](t, fmt.Sprintf(`{"metadata":{"name":"%s","creationTimestamp":"2026-01-0%dT00:00:00Z"},
			"status":{"conditions":[{"type":"Ready","status":"True","reason":"ClusterReady","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`, name, i+1)))
	}
	for i := range 4 {
		name := fmt.Sprint("p", i)
		c.state.classes[name] = &unstructured.Unstructured{Object: map[string]any{"value": int64(i * 10)}}
	}
	k, _ := c.state.Kind(schema.GroupKind{Group: "apps", Kind: "Deployment"})
	for i := range 2 + c.r.IntN(6) {
		name, cpu := fmt.Sprint("o", i), 1+c.r.Int64N(4)
		u := &unstructured.Unstructured{}
		if err := u.UnmarshalJSON(fmt.Appendf(nil, `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"%[1]s","namespace":"shop","uid":"%[1]s"},"spec":{"replicas":%[2]d,
			"template":{"metadata":{"labels":{"app":"%[1]s"}},"spec":{"priorityClassName":"p%[3]d","containers":[{"name":"c","resources":{"requests":{"cpu":"%[4]d"}}}]}}}}`, name, 1+c.r.IntN(8), c.r.IntN(4), cpu)); err != nil {
			t.Fatal(err)
		}
		p := Placed{k, u}
		c.state.Placed = append(c.state.Placed, p)
		c.cpu[refOf(k.GroupKind(), u)] = cpu
		if spec := []string{"", "", `"mode":"Single"`, `"mode":"Duplicated"`, `"clusters":{"names":["c0","c1"]}`, `"clusterCount":{"max":2}`, `"division":{"by":"Fewest"}`, `"division":{"by":"Capacity"}`, `"mode":"Single","suspend":true`}[c.r.IntN(9)]; spec != "" {
			c.state.Placements = append(c.state.Placements, decode[v1alpha1.Placement](t, fmt.Sprintf(`{"metadata":{"name":"%[1]s","namespace":"shop","uid":"%[1]s"},"spec":{"selector":{"names":["%[1]s"]},%[2]s}}`, name, spec)))
		}
	}
	return c
}

// used returns the CPUs of the fleet's pods in a cluster.
func (c *contest) used(cluster string) (n int64) {
	for _, p := range c.state.Placed {
		b := c.state.bindings[p.Key()]
		if b == nil {
			continue
		}
		if share, has := b.Share(cluster); has {
			o := objectOf(p.Kind, p.Object)
			s := placement.Share{Whole: share.Replicas == nil}
			if share.Replicas != nil {
				s.Replicas = *share.Replicas
			}
			n += int64(times(&o, s)) * c.cpu[boundBy(b)]
		}
	}
	return n
}

// report has each cluster report its node, with all pods that are placed there.
func (c *contest) report() {
	c.state.At = c.state.At.Add(time.Second)
	for _, cluster := range c.state.Clusters {
		used := c.used(cluster.Name)
		if used > c.size[cluster.Name] {
			c.t.Fatalf("seed %d: %d CPUs are used in %s, which has %d", c.seed, used, cluster.Name, c.size[cluster.Name])
		}
		cluster.Status.NodeShapes = decode[v1alpha1.NodeShapes](c.t, fmt.Sprintf(`{"shapes":[{"count":1,"allocatable":{"cpu":"%d","pods":"200"},"free":{"cpu":"%d","pods":"100"}}]}`, c.size[cluster.Name], c.size[cluster.Name]-used))
	}
}

// decideAll decides about each object in turn, and returns what changes. An object of a higher priority that waits makes
// others leave.
func (c *contest) decideAll() (changed []string) {
	for _, p := range c.state.Placed {
		c.report()
		snap := c.state.Snapshot()
		b := c.state.bindings[p.Key()]
		a := snap.Schedule(p.Kind, p.Object, b)
		snap.reserve(&a)
		if snap.mayPreempt(&a, p.Object, b) {
			if chosen := snap.preempt(&a, p.Kind, p.Object); chosen != nil {
				c.checkVictims(snap, p, &a, chosen)
				snap.accept(&a, chosen)
			}
		}
		d := previewed{Placed: p, binding: b, result: a}
		after := d.afterwards(a.Preemption)
		if b == nil {
			after.CreationTimestamp = metav1.NewTime(c.state.At)
		}
		for _, share := range after.Spec.Clusters { // its syncers are up to date
			after.Status.Clusters = append(after.Status.Clusters, v1alpha1.ClusterState{Name: share.Name, Replicas: share.Replicas, Health: v1alpha1.Healthy})
		}
		if b == nil || !sameDecision(b.Spec, after.Spec) || (b.Spec.Preemption == nil) != (after.Spec.Preemption == nil) {
			changed = append(changed, fmt.Sprintf("%s: %s, %s", p.Object.GetName(), describe(after.Spec.Clusters), a.Condition.Message))
		}
		c.state.bindings[p.Key()] = after
	}
	return changed
}

func (c *contest) waits(p Placed) bool {
	a := c.state.Snapshot().Schedule(p.Kind, p.Object, c.state.bindings[p.Key()])
	return a.Decision.Waits
}

// checkVictims: no victim has the same or a higher priority, or a suspended policy, and none of them could stay.
func (c *contest) checkVictims(snap *Snapshot, p Placed, a *Result, chosen *v1alpha1.Preemption) {
	own := snap.Tenants.priorityOf(p.Object).value
	fits := func(victims []v1alpha1.PreemptionVictim) int64 {
		next := snap.nextRequest(a)
		var leaving []placement.Leaving
		for _, v := range victims {
			victim, _ := snap.Tenants.placed(victimOf(&v))
			o := objectOf(victim.Kind, victim.Object)
			share := placement.Share{Whole: v.Replicas == nil}
			if v.Replicas != nil {
				share.Replicas = *v.Replicas
			}
			leaving = append(leaving, placement.Leaving{Cluster: v.Cluster, Object: &o, Share: share})
		}
		next.Room = snap.Rooms.After(next.Room, leaving)
		d := placement.Decide(next)
		return placedBy(&d)
	}
	goal := fits(chosen.Victims)
	if goal <= placedBy(&a.Decision) {
		c.t.Fatalf("seed %d: %s gains nothing by %v", c.seed, p.Object.GetName(), chosen.Victims)
	}
	for i, v := range chosen.Victims {
		victim, _ := snap.Tenants.placed(victimOf(&v))
		if its := snap.Tenants.priorityOf(victim.Object).value; its >= own {
			c.t.Fatalf("seed %d: %v with priority %d leaves for %d", c.seed, v, its, own)
		}
		if snap.Choose(victim.Kind, victim.Object).Policy.Suspended() {
			c.t.Fatalf("seed %d: %v leaves, and is suspended", c.seed, v)
		}
		fewer := slices.Clone(chosen.Victims)
		if v.Replicas == nil || *v.Replicas == 1 {
			fewer = slices.Delete(fewer, i, i+1)
		} else {
			less := *v.Replicas - 1
			fewer[i].Replicas = &less
		}
		if fits(fewer) >= goal {
			c.t.Fatalf("seed %d: %s does not need all of %v", c.seed, p.Object.GetName(), chosen.Victims)
		}
	}
}

// TestPreemptionSettles: in random fleets, objects of a higher priority get the room for which others left, nothing is
// given more than clusters have, and after a few decisions nothing changes any more.
func TestPreemptionSettles(t *testing.T) {
	preemptions, placed := 0, 0
	for seed := range uint64(250) {
		c := newContest(t, seed)
		promised, victims := map[string]*v1alpha1.Preemption{}, map[object]bool{}
		var changed []string
		for range 40 {
			if changed = c.decideAll(); len(changed) == 0 {
				break
			}
			for _, p := range c.state.Placed {
				if now := c.state.bindings[p.Key()].Spec.Preemption; now != nil {
					if promised[p.Key()] == nil {
						preemptions++
						promised[p.Key()] = now
					}
					for i := range now.Victims {
						victims[victimOf(&now.Victims[i])] = true
					}
				}
			}
			for _, p := range c.state.Placed {
				was, b := promised[p.Key()], c.state.bindings[p.Key()]
				if was == nil || b.Spec.Preemption != nil {
					continue
				}
				o := objectOf(p.Kind, p.Object)
				if missing := moreIn(was, &o, previous(b)); len(missing) == 0 {
					placed++
				} else if !victims[refOf(p.Kind.GroupKind(), p.Object)] && c.waits(p) { // else it went to a higher priority, or was found elsewhere
					t.Fatalf("seed %d: %s lacks %v of %+v", seed, p.Object.GetName(), missing, was)
				}
				delete(promised, p.Key())
			}
		}
		if len(changed) > 0 {
			t.Fatalf("seed %d: still changing: %v", seed, changed)
		}
	}
	if placed < 100 {
		t.Errorf("only %d of %d preemptions ended", placed, preemptions)
	}
}
