package syncer

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// TestCatchUpNotifiesOnce: the callback runs once, when the last of the initial keys has been
// processed.
func TestCatchUpNotifiesOnce(t *testing.T) {
	key := func(name string) types.NamespacedName { return types.NamespacedName{Name: name} }
	calls := 0
	c := catchUp{caughtUp: func() { calls++ }}
	c.add(key("a"))
	c.add(key("b"))
	c.processed(key("a")) // a worker may finish before all keys are listed
	c.listed()
	if calls != 0 {
		t.Fatal("notified before b was processed")
	}
	c.add(key("c")) // added too late
	c.processed(key("b"))
	c.processed(key("c"))
	c.processed(key("b"))
	if calls != 1 {
		t.Errorf("notified %d times, want once", calls)
	}

	empty := catchUp{caughtUp: func() { calls++ }}
	empty.listed()
	if calls != 2 {
		t.Error("not notified although there was nothing to process")
	}
	var unset catchUp
	unset.add(key("a"))
	unset.listed()
	unset.processed(key("a"))
}
