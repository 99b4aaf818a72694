package syncer

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// catchUp tracks the bindings that existed when the syncer started, and reports once when all
// of them have been reconciled.
type catchUp struct {
	caughtUp func() // may be nil

	mu        sync.Mutex
	pending   map[types.NamespacedName]bool
	listedAll bool // no further keys are added
	done      bool
}

// add adds a key that existed at the start, and reports whether it did. It has no effect after
// listed.
func (c *catchUp) add(key types.NamespacedName) (atStart bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.listedAll || c.caughtUp == nil {
		return !c.listedAll
	}
	if c.pending == nil {
		c.pending = map[types.NamespacedName]bool{}
	}
	c.pending[key] = true
	return true
}

func (c *catchUp) listed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.listedAll = true
	c.notifyIfDone()
}

func (c *catchUp) processed(key types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done {
		return
	}
	delete(c.pending, key)
	c.notifyIfDone()
}

// notifyIfDone calls caughtUp once nothing is pending. The caller holds mu.
func (c *catchUp) notifyIfDone() {
	if !c.listedAll || len(c.pending) > 0 || c.done {
		return
	}
	c.done, c.pending = true, nil
	if c.caughtUp != nil {
		c.caughtUp()
	}
}
