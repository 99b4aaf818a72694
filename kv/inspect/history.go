package inspect

import (
	"context"
	"errors"
	"fmt"

	"github.com/atoll-dev/atoll/kv"
)

// Source is what history is read from: a Reader or any kv.Keyspace.
type Source interface {
	Watch(ctx context.Context, req kv.WatchRequest) (kv.Watch, error)
}

// History calls each with every change in after < revision <= upTo of the
// request's span, in order. upTo must have been reached.
func History(ctx context.Context, src Source, req kv.WatchRequest, after, upTo kv.Revision, each func(kv.Event) error) error {
	if after >= upTo {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	req.StartRevision = after + 1
	w, err := src.Watch(ctx, req)
	if err != nil {
		return err
	}
	// The answer says that nothing is still to come, if the last change of the
	// span is older than upTo.
	w.RequestProgress()
	for res := range w.Responses() {
		if res.Err != nil {
			return fmt.Errorf("read history after revision %d: %w", after, res.Err)
		}
		for _, e := range res.Events {
			if e.KV.ModRevision > upTo {
				return nil
			}
			if err := each(e); err != nil {
				return err
			}
		}
		if res.Revision >= upTo {
			return nil
		}
		if res.Progress {
			w.RequestProgress()
		}
	}
	return errors.Join(ctx.Err(), errors.New("read history: the watch ended early"))
}

// Garbage is what a compaction gives back.
type Garbage struct {
	// Changes of the log, and the bytes of their keys and values.
	Changes, Bytes int64
}

// Droppable tells what a compaction at rev would drop, the last one having been
// at compacted: every state that was replaced at or below rev, and deletions
// below it.
func Droppable(ctx context.Context, src Source, compacted, rev kv.Revision) (g Garbage, err error) {
	req := kv.WatchRequest{Span: kv.Prefix(nil), PrevKV: true}
	// Changes at the last compaction revision itself may still be watched; the
	// deletions among them go only now.
	err = History(ctx, src, req, max(compacted-1, 0), rev, func(e kv.Event) error {
		if e.KV.ModRevision > compacted && e.Prev != nil {
			g.Changes++
			g.Bytes += int64(len(e.Prev.Key) + len(e.Prev.Value))
		}
		if e.Type == kv.EventDelete && e.KV.ModRevision < rev {
			g.Changes++
			g.Bytes += int64(len(e.KV.Key))
		}
		return nil
	})
	return g, err
}
