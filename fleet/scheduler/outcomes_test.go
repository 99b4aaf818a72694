package scheduler

import (
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// outcomeObjects is the number of objects in TestPreviewsAreOutcomes.
var outcomeObjects = flag.Int("objects", 400, "objects in TestPreviewsAreOutcomes")

// outcomes are the shares of objects by cluster, as texts, by key.
type outcomes map[string]map[string]string

// bound returns the shares in the bindings.
func (c *control) bound(t *testing.T) outcomes {
	out := outcomes{}
	for _, u := range c.List(v1alpha1.ResourceBindingResource) {
		b := as[v1alpha1.ResourceBinding](t, u)
		in := map[string]string{}
		for name, share := range shareTexts(b, nil) {
			in[name] = share.text()
		}
		out[b.Namespace+"/"+b.Spec.Resource.Name] = in
	}
	return out
}

// previewed returns the shares that a preview shows after a change.
func (c *control) previewed(t *testing.T, change func(*State)) (out outcomes, moved int) {
	t.Helper()
	s, err := Load(t.Context(), c.Dynamic(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	change(s)
	out = c.bound(t)
	objects := map[string]bool{}
	for _, m := range s.Moves(s.Snapshot()) {
		if m.Cluster == "" {
			continue // it waits
		}
		key := m.Namespace + "/" + m.Name
		objects[key] = true
		if m.After == NoShare {
			delete(out[key], m.Cluster)
		} else {
			out[key][m.Cluster] = m.After
		}
	}
	return out, len(objects)
}

// differs names an object whose shares are not as expected, or "".
func (o outcomes) differs(want outcomes) string {
	for _, key := range slices.Sorted(maps.Keys(want)) {
		if !maps.Equal(o[key], want[key]) {
			return fmt.Sprintf("%s is in %v, and the preview showed %v", key, o[key], want[key])
		}
	}
	return ""
}

// TestPreviewsAreOutcomes: a preview of a policy edit, of a cluster that others fill, of more replicas and of a quota
// shows for each object what the scheduler then does. With -objects=20000 it is the size of a large fleet.
func TestPreviewsAreOutcomes(t *testing.T) {
	n, namespaces := *outcomeObjects, 20
	c := newControl(t, "")
	for i, name := range []string{"a", "b", "c", "d"} {
		for _, u := range parse(t, fmt.Sprintf(`{apiVersion: fleet.atoll.dev/v1alpha1, kind: Cluster, metadata: {name: %[1]s, uid: %[1]s, creationTimestamp: "2026-01-0%[2]dT00:00:00Z"},
  status: {conditions: [{type: Ready, status: "True", reason: ClusterReady, message: "", lastTransitionTime: "2026-01-01T00:00:00Z"}]}}`, name, i+1)) {
			c.Put(u)
		}
		reportNodes(c, name, 1000, "64", "64")
	}
	policy := func(generation int, spec string) *unstructured.Unstructured {
		return parse(t, fmt.Sprintf(`{apiVersion: fleet.atoll.dev/v1alpha1, kind: ClusterPlacement, metadata: {name: all, uid: p, generation: %d, creationTimestamp: "2026-01-01T00:00:00Z"}, spec: {selector: {kinds: [Deployment]}, %s}}`, generation, spec))[0]
	}
	c.Put(policy(1, `clusters: {names: [a, b, c]}`))
	for i := range n {
		u := parse(t, requesting(fmt.Sprint("web-", i), 1+i%6, "100m"))[0]
		u.SetNamespace(fmt.Sprint("team-", i%namespaces))
		c.Put(u)
	}
	c.start(t, Config{})
	eventually := func(what string, check func() error) {
		t.Helper()
		fakeapi.EventuallyWithin(t, time.Minute+time.Duration(n)*20*time.Millisecond, what, check) // many objects take longer
	}
	settled := func(what string, want outcomes) {
		t.Helper()
		eventually(what, func() error {
			if why := c.bound(t).differs(want); why != "" {
				return fmt.Errorf("%s", why)
			}
			return nil
		})
	}
	began := time.Now()
	eventually("all objects are placed", func() error {
		if is := len(c.bound(t)); is != n {
			return fmt.Errorf("%d of %d are", is, n)
		}
		return nil
	})
	t.Logf("%d objects placed in %v", n, time.Since(began))

	edited := policy(2, `clusters: {names: [b, c, d]}, division: {by: Weighted, weights: [{clusters: {names: [b]}, weight: 2}, {clusters: {}, weight: 1}]}`)
	want, moved := c.previewed(t, func(s *State) {
		s.ClusterPlacements = []*v1alpha1.ClusterPlacement{as[v1alpha1.ClusterPlacement](t, edited)}
	})
	c.Put(edited)
	settled("the edit is in effect", want)
	t.Logf("the edit of the policy moved %d objects", moved)

	// Others fill b: nothing moves, and more replicas go elsewhere.
	want, moved = c.previewed(t, func(s *State) {
		for i, cluster := range s.Clusters {
			if cluster.Name == "b" {
				s.Clusters[i] = cluster.DeepCopy()
				s.Clusters[i].Status.NodeShapes.Shapes[0].Free["cpu"] = resource.Quantity{}
			}
		}
	})
	if moved > 0 {
		t.Errorf("%d objects would move out of a cluster that others fill", moved)
	}
	reportNodes(c, "b", 1000, "64", "0")
	caughtUp(t, c)
	settled("nothing moves", want)
	scaled := map[string]bool{}
	want, moved = c.previewed(t, func(s *State) {
		for i := range s.Placed {
			o := s.Placed[i].Object
			if i%3 == 0 {
				o = o.DeepCopy()
				replicas, _, _ := unstructured.NestedInt64(o.Object, "spec", "replicas")
				if err := unstructured.SetNestedField(o.Object, replicas+3, "spec", "replicas"); err != nil {
					t.Fatal(err)
				}
				s.Placed[i].Object = o
				scaled[o.GetNamespace()+"/"+o.GetName()] = true
			}
		}
	})
	before := c.bound(t)
	for key := range scaled {
		namespace, name, _ := strings.Cut(key, "/")
		c.Change(deployments, namespace, name, func(u *unstructured.Unstructured) {
			replicas, _, _ := unstructured.NestedInt64(u.Object, "spec", "replicas")
			_ = unstructured.SetNestedField(u.Object, replicas+3, "spec", "replicas")
			u.SetGeneration(u.GetGeneration() + 1)
		})
	}
	settled("more replicas are placed", want)
	for key, in := range want {
		if in["b"] != before[key]["b"] {
			t.Errorf("%s has %s in b, which is full, and had %s", key, in["b"], before[key]["b"])
		}
	}
	t.Logf("%d objects got more replicas", moved)

	// A quota has room for some copies only. Which objects get them depends on the order.
	u := parse(t, `{apiVersion: fleet.atoll.dev/v1alpha1, kind: FleetQuota, metadata: {name: team, namespace: team-0, uid: q, generation: 1}, spec: {hard: {pods: 1000000}}}`)[0]
	quota := as[v1alpha1.FleetQuota](t, u)
	load := func(change func(*State)) *State {
		t.Helper()
		s, err := Load(t.Context(), c.Dynamic(), time.Now())
		if err != nil {
			t.Fatal(err)
		}
		change(s)
		return s
	}
	load(func(s *State) {
		if err := s.AddQuota(quota); err != nil {
			t.Fatal(err)
		}
	})
	used := quota.Status.Used["pods"]
	limit := used.Value() * 3 / 2
	quota.Spec.Hard["pods"] = *resource.NewQuantity(limit, resource.DecimalSI)
	quota.Status.Free["pods"] = *resource.NewQuantity(limit-used.Value(), resource.DecimalSI)
	c.Put(quota)
	copies := parse(t, `{apiVersion: fleet.atoll.dev/v1alpha1, kind: Placement, metadata: {name: copies, namespace: team-0, uid: pl, generation: 1, creationTimestamp: "2026-01-02T00:00:00Z"}, spec: {selector: {kinds: [Deployment]}, clusters: {names: [c, d]}, mode: Duplicated}}`)[0]
	s := load(func(s *State) { s.Placements = []*v1alpha1.Placement{as[v1alpha1.Placement](t, copies)} })
	copied, waiting := 0, 0
	for _, m := range s.Moves(s.Snapshot()) {
		switch {
		case m.Reason == ReasonQuotaExceeded:
			waiting++
		case m.After == "whole" && m.Cluster == "c":
			copied++
		}
	}
	if copied == 0 || waiting == 0 {
		t.Errorf("in the preview, %d objects get copies and %d wait for the quota", copied, waiting)
	}
	c.Put(copies)
	eventually("the copies that the quota permits are made", func() error {
		got, waits := 0, 0
		for _, b := range c.bindings(t) {
			if b.Namespace != "team-0" {
				continue
			}
			if is := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.BindingScheduled); is != nil && is.Reason == ReasonQuotaExceeded {
				waits++
			}
			if copiesIn(b.Spec.Clusters) == 2 {
				got++
			}
		}
		q := &v1alpha1.FleetQuota{}
		c.Read(v1alpha1.FleetQuotaResource, "team-0", "team", q)
		if n := q.Status.Used["pods"]; n.Value() > limit {
			t.Fatalf("%d pods are used, and %d permitted", n.Value(), limit)
		}
		if got+waits != copied+waiting || got == 0 || waits == 0 {
			return fmt.Errorf("%d have copies and %d wait; previewed: %d and %d", got, waits, copied, waiting)
		}
		return nil
	})
}
