package merged

import (
	"slices"
	"sync"
	"time"
)

// Positions are those of lists and watches over several keyspaces, each with a revision of its own. A client knows a position by a number,
// as its resourceVersion. Numbers increase, also over restarts, and are far above the revisions of a keyspace, so that neither is taken for
// the other one. The server remembers a bounded number of positions; a client whose number it does not know begins again.
type Positions struct {
	mu    sync.Mutex
	last  uint64
	kept  map[uint64]keptPosition
	order []uint64 // ascending
	size  int      // of all kept, in entries
	limit int
}

// maxPositionEntries bounds the entries of all positions that one Positions remembers: about 16 MiB.
const maxPositionEntries = 256 << 10

// firstPosition is above all revisions that a keyspace can have.
const firstPosition = 1 << 56

// position has, for each workspace of a list or watch, the revision up to which the client has seen everything.
type position map[string]int64

type keptPosition struct {
	of string
	at position
}

// remember returns the number of a position. of is the list or watch that it belongs to: the number is unknown to others.
func (p *Positions) remember(of string, at position, now time.Time) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.kept == nil {
		p.kept = map[uint64]keptPosition{}
	}
	p.last = max(p.last+1, uint64(max(now.UnixNano(), firstPosition)))
	p.kept[p.last] = keptPosition{of, at}
	p.order = append(p.order, p.last)
	p.size += len(at) + 1
	limit := p.limit
	if limit == 0 {
		limit = maxPositionEntries
	}
	for p.size > limit && len(p.order) > 1 {
		p.drop(p.order[0])
	}
	return p.last
}

// recall returns the position with that number.
func (p *Positions) recall(of string, number uint64) (position, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	found, ok := p.kept[number]
	if !ok || found.of != of {
		return nil, false
	}
	return found.at, true
}

// forget forgets a position that no client needs any more.
func (p *Positions) forget(number uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop(number)
}

func (p *Positions) drop(number uint64) {
	found, ok := p.kept[number]
	if !ok {
		return
	}
	delete(p.kept, number)
	p.size -= len(found.at) + 1
	if i, is := slices.BinarySearch(p.order, number); is {
		p.order = slices.Delete(p.order, i, i+1)
	}
}
