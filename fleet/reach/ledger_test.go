package reach

import (
	"fmt"
	"maps"
	"math/big"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func key(source string, n int) objectKey {
	name := fmt.Sprint("p", n)
	return objectKey{source, types.NamespacedName{Namespace: "shop", Name: name}, types.UID(source + name)}
}

func keys(t *track) (all []string) {
	for key := range t.objects {
		all = append(all, string(key.uid))
	}
	slices.Sort(all)
	return all
}

// TestLedger: from each version that a client was given, it continues with the pods that it knew then.
func TestLedger(t *testing.T) {
	now := time.Now()
	l := newLedger(now)
	s := scope{resource: Pods, namespace: "shop"}
	list, position := l.begin(s, map[string]string{"east": "10", "west": "20"}, map[objectKey]struct{}{key("east", 1): {}}, now)
	type step struct {
		position uint64
		versions map[string]string
		pods     []string
	}
	steps := []step{{position, maps.Clone(list.versions), keys(list)}}
	record := func(pod objectKey, version string, c change) {
		steps = append(steps, step{l.record(list, pod, version, c, now), maps.Clone(list.versions), keys(list)})
	}
	record(key("west", 2), "21", added)
	record(key("east", 1), "11", changed)
	l.advance(list, "west", "25") // a bookmark of the cluster
	record(key("east", 1), "12", removed)
	record(key("west", 2), "26", removed)
	record(key("west", 3), "27", added)
	for i, want := range steps {
		got := l.resume(version{want.position, l.server, 0}, s)
		if got == nil || !slices.Equal(keys(got), want.pods) || got.versions["east"] != want.versions["east"] {
			t.Errorf("step %d: got %+v, want %+v", i, got, want)
			continue
		}
		// After a bookmark, a later version is as good.
		if west := got.versions["west"]; west != want.versions["west"] && west != "25" {
			t.Errorf("step %d: west is read up to %s, not %s", i, west, want.versions["west"])
		}
	}
	for name, other := range map[string]version{"a server": {position, l.server%999_999 + 1, 0}, "the future": {position + 1000, l.server, 0}, "the past": {position - 1, l.server, 0}} {
		if l.resume(other, s) != nil {
			t.Errorf("a version of %s is continued", name)
		}
	}
	if l.resume(version{position, l.server, 0}, scope{resource: Pods, namespace: "shop", labels: "a=b"}) != nil {
		t.Error("a list with other selectors is continued")
	}
}

// TestLedgerIsBounded: old versions are forgotten, and the others still continue correctly.
func TestLedgerIsBounded(t *testing.T) {
	now := time.Now()
	l := newLedger(now)
	s := scope{}
	list, first := l.begin(s, map[string]string{"east": "1"}, map[objectKey]struct{}{}, now)
	var last uint64
	for i := range maxMarks + 100 {
		last = l.record(list, key("east", i%10), fmt.Sprint(i), []change{added, removed}[i/10%2], now)
	}
	if len(l.marks) > maxMarks || len(list.events) > maxMarks {
		t.Errorf("%d marks, %d events", len(l.marks), len(list.events))
	}
	if l.resume(version{first, l.server, 0}, s) != nil || l.resume(version{last, l.server, 0}, s) == nil {
		t.Error("the first is continued, or the last is not")
	}
	if got := l.resume(version{l.marks[0].position, l.server, 0}, s); got == nil || len(got.objects) > 10 {
		t.Errorf("the oldest: %+v", got)
	}
	now = now.Add(maxMarkAge + time.Second)
	l.bookmark(list, now)
	if len(l.marks) != 1 || len(list.events) != 0 {
		t.Errorf("after %s: %d marks, %d events", maxMarkAge, len(l.marks), len(list.events))
	}
	many := map[objectKey]struct{}{}
	for i := range maxMarkKnown / 4 {
		many[key("east", i)] = struct{}{}
	}
	for range 10 {
		l.begin(s, map[string]string{}, many, now)
	}
	if l.known > maxMarkKnown || len(l.marks) > 4 {
		t.Errorf("%d pods in %d marks", l.known, len(l.marks))
	}
}

// TestVersions: versions are numbers that grow, also from one start of a server to the next.
func TestVersions(t *testing.T) {
	now := time.Now()
	number := func(v version) *big.Int {
		n, ok := new(big.Int).SetString(v.String(), 10)
		if !ok {
			t.Fatalf("%s is no number", v)
		}
		return n
	}
	earlier := version{firstPosition(now) + 900_000, 999_999, 1 << 63}
	for _, later := range []version{{earlier.position + 1, 1, 0}, {firstPosition(now.Add(time.Millisecond)), 1, 0}} {
		if number(earlier).Cmp(number(later)) >= 0 {
			t.Errorf("%s is not before %s", earlier, later)
		}
	}
	if got, ok := parseVersion(earlier.String()); !ok || got != earlier {
		t.Errorf("%+v %v", got, ok)
	}
	for _, other := range []string{"", "0", "12", "18446744073709551615", "x" + earlier.String(), earlier.String() + "x"} {
		if v, ok := parseVersion(other); ok {
			t.Errorf("%q is %+v", other, v)
		}
	}
	if MemberVersion(earlier.String()) != "9223372036854775808" || MemberVersion("12") != "12" {
		t.Error(MemberVersion(earlier.String()), MemberVersion("12"))
	}
}

// TestDifference: the cluster gets only what a user changed, and the version that the user had.
func TestDifference(t *testing.T) {
	before := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "u", ResourceVersion: "7", ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}}},
		Spec: corev1.PodSpec{NodeName: "node-1"}}
	after := before.DeepCopy()
	after.Labels, after.ManagedFields = map[string]string{"x": "y"}, nil
	patch, err := difference(before, after)
	if want := `{"metadata":{"labels":{"x":"y"},"resourceVersion":"7","uid":"u"}}`; err != nil || string(patch) != want {
		t.Errorf("%s %v", patch, err)
	}
}

// TestHide: what Atoll shows is not sent to the cluster.
func TestHide(t *testing.T) {
	for name, pod := range map[string]*corev1.Pod{
		"a pod":                {Spec: corev1.PodSpec{NodeName: "n"}},
		"with a label of ours": {ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"fleet.atoll.dev/cluster": "west", "a": "b"}}},
		"without a node":       {Status: corev1.PodStatus{NominatedNodeName: "n"}},
	} {
		shown := pod.DeepCopy()
		showPod(shown, "east")
		if err := hide(shown, pod, "east"); err != nil || shown.Labels["fleet.atoll.dev/cluster"] != pod.Labels["fleet.atoll.dev/cluster"] ||
			shown.Spec.NodeName != pod.Spec.NodeName || shown.Status.NominatedNodeName != pod.Status.NominatedNodeName {
			t.Errorf("%s: %+v, %v", name, shown, err)
		}
	}
}
