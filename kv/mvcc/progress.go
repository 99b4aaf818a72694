package mvcc

import (
	"sync"
	"time"
)

// progressAsker learns for watches of a shared table what progress they were
// asked for: up to where the keyspace is, whoever brought it there. All
// requests that come while one read of the head is under way share the next.
type progressAsker struct {
	k     *Keyspace
	wakec chan struct{}

	mu   sync.Mutex
	open map[*watcher]int64 // and how many calls of each
}

func newProgressAsker(k *Keyspace) *progressAsker {
	return &progressAsker{k: k, wakec: make(chan struct{}, 1), open: map[*watcher]int64{}}
}

func (p *progressAsker) ask(w *watcher, calls int64) {
	p.mu.Lock()
	p.open[w] = max(p.open[w], calls)
	p.mu.Unlock()
	wake(p.wakec)
}

func (p *progressAsker) leave(w *watcher) {
	p.mu.Lock()
	delete(p.open, w)
	p.mu.Unlock()
}

func (p *progressAsker) loop() {
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
		head, err := p.k.heads.ask(p.k.ctx)
		if err == nil {
			retry.reset()
			for w, calls := range asked {
				w.wantProgress(head.Revision, calls)
			}
			continue
		}
		for w, calls := range asked {
			if w.ctx.Err() == nil {
				p.ask(w, calls)
			}
		}
		if !retry.wait(p.k.ctx) {
			return
		}
	}
}

// wake leaves a signal for a goroutine, if there is none yet.
func wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Bounds of the time between tries of a read that everybody waits for.
const (
	firstRetry = 10 * time.Millisecond
	lastRetry  = time.Second
)
