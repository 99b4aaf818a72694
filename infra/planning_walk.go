package infra

import (
	"context"
	"time"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/graph"
)

const (
	defaultParallelism = 64
	// tellEvery is how often progress is told.
	tellEvery = 300 * time.Millisecond
)

// walk decides all that is in scope, each after what it waits for, many at a time. What is as it
// was is passed by here, without a goroutine.
func (r *run) walk(ctx context.Context, emitting *emitter) error {
	part, nodes := r.graph, []int32(nil)
	if r.scope != nil {
		part, nodes = r.graph.Part(r.scope)
	}
	at := func(n int32) int32 {
		if nodes == nil {
			return n
		}
		return nodes[n]
	}
	r.countUsers(part, at)
	progress, err := part.Walk(graph.ByPath, nil)
	if err != nil {
		return err // untangle has seen to it that there is no cycle
	}
	limit := r.what.Parallelism
	if limit <= 0 {
		limit = defaultParallelism
	}
	type result struct {
		node    int32
		decided bool
	}
	results, waiting := make(chan result, limit), make(chan int32, limit)
	running, workers := 0, 0
	// Those that were begun are waited for in any case: they write into the run.
	defer func() {
		close(waiting)
		for ; running > 0; running-- {
			<-results
		}
	}()
	// A goroutine decides one after the other: one that is new has to find its stack too small first.
	work := func() {
		for n := range waiting {
			results <- result{n, r.decide(ctx, at(n))}
		}
	}
	ended := func(n int32, decided bool) {
		if decided {
			progress.Done(n)
		} else {
			for _, blocked := range progress.Failed(n) {
				r.end(at(blocked))
			}
		}
		r.end(at(n))
	}
	told := r.Clock.Now()
	next := 0 // what is given to the emitter, by address
	for progress.Left() > 0 {
		for running < limit && ctx.Err() == nil {
			n, ready := progress.Next()
			if !ready {
				break
			}
			s := &r.slots[at(n)]
			if s.circle != "" {
				r.problem(s, "", "it refers to itself in a circle: "+s.circle+"; take one of these references out")
				ended(n, false)
				continue
			}
			if r.unchanged(ctx, s) {
				ended(n, true)
				continue
			}
			if running++; running > workers {
				workers++
				go work()
			}
			waiting <- n
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		for ; next < part.Len() && r.slots[at(int32(next))].ended; next++ {
			if !emitting.give(ctx, at(int32(next))) {
				return context.Cause(ctx)
			}
		}
		if r.what.Progress != nil && r.Clock.Since(told) >= tellEvery {
			told = r.Clock.Now()
			r.what.Progress(part.Len()-progress.Left(), part.Len())
		}
		if running == 0 {
			continue
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case one := <-results:
			running--
			ended(one.node, one.decided)
		}
	}
	for ; next < part.Len(); next++ {
		if !emitting.give(ctx, at(int32(next))) {
			return context.Cause(ctx)
		}
	}
	r.notPlanned += progress.Count(graph.Failed) + progress.Count(graph.Blocked)
	if r.what.Progress != nil {
		r.what.Progress(part.Len(), part.Len())
	}
	return nil
}

// countUsers notes how many will look at each slot, so that a value is kept no longer than that.
func (r *run) countUsers(part *graph.Graph, at func(int32) int32) {
	for n := range part.Len() {
		if s := &r.slots[at(int32(n))]; s.living() {
			compares := len(s.triggers()) > 0
			for _, u := range s.uses {
				used := &r.slots[u]
				used.users++
				used.popular = used.users > manyUsers
				used.compared = used.compared || compares
			}
		}
	}
}

// end notes that nothing more will come of a slot. Values that nobody will look at any more are let go: a
// hundred thousand of them are gigabytes.
func (r *run) end(i int32) {
	s := &r.slots[i]
	s.ended = true
	if s.users == 0 {
		r.release(i)
	} else {
		r.shelve(s)
	}
	if !s.living() {
		return
	}
	for _, u := range s.uses {
		if used := &r.slots[u]; used.users > 0 {
			if used.users--; used.users == 0 && (used.ended || int(u) >= r.count) {
				r.release(u)
			}
		}
	}
}

func (r *run) release(i int32) {
	s := &r.slots[i]
	s.decision, s.shelved = nil, nil
	if s.whole {
		s.whole = false
		r.whole--
	}
	r.views[i].value = cty.NilVal
}
