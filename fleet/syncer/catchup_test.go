package syncer

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// TestCatchUpNotifiesOnce: the callback runs once, when the last of the initial keys has been
// processed.
func TestCatchUpNotifiesOnce(t *testing.T) {
	key := func(name string) types.NamespacedName { return types.NamespacedName{Name: name} }
	told := 0
	c := catchUp{caughtUp: func() { told++ }}
	c.add(key("a"))
	c.add(key("b"))
	c.processed(key("a")) // a worker may finish before all keys are listed
	c.listed()
	if told != 0 {
		t.Fatal("notified before b was processed")
	}
	c.add(key("c")) // added too late
	c.processed(key("b"))
	c.processed(key("c"))
	c.processed(key("b"))
	if told != 1 {
		t.Errorf("notified %d times, want once", told)
	}

	empty := catchUp{caughtUp: func() { told++ }}
	empty.listed()
	if told != 2 {
		t.Error("not notified although there was nothing to process")
	}
	var nobody catchUp
	nobody.add(key("a"))
	nobody.listed()
	nobody.processed(key("a"))
}
