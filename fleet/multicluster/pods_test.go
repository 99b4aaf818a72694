package multicluster

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// pod returns a pod that is ready, or "not ready", "pending", "failed" or "stopping", with a cost, of a user or "marked".
func pod(t *testing.T, text string) *corev1.Pod {
	t.Helper()
	name, rest, _ := strings.Cut(text, " ")
	p := &corev1.Pod{}
	if err := yaml.Unmarshal([]byte(`{metadata: {name: `+name+`, annotations: {}}, spec: {nodeName: n-`+name+`}, status: {phase: Running, podIP: 10.0.0.`+name[len(name)-1:]+`, conditions: [{type: Ready, status: "True", lastTransitionTime: "2026-01-01T00:00:00Z"}]}}`), p); err != nil {
		t.Fatal(err)
	}
	for word := range strings.FieldsSeq(rest) {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "unready":
			p.Status.Conditions[0].Status = corev1.ConditionFalse
		case "pending":
			p.Status.Phase, p.Status.Conditions = corev1.PodPending, nil
		case "failed":
			p.Status.Phase = corev1.PodFailed
		case "stopping":
			p.DeletionTimestamp = &p.Status.Conditions[0].LastTransitionTime
		case "marked":
			p.Annotations["fleet.atoll.dev/drained"] = "true"
		case "cost":
			p.Annotations[corev1.PodDeletionCost] = value
		case "node":
			p.Spec.NodeName = value
		}
	}
	return p
}

// TestStopping: the pods that stop are those that the ReplicaSet controller would choose. They get a lower cost than the
// others, unless a user has set one. A cost that is not needed any more is taken back.
func TestStopping(t *testing.T) {
	for _, test := range []struct {
		name string
		pods []string
		stay int32
		want string
	}{
		{"pods that are not ready first", []string{"p1", "p2 unready", "p3 pending", "p4"}, 2, "stop p3 p2, mark p3 p2 -1, unmark "},
		{"several on a node", []string{"p1", "p2 node=a", "p3 node=a"}, 2, "stop p2, mark p2 -1, unmark "},
		{"pods that ended or stop do not count", []string{"p1", "p2 failed", "p3 stopping", "p4"}, 1, "stop p1, mark p1 -1, unmark "},
		{"all", []string{"p1", "p2"}, 0, "stop p1 p2, mark  0, unmark "},
		{"more stay than there are", []string{"p1"}, 3, "stop , mark  -1, unmark "},
		{"costs of users", []string{"p1", "p2 cost=-5", "p3 cost=7"}, 1, "stop p2 p1, mark p1 -1, unmark "},
		{"a pod that stays has a lower cost", []string{"p1 unready", "p2 cost=-5", "p3 cost=7"}, 2, "stop p1, mark p1 -6, unmark "},
		{"marked already", []string{"p1", "p2 marked cost=-1"}, 1, "stop p2, mark  -1, unmark "},
		{"fewer stop than before", []string{"p1", "p2 marked cost=-1", "p3 marked cost=-1"}, 2, "stop p2, mark  -1, unmark p3"},
		{"none stops any more", []string{"p1", "p2 marked cost=-1"}, 2, "stop , mark  -1, unmark p2"},
		{"the lowest cost", []string{"p1 unready", "p2 cost=-2147483648"}, 1, "stop p1, mark p1 -2147483648, unmark "},
	} {
		var pods []*corev1.Pod
		for _, text := range test.pods {
			pods = append(pods, pod(t, text))
		}
		d := Stopping(pods, test.stay)
		if got := fmt.Sprintf("stop %s, mark %s %d, unmark %s", namesOf(d.Stop), namesOf(d.Mark), d.Cost, namesOf(d.Unmark)); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
	}
}

func namesOf(pods []*corev1.Pod) string {
	var out []string
	for _, p := range pods {
		out = append(out, p.Name)
	}
	return strings.Join(out, " ")
}

// TestMarksDecide: once pods are marked, the controller's order chooses them, in whatever order it sees the pods, unless
// others are not ready.
func TestMarksDecide(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 1000 {
		var pods []*corev1.Pod
		for i := range 1 + r.IntN(8) {
			text := fmt.Sprintf("p%d node=%d", i, r.IntN(3))
			if r.IntN(3) == 0 {
				text += fmt.Sprintf(" cost=%d", r.IntN(5)-2)
			}
			pods = append(pods, pod(t, text))
		}
		stay := int32(r.IntN(len(pods) + 1))
		d := Stopping(pods, stay)
		for _, p := range d.Mark {
			p.Annotations[corev1.PodDeletionCost], p.Annotations["fleet.atoll.dev/drained"] = fmt.Sprint(d.Cost), "true"
		}
		r.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
		again := Stopping(pods, stay)
		if a, b := sortedNames(d.Stop), sortedNames(again.Stop); a != b || len(again.Mark)+len(again.Unmark) > 0 {
			t.Fatalf("stop %s, then %s; %+v", a, b, again)
		}
	}
}

func sortedNames(pods []*corev1.Pod) string {
	names := strings.Fields(namesOf(pods))
	slices.Sort(names)
	return strings.Join(names, " ")
}

// TestStoppingOrdinals: of a StatefulSet the pods outside of the range stop, and none is marked.
func TestStoppingOrdinals(t *testing.T) {
	var pods []*corev1.Pod
	for i := range 5 {
		pods = append(pods, pod(t, fmt.Sprintf("db-%d", i)))
	}
	if d := StoppingOrdinals(pods, 1, 3); namesOf(d.Stop) != "db-0 db-4" || len(d.Mark) > 0 || strings.Join(Addresses(d.Stop), " ") != "10.0.0.0 10.0.0.4" {
		t.Errorf("%s", namesOf(d.Stop))
	}
}
