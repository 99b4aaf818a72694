package plancontroller

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"
)

// backoffs delay the next attempts of plans and applies that failed.
type backoffs struct {
	clock clock.PassiveClock

	mu    sync.Mutex
	byUID map[types.UID]*backoff
}

// backoff is how long a failed plan or apply waits for its next attempt.
type backoff struct {
	failures int
	pause    wait.Backoff // after the next failure
	until    time.Time
}

func newBackoffs(c clock.PassiveClock) *backoffs {
	return &backoffs{clock: c, byUID: map[types.UID]*backoff{}}
}

// waits reports whether a failed object still has to wait, and how long.
func (b *backoffs) waits(uid types.UID, now time.Time) (time.Duration, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.byUID[uid]
	if p == nil || !now.Before(p.until) {
		return 0, false
	}
	return p.until.Sub(now), true
}

// failed records a failure and returns the number of consecutive failures.
func (b *backoffs) failed(uid types.UID) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.byUID[uid]
	if p == nil {
		p = &backoff{pause: wait.Backoff{Duration: time.Second, Factor: 2, Steps: 10, Cap: time.Minute}}
		b.byUID[uid] = p
	}
	p.failures++
	p.until = b.clock.Now().Add(p.pause.Step())
	return p.failures
}

// succeeded forgets the failures of an object.
func (b *backoffs) succeeded(uid types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.byUID, uid)
}

// dropOld removes the backoffs of deleted objects, which ended long ago.
func (b *backoffs) dropOld(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for uid, p := range b.byUID {
		if now.Sub(p.until) > orphanTTL {
			delete(b.byUID, uid)
		}
	}
}
