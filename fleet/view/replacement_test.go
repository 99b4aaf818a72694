package view

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// replaced is a case of TestReplacementProblem: an object with generation 3 that left east.
type replaced struct {
	shares   map[string]int32 // -1: whole
	states   []v1alpha1.ClusterState
	wanted   int32
	moving   bool
	once     bool   // it must not run twice
	notReady string // a cluster
	want     string // part of the problem; "" if there is none
}

// TestReplacementProblem: an object is replaced once every chosen cluster runs its share in the current version and is
// healthy, or the wanted replicas are available in clusters with the current version.
func TestReplacementProblem(t *testing.T) {
	whole := func(name string, edit func(*v1alpha1.ClusterState)) v1alpha1.ClusterState {
		s := v1alpha1.ClusterState{Name: name, UID: "there", Generation: 3, MemberGeneration: 7, ObservedGeneration: 7, Health: v1alpha1.Healthy}
		if edit != nil {
			edit(&s)
		}
		return s
	}
	part := func(name string, share int32, health v1alpha1.Health, status string) v1alpha1.ClusterState {
		return whole(name, func(s *v1alpha1.ClusterState) {
			s.Replicas, s.Health, s.Status = &share, health, &runtime.RawExtension{Raw: []byte(status)}
		})
	}
	one := map[string]int32{"west": -1}
	both := map[string]int32{"west": 3, "south": 3}
	for name, tt := range map[string]replaced{
		"healthy":                      {shares: one, states: []v1alpha1.ClusterState{whole("west", nil)}},
		"no cluster":                   {states: []v1alpha1.ClusterState{whole("west", nil)}, want: "no other cluster"},
		"no report":                    {shares: one, want: "in west, it is not applied yet"},
		"first write":                  {shares: one, states: []v1alpha1.ClusterState{whole("west", func(s *v1alpha1.ClusterState) { s.UID, s.Reason = "", v1alpha1.StateApplying })}, want: "not applied yet"},
		"rejected":                     {shares: one, states: []v1alpha1.ClusterState{whole("west", func(s *v1alpha1.ClusterState) { s.Reason, s.Message = v1alpha1.StateApplyFailed, "quota" })}, want: "ApplyFailed: quota"},
		"being removed":                {shares: one, states: []v1alpha1.ClusterState{whole("west", func(s *v1alpha1.ClusterState) { s.Reason = v1alpha1.StateRemoving })}, want: "in west, Removing"},
		"drifted":                      {shares: one, states: []v1alpha1.ClusterState{whole("west", func(s *v1alpha1.ClusterState) { s.Reason = v1alpha1.StateDrifted })}},
		"not watched":                  {shares: one, states: []v1alpha1.ClusterState{whole("west", func(s *v1alpha1.ClusterState) { s.Reason = v1alpha1.StateUnwatched })}},
		"an earlier version":           {shares: one, states: []v1alpha1.ClusterState{whole("west", func(s *v1alpha1.ClusterState) { s.Generation = 2 })}, want: "the current version"},
		"not acted on":                 {shares: one, states: []v1alpha1.ClusterState{whole("west", func(s *v1alpha1.ClusterState) { s.ObservedGeneration = 6 })}, want: "the current version"},
		"stale":                        {shares: one, states: []v1alpha1.ClusterState{whole("west", func(s *v1alpha1.ClusterState) { s.Stale = &v1alpha1.Staleness{} })}, want: "outdated"},
		"not Ready":                    {shares: one, states: []v1alpha1.ClusterState{whole("west", nil)}, notReady: "west", want: "in west, not Ready"},
		"progressing":                  {shares: one, states: []v1alpha1.ClusterState{whole("west", func(s *v1alpha1.ClusterState) { s.Health, s.Message = v1alpha1.Progressing, "0 of 3" })}, want: "Progressing there: 0 of 3"},
		"unknown health":               {shares: one, states: []v1alpha1.ClusterState{whole("west", func(s *v1alpha1.ClusterState) { s.Health = v1alpha1.Unknown })}, want: "Unknown"},
		"one of two whole copies":      {shares: map[string]int32{"west": -1, "south": -1}, states: []v1alpha1.ClusterState{whole("west", nil)}, wanted: 1, want: "in south"},
		"on its way":                   {shares: one, states: []v1alpha1.ClusterState{whole("west", nil)}, moving: true, want: "on its way"},
		"a Job that works":             {shares: one, states: []v1alpha1.ClusterState{whole("west", func(s *v1alpha1.ClusterState) { s.Health = v1alpha1.Progressing })}, once: true},
		"a Job without a report":       {shares: one, once: true, want: "in west, it is not applied yet"},
		"a Job that moves on":          {once: true, moving: true},
		"parts":                        {shares: both, states: []v1alpha1.ClusterState{part("west", 3, v1alpha1.Healthy, `{}`), part("south", 3, v1alpha1.Healthy, `{}`)}, wanted: 6},
		"one part is missing":          {shares: both, states: []v1alpha1.ClusterState{part("west", 3, v1alpha1.Healthy, `{"availableReplicas":3}`)}, wanted: 6, want: "in south"},
		"another share":                {shares: both, states: []v1alpha1.ClusterState{part("west", 3, v1alpha1.Healthy, `{}`), part("south", 2, v1alpha1.Healthy, `{}`)}, wanted: 6, want: "in south, the current version"},
		"enough are available":         {shares: both, states: []v1alpha1.ClusterState{part("west", 3, v1alpha1.Degraded, `{"availableReplicas":4}`), part("south", 3, v1alpha1.Healthy, `{"readyReplicas":2}`)}, wanted: 6},
		"too few are available":        {shares: both, states: []v1alpha1.ClusterState{part("west", 3, v1alpha1.Degraded, `{"availableReplicas":2}`), part("south", 3, v1alpha1.Healthy, `{"availableReplicas":3}`)}, wanted: 6, want: "in west, it is Degraded"},
		"enough, and on its way":       {shares: both, states: []v1alpha1.ClusterState{part("west", 3, v1alpha1.Healthy, `{"availableReplicas":3}`), part("south", 3, v1alpha1.Healthy, `{"availableReplicas":3}`)}, wanted: 6, moving: true},
		"too few, and on its way":      {shares: map[string]int32{"west": 3}, states: []v1alpha1.ClusterState{part("west", 3, v1alpha1.Healthy, `{"availableReplicas":3}`)}, wanted: 6, moving: true, want: "on its way"},
		"outdated ones are not enough": {shares: both, states: []v1alpha1.ClusterState{part("west", 3, v1alpha1.Healthy, `{"availableReplicas":9}`), part("south", 3, v1alpha1.Healthy, `{"availableReplicas":0}`)}, notReady: "west", wanted: 6, want: "in west"},
		"scaled to none":               {shares: both, states: []v1alpha1.ClusterState{part("west", 3, v1alpha1.Healthy, `{}`)}, wanted: 0, want: "in south"},
		"a status that cannot be read": {shares: both, states: []v1alpha1.ClusterState{part("west", 3, v1alpha1.Progressing, `[`), part("south", 3, v1alpha1.Healthy, `{}`)}, wanted: 6, want: "in west"},
	} {
		b := &v1alpha1.ResourceBinding{}
		b.Status.Clusters = tt.states
		for _, cluster := range []string{"west", "south"} {
			if n, chosen := tt.shares[cluster]; chosen {
				share := v1alpha1.ClusterShare{Name: cluster}
				if n >= 0 {
					share.Replicas = &n
				}
				b.Spec.Clusters = append(b.Spec.Clusters, share)
			}
		}
		if tt.moving {
			b.Spec.Transition = &v1alpha1.Transition{ID: "t"}
		}
		got := replacementProblem(b, 3, tt.wanted, tt.once, func(cluster string) string {
			if cluster == tt.notReady {
				return "not Ready"
			}
			return ""
		})
		if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s: problem %q, want %q", name, got, tt.want)
		}
	}
}

