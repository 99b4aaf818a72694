package inspect

import (
	"context"
	"errors"
	"fmt"

	"github.com/atoll-dev/atoll/kv"
)

// HistorySource is a source of history: a Reader or any kv.Keyspace.
type HistorySource interface {
	Watch(ctx context.Context, req kv.WatchRequest) (kv.Watch, error)
}

// History calls each with every change in after < revision <= upTo of the request's span,
// in order. The keyspace must have reached upTo.
func History(ctx context.Context, src HistorySource, req kv.WatchRequest, after, upTo kv.Revision, each func(kv.Event) error) error {
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
	// If the span's last change is older than upTo, the answer marks the end.
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
	return errors.Join(ctx.Err(), errors.New("read history: the watch ended before the last revision"))
}

// Garbage is the data that a compaction removes.
type Garbage struct {
	// Changes counts rows of the log, Bytes the size of their keys and values.
	Changes, Bytes int64
}

// Reclaimable returns the data that a compaction at rev would remove, if the last one was
// at compacted: every state that was replaced at or below rev, and deletions below it.
func Reclaimable(ctx context.Context, src HistorySource, compacted, rev kv.Revision) (g Garbage, err error) {
	req := kv.WatchRequest{Span: kv.Prefix(nil), PrevKV: true}
	// Changes at the last compaction revision itself can still be watched; its deletions
	// are removed only by the next compaction.
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
