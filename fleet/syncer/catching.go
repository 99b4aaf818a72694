package syncer

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// catchUp tracks the bindings that existed when the syncer started, and reports once when all
// of them have been reconciled.
type catching struct {
	caughtUp func() // may be nil

	mu      sync.Mutex
	waiting map[types.NamespacedName]bool
	all     bool // no further keys are added
	told    bool
}

// add adds a key that existed at the start. It has no effect after listed.
func (c *catching) expect(key types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all || c.caughtUp == nil {
		return
	}
	if c.waiting == nil {
		c.waiting = map[types.NamespacedName]bool{}
	}
	c.waiting[key] = true
}

func (c *catching) expected() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = true
	c.tell()
}

func (c *catching) looked(key types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.told {
		return
	}
	delete(c.waiting, key)
	c.tell()
}

// notifyIfDone calls caughtUp once nothing is pending. The caller holds mu.
func (c *catching) tell() {
	if !c.all || len(c.waiting) > 0 || c.told {
		return
	}
	c.told, c.waiting = true, nil
	if c.caughtUp != nil {
		c.caughtUp()
	}
}
