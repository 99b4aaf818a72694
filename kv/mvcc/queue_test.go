package mvcc

import (
	"sync"
	"testing"
	"time"
)

// TestWriteQueue pushes from many goroutines while one pops: each write arrives once, those
// of one goroutine in their order, and no pop misses one.
func TestWriteQueue(t *testing.T) {
	const pushers, each = 8, 5000
	q := newWriteQueue(100)
	var pushing sync.WaitGroup
	for p := range pushers {
		pushing.Go(func() {
			for i := range each {
				for w := (&write{bytes: i, rev: int64(p)}); !q.push(w); {
					time.Sleep(time.Microsecond)
				}
			}
		})
	}
	var next [pushers]int
	for n := 0; n < pushers*each; {
		w := q.pop()
		if w == nil {
			select {
			case <-q.wakec:
			case <-time.After(10 * time.Second):
				t.Fatalf("no wake-up after %d writes; %d are pending", n, q.len())
			}
			continue
		}
		if w.bytes != next[w.rev] {
			t.Fatalf("write %d of %d instead of %d", w.bytes, w.rev, next[w.rev])
		}
		next[w.rev]++
		n++
	}
	pushing.Wait()
	if q.len() != 0 || q.pop() != nil {
		t.Error("the queue is not empty")
	}
}

// TestWriteQueueBounds checks the limit, and that an empty queue frees its memory.
func TestWriteQueueBounds(t *testing.T) {
	const limit = 1000
	q := newWriteQueue(limit)
	for range 3 {
		for i := range limit {
			if !q.push(&write{}) {
				t.Fatalf("write %d was refused", i)
			}
		}
		if q.push(&write{}) {
			t.Fatal("one above the limit was accepted")
		}
		// A popped write makes room for one.
		if q.pop() == nil || !q.push(&write{}) || q.push(&write{}) {
			t.Fatal("the limit does not count popped writes")
		}
		for q.pop() != nil {
		}
		if kept := cap(q.taken) + cap(q.arrived); q.len() != 0 || kept > 2*keptWrites {
			t.Errorf("%d are pending, and memory for %d is kept", q.len(), kept)
		}
	}
}
