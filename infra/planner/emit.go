package planner

import (
	"cmp"
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/planstore"
)

// emitter packs changes into chunks and stores them while other resources are still planned.
type emitter struct {
	run      *run
	slots    chan int32
	done     chan struct{}
	contents *planstore.Contents
	err      error
}

// emit starts storing the slots passed to send. An error stops the plan.
func (r *run) emit(ctx context.Context, stop context.CancelCauseFunc, store planstore.Store) *emitter {
	e := &emitter{run: r, slots: make(chan int32, 1024), done: make(chan struct{})}
	go func() {
		defer close(e.done)
		if e.contents, e.err = e.store(ctx, store); e.err != nil {
			stop(e.err)
		}
	}()
	return e
}

// send passes on a slot that has ended, in the order of addresses. It returns false if the plan is
// stopped.
func (e *emitter) send(ctx context.Context, slot int32) bool {
	select {
	case e.slots <- slot:
		return true
	case <-ctx.Done():
		return false
	}
}

// finish waits until everything is stored.
func (e *emitter) finish() (*planstore.Contents, error) {
	close(e.slots)
	<-e.done
	return e.contents, e.err
}

// maxConcurrentPuts is how many chunks are written to the store concurrently.
const maxConcurrentPuts = 3

func (e *emitter) store(ctx context.Context, store planstore.Store) (*planstore.Contents, error) {
	storing, within := errgroup.WithContext(ctx)
	storing.SetLimit(maxConcurrentPuts)
	contents, err := e.fill(ctx, func(chunk int, shown, sealed [][]byte) error {
		if within.Err() != nil {
			return context.Cause(within)
		}
		storing.Go(func() error { return store.Put(within, chunk, shown, sealed) })
		return nil
	})
	return contents, cmp.Or(storing.Wait(), err)
}

// fill packs the slots into chunks.
func (e *emitter) fill(ctx context.Context, put func(chunk int, shown, sealed [][]byte) error) (*planstore.Contents, error) {
	sealed := &planstore.SealedChunk{}
	chunks := planstore.NewChunkWriter(func(chunk int, shown [][]byte) error {
		pieces, err := sealed.Take()
		if err != nil {
			return err
		}
		return put(chunk, shown, pieces)
	})
	workloads := e.run.opts.Workloads
	before := func(address *change.Address) error {
		for len(workloads) > 0 && (address == nil || workloads[0].Address.Compare(*address) < 0) {
			if err := chunks.Add(workloads[0]); err != nil {
				return err
			}
			workloads = workloads[1:]
		}
		return nil
	}
	for at := range e.slots {
		s := &e.run.slots[at]
		if address := infra.AddressOf(s.Ref); len(workloads) > 0 {
			if err := before(&address); err != nil {
				return nil, err
			}
		}
		if s.settled {
			// It has no preconditions, because nothing will be done.
			if err := chunks.AddNoOp(infra.AddressOf(s.Ref)); err != nil {
				return nil, err
			}
			continue
		}
		for _, o := range s.outcomes {
			// Adding the first change that does not fit stores the chunk. The sealed part of that
			// change belongs to the next chunk.
			if err := chunks.Add(o.change); err != nil {
				return nil, err
			}
			if o.sealed == nil {
				continue
			}
			if err := sealed.Add(o.change.Address, o.sealed); err != nil {
				return nil, err
			}
		}
		s.outcomes = nil
	}
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	if err := before(nil); err != nil {
		return nil, err
	}
	return chunks.Finish()
}
