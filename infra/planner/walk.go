package planner

import (
	"context"
	"time"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/graph"
)

const (
	defaultParallelism = 64
	// progressInterval is how often OnProgress is called.
	progressInterval = 300 * time.Millisecond
)

// walk plans everything in scope, dependencies first, many at a time. It handles unchanged
// resources itself, without a goroutine.
func (r *run) walk(ctx context.Context, emitting *emitter) error {
	part, nodes := r.graph, []int32(nil)
	if r.scope != nil {
		part, nodes = r.graph.Subgraph(r.scope)
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
		return err // cannot happen: buildGraph has removed all cycles
	}
	limit := r.opts.Parallelism
	if limit <= 0 {
		limit = defaultParallelism
	}
	type result struct {
		node    int32
		decided bool
	}
	results, waiting := make(chan result, limit), make(chan int32, limit)
	running, workers := 0, 0
	// Always wait for running workers: they write to the run.
	defer func() {
		close(waiting)
		for ; running > 0; running-- {
			<-results
		}
	}()
	// Workers are reused: a new goroutine would first have to grow its stack.
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
	lastProgress := r.Clock.Now()
	next := 0 // next slot for the emitter, by address
	for progress.Left() > 0 {
		for running < limit && ctx.Err() == nil {
			n, ready := progress.Next()
			if !ready {
				break
			}
			s := &r.slots[at(n)]
			if s.cycle != "" {
				r.problem(s, "", "reference cycle: "+s.cycle+": remove one of these references")
				ended(n, false)
				continue
			}
			if r.isUnchanged(ctx, s) {
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
			if !emitting.send(ctx, at(int32(next))) {
				return context.Cause(ctx)
			}
		}
		if r.opts.OnProgress != nil && r.Clock.Since(lastProgress) >= progressInterval {
			lastProgress = r.Clock.Now()
			r.opts.OnProgress(part.Len()-progress.Left(), part.Len())
		}
		if running == 0 {
			continue
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case res := <-results:
			running--
			ended(res.node, res.decided)
		}
	}
	for ; next < part.Len(); next++ {
		if !emitting.send(ctx, at(int32(next))) {
			return context.Cause(ctx)
		}
	}
	r.notPlanned += progress.Count(graph.Failed) + progress.Count(graph.Blocked)
	if r.opts.OnProgress != nil {
		r.opts.OnProgress(part.Len(), part.Len())
	}
	return nil
}

// countUsers counts the dependents of each slot, so that its value is released after the last one.
func (r *run) countUsers(part *graph.Graph, at func(int32) int32) {
	for n := range part.Len() {
		if s := &r.slots[at(int32(n))]; s.isDesired() {
			compares := len(s.Triggers()) > 0
			for _, u := range s.Uses {
				used := &r.slots[u]
				used.users++
				used.widelyUsed = used.users > manyUsers
				used.compared = used.compared || compares
			}
		}
	}
}

// end records that a slot has ended and releases the values that no dependent needs any more: a
// hundred thousand values take gigabytes.
func (r *run) end(i int32) {
	s := &r.slots[i]
	s.ended = true
	if s.users == 0 {
		r.release(i)
	} else {
		r.encodeValue(s)
	}
	if !s.isDesired() {
		return
	}
	for _, u := range s.Uses {
		if used := &r.slots[u]; used.users > 0 {
			if used.users--; used.users == 0 && (used.ended || int(u) >= r.count) {
				r.release(u)
			}
		}
	}
}

func (r *run) release(i int32) {
	s := &r.slots[i]
	s.decision, s.encoded = nil, nil
	if s.retained {
		s.retained = false
		r.retained--
	}
	r.values[i].value = cty.NilVal
}
