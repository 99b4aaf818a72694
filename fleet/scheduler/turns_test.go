package scheduler

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/placement"
)

// TestTurns: what leaves a drained cluster is counted from the bindings, and an object that stays after all has no turn.
func TestTurns(t *testing.T) {
	west := &v1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "west"}}
	rate, most := int32(1000), int32(2)
	west.Spec.Drain = &v1alpha1.ClusterDrain{Rate: &rate, MaxInFlight: &most}
	meta.SetStatusCondition(&west.Status.Conditions, metav1.Condition{Type: v1alpha1.ClusterReady, Status: metav1.ConditionTrue})
	joined := true
	cluster := func(string) (*v1alpha1.Cluster, bool) { return west, joined }
	name := func(i int) object {
		return object{schema.GroupKind{Group: "apps", Kind: "Deployment"}, types.NamespacedName{Namespace: "shop", Name: fmt.Sprint("web-", i)}}
	}
	binding := func(i int, generation int64, in string, runs ...string) *v1alpha1.ResourceBinding {
		b := &v1alpha1.ResourceBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Generation: generation}, Spec: v1alpha1.ResourceBindingSpec{Policy: &v1alpha1.PolicyReference{},
			Resource: v1alpha1.ObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: name(i).Name}, Clusters: []v1alpha1.ClusterShare{{Name: in}}}}
		for _, r := range runs {
			b.Status.Clusters = append(b.Status.Clusters, v1alpha1.ClusterState{Name: r})
		}
		return b
	}
	in, leaves := []placement.Share{{Cluster: "west"}}, []placement.Departure{{Cluster: "west", Drained: true}}
	now := time.Unix(0, 0)
	turns := newTurns()
	ask := func(i int, departures []placement.Departure) bool {
		return !turns.ask(name(i), in, departures, func() int32 { return int32(i) }, now)["west"]
	}
	expect := func(what string, want ...int) {
		t.Helper()
		now = now.Add(time.Second)
		got, _ := turns.next(cluster, now)
		var names []object
		for _, i := range want {
			names = append(names, name(i))
		}
		if fmt.Sprint(got) != fmt.Sprint(names) {
			t.Errorf("%s: it is the turn of %v, want %v", what, got, names)
		}
	}
	for i := range 8 {
		if ask(i, leaves) {
			t.Errorf("%d need not wait", i)
		}
	}
	expect("the highest priority", 7)
	expect("the next one", 6)
	expect("nothing has left")
	if !ask(7, leaves) {
		t.Error("it is 7's turn, and it may not leave")
	}
	was, is := binding(7, 1, "west", "west"), binding(7, 2, "east", "west")
	turns.bindingChanged(was, is)
	expect("7 is leaving")
	if !ask(6, nil) {
		t.Error("6 stays, and has to wait for something")
	}
	expect("6 stays", 5)
	turns.bindingChanged(is, binding(7, 2, "east"))
	expect("7 has left", 4)

	// The next leader has only the bindings.
	turns = newTurns()
	turns.bindingChanged(nil, binding(5, 2, "east", "west", "east"))
	turns.bindingChanged(nil, binding(4, 2, "east", "west"))
	for i := range 4 {
		ask(i, leaves)
	}
	expect("5 and 4 are leaving")
	turns.bindingChanged(binding(4, 2, "east", "west"), nil)
	expect("4 was deleted", 3)

	meta.SetStatusCondition(&west.Status.Conditions, metav1.Condition{Type: v1alpha1.ClusterReady, Status: metav1.ConditionFalse})
	expect("it is not known which objects have left", 2, 1, 0)
	joined = false
	expect("the cluster is gone")
	if len(turns.lines) > 0 {
		t.Error("a line remains for a cluster that is gone")
	}
}
