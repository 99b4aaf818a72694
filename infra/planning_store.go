package infra

import (
	"cmp"
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/atoll-dev/atoll/infra/plan"
)

// emitter puts changes together into chunks and stores them, while others are still being decided.
type emitter struct {
	run      *run
	slots    chan int32
	done     chan struct{}
	contents *plan.Contents
	err      error
}

// emit begins to store what give is given. If that fails it stops the plan.
func (r *run) emit(ctx context.Context, stop context.CancelCauseFunc, store PlanStore) *emitter {
	e := &emitter{run: r, slots: make(chan int32, 1024), done: make(chan struct{})}
	go func() {
		defer close(e.done)
		if e.contents, e.err = e.store(ctx, store); e.err != nil {
			stop(e.err)
		}
	}()
	return e
}

// give hands over a slot that has ended. They come by address. It is false if the plan is stopped.
func (e *emitter) give(ctx context.Context, slot int32) bool {
	select {
	case e.slots <- slot:
		return true
	case <-ctx.Done():
		return false
	}
}

// finish waits for all to be stored.
func (e *emitter) finish() (*plan.Contents, error) {
	close(e.slots)
	<-e.done
	return e.contents, e.err
}

// storingAtOnce is how many chunks are on their way to the store at a time.
const storingAtOnce = 3

func (e *emitter) store(ctx context.Context, store PlanStore) (*plan.Contents, error) {
	storing, within := errgroup.WithContext(ctx)
	storing.SetLimit(storingAtOnce)
	contents, err := e.fill(ctx, func(chunk int, shown, sealed [][]byte) error {
		if within.Err() != nil {
			return context.Cause(within)
		}
		storing.Go(func() error { return store.Put(within, chunk, shown, sealed) })
		return nil
	})
	return contents, cmp.Or(storing.Wait(), err)
}

// fill puts all that it is given into chunks.
func (e *emitter) fill(ctx context.Context, put func(chunk int, shown, sealed [][]byte) error) (*plan.Contents, error) {
	sealed := &sealedChunk{}
	chunks := plan.NewChunks(func(chunk int, shown [][]byte) error {
		pieces, err := sealed.take()
		if err != nil {
			return err
		}
		return put(chunk, shown, pieces)
	})
	workloads := e.run.what.Workloads
	before := func(address *plan.Address) error {
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
		if address := addressOf(s.ref); len(workloads) > 0 {
			if err := before(&address); err != nil {
				return nil, err
			}
		}
		if s.settled {
			// Nothing will be done, so there is nothing that it could depend on.
			if err := chunks.AddNoOp(addressOf(s.ref)); err != nil {
				return nil, err
			}
			continue
		}
		for _, o := range s.outcomes {
			// A chunk is stored by the first change that no longer fits it: what is sealed of
			// that one belongs to the next.
			if err := chunks.Add(o.change); err != nil {
				return nil, err
			}
			if o.sealed == nil {
				continue
			}
			if err := sealed.add(o.change.Address, o.sealed); err != nil {
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
