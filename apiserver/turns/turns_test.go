package turns

import (
	"context"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// TestTurn: the parts of a request share a turn, and another request waits until all of them have left, or until it ends. Without turns,
// nothing waits.
func TestTurn(t *testing.T) {
	taken := make(Turns, 1)
	one, other := &turn{taken: taken}, &turn{taken: taken}
	for range 2 {
		if err := one.enter(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := one.beginRules(t.Context()); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	one.leave()
	one.endRules()
	if err := other.enter(ended); !apierrors.IsTooManyRequests(err) {
		t.Errorf("a request that ends: %v", err)
	}
	one.suspend() // a webhook is called
	if err := other.enter(t.Context()); err != nil {
		t.Errorf("during a call of the other request: %v", err)
	}
	if err := one.resume(ended); !apierrors.IsTooManyRequests(err) {
		t.Errorf("after the call: %v", err)
	}
	one.leave() // it has no turn to give back
	if len(taken) != 1 {
		t.Errorf("%d turns are taken", len(taken))
	}
	other.leave()
	if len(taken) != 0 {
		t.Errorf("%d turns are taken", len(taken))
	}
	var none *turn
	if err := none.enter(ended); err != nil {
		t.Error(err)
	}
	none.leave()
}
