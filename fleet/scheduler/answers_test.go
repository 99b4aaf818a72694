package scheduler

import (
	"errors"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/fleet/interpret"
)

// counts answers how many replicas each object has; with a negative number, nothing.
type counts int64

func (n counts) Answer(interpret.Question) (interpret.Answer, error) {
	if n < 0 {
		return interpret.Answer{}, errors.New("down")
	}
	replicas := int64(n)
	return interpret.Answer{Replicas: &replicas}, nil
}

// TestPreviewWithoutAnswers: a preview decides as the scheduler does: without the answer of a webhook everything
// stays.
func TestPreviewWithoutAnswers(t *testing.T) {
	east := custom[strings.Index(custom, "---\napiVersion: fleet.atoll.dev/v1alpha1\nkind: APIResourceImport"):strings.Index(custom, "---\napiVersion: example.com")]
	c := newControl(t, clusters+custom+strings.ReplaceAll(east, "east", "west")+`---
apiVersion: fleet.atoll.dev/v1alpha1
kind: ResourceInterpretation
metadata: {name: widgets, uid: ri}
spec:
  target: {apiVersion: example.com/v1, kind: Widget}
  mode: Divided
  webhook: {url: https://a.example/x, operations: [InterpretReplica, ReviseReplica]}
---
apiVersion: fleet.atoll.dev/v1alpha1
kind: ResourceBinding
metadata: {name: widget.example.com-one, namespace: shop, uid: b}
spec:
  resource: {apiVersion: example.com/v1, kind: Widget, name: one, uid: w1, resource: widgets}
  clusters: [{name: east, replicas: 4, reason: Chosen}]
`)
	for _, tt := range []struct {
		answers interpret.Answers
		want    string
		reason  string
	}{
		{counts(-1), "east 4", ReasonWaitingForWebhook},
		{nil, "east 4", ReasonWaitingForWebhook},
		{counts(6), "east 3, west 3", "Placed"},
	} {
		s, err := LoadWith(t.Context(), c.Dynamic(), time.Now(), LoadOptions{Answers: tt.answers})
		if err != nil {
			t.Fatal(err)
		}
		k, known := s.Kind(schema.GroupKind{Group: "example.com", Kind: "Widget"})
		if !known {
			t.Fatal("the kind is not known")
		}
		obj, b := c.Get(widgets, "shop", "one"), s.Binding(k, "shop", "one")
		a := s.Snapshot().Schedule(k, obj, b)
		if got := describe(a.Shares); got != tt.want || a.Condition.Reason != tt.reason {
			t.Errorf("answers %v: %s (%s: %s), want %s", tt.answers, got, a.Condition.Reason, a.Condition.Message, tt.want)
		}
		if moves := MovesOf(Placed{Kind: k, Object: obj}, b, a); (len(moves) == 0) != (tt.reason == ReasonWaitingForWebhook) {
			t.Errorf("answers %v: moves %v", tt.answers, moves)
		}
	}
	if !keepsDecision(ReasonWaitingForWebhook) || keepsDecision("Placed") {
		t.Error("a binding without an answer would lose its policy and autoscaler")
	}
}

// TestUnknownNeedsHoldFollowers: what seems to be needed by no object is held until all dependencies are known.
func TestUnknownNeedsHoldFollowers(t *testing.T) {
	named := func(name string) object {
		return object{schema.GroupKind{Kind: "X"}, types.NamespacedName{Name: name}}
	}
	u := newUnknownNeeds()
	if u.hold(named("follower")) {
		t.Error("held although all is known")
	}
	u.add(named("a"))
	u.add(named("b"))
	if !u.hold(named("follower")) {
		t.Error("not held")
	}
	if released := u.remove(named("a")); len(released) != 0 {
		t.Errorf("released %v while b is unknown", released)
	}
	if released := u.remove(named("b")); len(released) != 1 || released[0] != named("follower") {
		t.Errorf("released %v", released)
	}
	if released := u.remove(named("b")); len(released) != 0 {
		t.Errorf("released again: %v", released)
	}
}
