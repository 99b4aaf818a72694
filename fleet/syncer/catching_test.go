package syncer

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// TestCatchingUp is told once, when the last of what there was has been looked at.
func TestCatchingUp(t *testing.T) {
	key := func(name string) types.NamespacedName { return types.NamespacedName{Name: name} }
	told := 0
	c := catching{caughtUp: func() { told++ }}
	c.expect(key("a"))
	c.expect(key("b"))
	c.looked(key("a")) // a worker may be done before all is known
	c.expected()
	if told != 0 {
		t.Fatal("told before b was looked at")
	}
	c.expect(key("c")) // it came later
	c.looked(key("b"))
	c.looked(key("c"))
	c.looked(key("b"))
	if told != 1 {
		t.Errorf("told %d times, want once", told)
	}

	empty := catching{caughtUp: func() { told++ }}
	empty.expected()
	if told != 2 {
		t.Error("who has nothing to look at has caught up")
	}
	var nobody catching
	nobody.expect(key("a"))
	nobody.expected()
	nobody.looked(key("a"))
}
