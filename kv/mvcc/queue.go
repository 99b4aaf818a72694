package mvcc

import (
	"sync"
	"sync/atomic"
)

// writeQueue holds pending writes in the order of their arrival. Its memory grows with what
// is pending: thousands of keyspaces may be open, and most of them are idle.
type writeQueue struct {
	limit int
	// wakec has an entry if writes may have arrived since the last pop that found none.
	wakec chan struct{}
	n     atomic.Int64

	mu      sync.Mutex
	arrived []*write
	// taken are writes that arrived before those in arrived. Only the popping goroutine uses
	// it, without a lock; those before next are popped.
	taken []*write
	next  int
}

// keptWrites is the number of writes for which an empty queue keeps its memory.
const keptWrites = 64

func newWriteQueue(limit int) *writeQueue {
	return &writeQueue{limit: limit, wakec: make(chan struct{}, 1)}
}

func (q *writeQueue) len() int { return int(q.n.Load()) }

// push adds a write, and reports whether there was room for it.
func (q *writeQueue) push(w *write) bool {
	q.mu.Lock()
	if q.len() >= q.limit {
		q.mu.Unlock()
		return false
	}
	first := len(q.arrived) == 0
	q.arrived = append(q.arrived, w)
	q.n.Add(1)
	q.mu.Unlock()
	if first {
		select {
		case q.wakec <- struct{}{}:
		default:
		}
	}
	return true
}

// pop removes the first write; nil if the queue is empty. Then the caller waits for wakec before
// it calls pop again.
func (q *writeQueue) pop() *write {
	if q.next == len(q.taken) && !q.take() {
		return nil
	}
	w := q.taken[q.next]
	q.taken[q.next] = nil
	q.next++
	q.n.Add(-1)
	return w
}

// take takes the writes that have arrived, and reports whether there are any.
func (q *writeQueue) take() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.taken, q.arrived, q.next = q.arrived, q.taken[:0], 0
	if len(q.taken) > 0 {
		return true
	}
	if cap(q.taken) > keptWrites {
		q.taken = nil
	}
	if cap(q.arrived) > keptWrites {
		q.arrived = nil
	}
	return false
}