// TestRemovalAwaitsReplacement: a view confirms the removal of a copy from a cluster that was unreachable only when the
// other cluster runs the object, and tells the syncer what it waits for. The syncer is woken when that changes.
func TestRemovalAwaitsReplacement(t *testing.T) {
	s := newFixture(t, secret("one"), bind("one", "east"))
	r := s.remote(0, 24*time.Hour)
	r.await(t)
	b, _ := r.Binding(keyTo("one"))
	if err := r.Report(t.Context(), b, &v1alpha1.ClusterState{Name: "east", UID: "there", Health: v1alpha1.Healthy}); err != nil {
		t.Fatal(err)
	}
	s.control.Merge(v1alpha1.ResourceBindingResource, "shop", b.Name, `{"spec":{"clusters":[{"name":"west","reason":"Scheduled"}],"requestedRemovals":[{"name":"east","reason":"Replaced"}]}}`)
	waits := func(want string) {
		t.Helper()
		fakeapi.Eventually(t, "it waits for "+want, func() error {
			now, err := r.ConfirmRemoval(t.Context(), b)
			if err != nil || now.Binding == nil || now.Decided || now.Waits != want {
				return fmt.Errorf("%+v (%v)", now, err)
			}
			return nil
		})
	}
	waits("in west, the cluster is not Ready")
	code, text := s.ask(syncerOf("east"), "GET", eastView+"/apis/"+apiVersion+"/namespaces/shop/boundobjects/"+b.Name, nil)
	if code != 200 || strings.Contains(text, "leaves") {
		t.Errorf("an earlier syncer would remove it: %d %s", code, text)
	}
	s.control.Merge(v1alpha1.ClusterResource, "", "west", `{"status":{"conditions":[{"type":"Ready","status":"True","reason":"ClusterReady","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`)
	waits("in west, it is not applied yet")
	notified := make(chan types.NamespacedName, 100)
	defer r.Subscribe(func(key types.NamespacedName) { notified <- key })()
	fakeapi.Until(t, "the subscriber has what is bound", func() bool { return len(notified) > 0 })
	for len(notified) > 0 {
		<-notified
	}
	// A read by name is live, but reports are checked with the caches. A syncer reports only bindings in its
	// list, so this waits until the list of west contains the binding.
	fakeapi.Eventually(t, "west sees the object", func() error {
		code, text := s.ask(syncerOf("west"), "GET", v1alpha1.ViewsPath+"west/apis/"+apiVersion+"/boundobjects", nil)
		if code != 200 || !strings.Contains(text, `"name":"`+b.Name+`"`) {
			return fmt.Errorf("%d %s", code, text)
		}
		return nil
	})
	report := BoundObject{TypeMeta: metav1.TypeMeta{APIVersion: apiVersion, Kind: boundObjectKind}, ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: b.Name, UID: b.UID},
		Status: BoundStatus{State: &v1alpha1.ClusterState{Name: "west", UID: "there", Generation: 3, Health: v1alpha1.Healthy}}}
	if code, text := s.ask(syncerOf("west"), "PUT", v1alpha1.ViewsPath+"west/apis/"+apiVersion+"/namespaces/shop/boundobjects/"+b.Name+"/status", report); code != 200 {
		t.Fatalf("%d %s", code, text)
	}
	waits("")
	fakeapi.Until(t, "the subscriber is notified", func() bool { return len(notified) > 0 })
}
