package mvcc

import (
	"sync"
	"time"
)

// progressResolver determines the revision of requested progress for watches of a shared
// table: the keyspace's head, including the commits of other servers. All requests that
// arrive during one read of the head share the next.
type progressResolver struct {
	k     *Keyspace
	wakec chan struct{}

	mu   sync.Mutex
	open map[*watcher]int64 // number of pending calls for each watch
}

func newProgressResolver(k *Keyspace) *progressResolver {
	return &progressResolver{k: k, wakec: make(chan struct{}, 1), open: map[*watcher]int64{}}
}

func (p *progressResolver) request(w *watcher, calls int64) {
	p.mu.Lock()
	p.open[w] = max(p.open[w], calls)
	p.mu.Unlock()
	wake(p.wakec)
}

func (p *progressResolver) unregister(w *watcher) {
	p.mu.Lock()
	delete(p.open, w)
	p.mu.Unlock()
}

func (p *progressResolver) loop() {
	var retry backoff
	for {
		select {
		case <-p.wakec:
		case <-p.k.ctx.Done():
			return
		}
		p.mu.Lock()
		asked := p.open
		p.open = map[*watcher]int64{}
		p.mu.Unlock()
		if len(asked) == 0 {
			continue
		}
		head, err := p.k.heads.get(p.k.ctx)
		if err == nil {
			retry.reset()
			for w, calls := range asked {
				w.wantProgress(head.Revision, calls)
			}
			continue
		}
		for w, calls := range asked {
			if w.ctx.Err() == nil {
				p.request(w, calls)
			}
		}
		if !retry.wait(p.k.ctx) {
			return
		}
	}
}

// wake sends a signal to a goroutine, unless one is pending.
func wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Bounds of the time between attempts of a shared read.
const (
	firstRetry = 10 * time.Millisecond
	lastRetry  = time.Second
)
