package plugin

import (
	"errors"
	"testing"

	"github.com/atoll-dev/atoll/infra/containment"
)

// TestUserPool: providers of several scopes have users of their own, and one of a workspace gets none rather than that of another provider.
func TestUserPool(t *testing.T) {
	pool := NewUserPool(containment.Users{First: 100, Count: 3})
	seen := map[uint32]bool{}
	for _, scope := range []string{"", "a", "b"} {
		for range 2 { // it stays the same
			u, err := pool.pick(scope, "demo")
			if err != nil {
				t.Fatal(err)
			}
			seen[u.UID] = true
		}
	}
	if len(seen) != 3 {
		t.Errorf("three providers have the users %v", seen)
	}
	if u, err := pool.pick("c", "demo"); !errors.Is(err, ErrNotContained) {
		t.Errorf("without a free user, a provider of a workspace got %v, %v", u, err)
	}
	if _, err := pool.pick("", "other"); err != nil {
		t.Errorf("providers of the root may share a user: %v", err)
	}
	pool.release("a")
	if _, err := pool.pick("c", "demo"); err != nil {
		t.Errorf("after a release: %v", err)
	}
}
