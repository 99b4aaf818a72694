package syncer

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// TestCatchUpNotifiesOnce: the callback runs once, when the last of the initial keys has been
// processed.
func TestCatchingUp(t *testing.T) {
	key := func(name string) types.NamespacedName { return types.NamespacedName{Name: name} }
	told := 0
	c := catching{caughtUp: func() { told++ }}
	c.expect(key("a"))
	c.expect(key("b"))
	c.looked(key("a")) // a worker may finish before all keys are listed
	c.expected()
	if told != 0 {
		t.Fatal("notified before b was processed")
	}
	c.expect(key("c")) // added too late
	c.looked(key("b"))
	c.looked(key("c"))
	c.looked(key("b"))
	if told != 1 {
		t.Errorf("notified %d times, want once", told)
	}

	empty := catching{caughtUp: func() { told++ }}
	empty.expected()
	if told != 2 {
		t.Error("not notified although there was nothing to process")
	}
	var nobody catching
	nobody.expect(key("a"))
	nobody.expected()
	nobody.looked(key("a"))
}
