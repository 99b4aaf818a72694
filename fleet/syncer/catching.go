package syncer

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// catching tells when a syncer that begins has looked at all that there was.
type catching struct {
	caughtUp func() // nil: nobody asks

	mu      sync.Mutex
	waiting map[types.NamespacedName]bool
	all     bool // nothing is expected any more
	told    bool
}

// expect is called for what there is, until expected is.
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

// tell tells once that nothing is waited for. The caller holds mu.
func (c *catching) tell() {
	if !c.all || len(c.waiting) > 0 || c.told {
		return
	}
	c.told, c.waiting = true, nil
	if c.caughtUp != nil {
		c.caughtUp()
	}
}
