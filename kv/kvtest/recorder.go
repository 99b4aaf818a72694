package kvtest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/atoll-dev/atoll/kv"
)

// recorder reads a watch to its end and records its responses.
type recorder struct {
	req    kv.WatchRequest
	watch  kv.Watch
	cancel context.CancelFunc
	done   chan struct{}

	mu        sync.Mutex
	changed   chan struct{}
	responses []kv.WatchResponse
}

func record(ctx context.Context, ks kv.Keyspace, req kv.WatchRequest) (*recorder, error) {
	ctx, cancel := context.WithCancel(ctx)
	w, err := ks.Watch(ctx, req)
	if err != nil {
		cancel()
		return nil, err
	}
	r := &recorder{req: req, watch: w, cancel: cancel, done: make(chan struct{}), changed: make(chan struct{})}
	go r.run()
	return r, nil
}

func (r *recorder) run() {
	defer close(r.done)
	for resp := range r.watch.Responses() {
		r.mu.Lock()
		r.responses = append(r.responses, resp)
		close(r.changed)
		r.changed = make(chan struct{})
		r.mu.Unlock()
	}
}

func (r *recorder) snapshot() ([]kv.WatchResponse, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.responses, r.changed
}

// until waits for a response that satisfies ok, beginning with the first.
func (r *recorder) until(ctx context.Context, what string, ok func(kv.WatchResponse) bool) (kv.WatchResponse, error) {
	timeout := time.NewTimer(eventTimeout)
	defer timeout.Stop()
	for seen := 0; ; {
		all, changed := r.snapshot()
		for ; seen < len(all); seen++ {
			if ok(all[seen]) {
				return all[seen], nil
			}
		}
		select {
		case <-changed:
		case <-r.done:
			if all, _ := r.snapshot(); len(all) > seen {
				continue
			}
			return kv.WatchResponse{}, fmt.Errorf("watch ended without %s; it sent %s", what, describe(all))
		case <-ctx.Done():
			return kv.WatchResponse{}, ctx.Err()
		case <-timeout.C:
			return kv.WatchResponse{}, fmt.Errorf("no %s within %v; the watch sent %s", what, eventTimeout, describe(all))
		}
	}
}

// catchUp requests progress and waits until the watch has reached rev, or has failed.
func (r *recorder) catchUp(ctx context.Context, rev kv.Revision) error {
	r.watch.RequestProgress()
	// A watch that begins in the future has nothing to catch up with.
	if r.req.StartRevision > rev {
		return nil
	}
	_, err := r.until(ctx, fmt.Sprintf("progress to revision %d", rev), func(resp kv.WatchResponse) bool {
		return resp.Err != nil || resp.Progress && resp.Revision >= rev
	})
	return err
}

// check compares all responses of the watch with a history.
func (r *recorder) check(m *Model) error {
	all, _ := r.snapshot()
	var through kv.Revision
	for i, resp := range all {
		if resp.Err != nil {
			return r.checkEnd(m, resp, through, i == len(all)-1)
		}
		switch {
		case resp.Revision < through:
			return fmt.Errorf("revision of response %d decreased from %d to %d", i, through, resp.Revision)
		case resp.Progress && len(resp.Events) > 0:
			return fmt.Errorf("response %d reports progress, but has events", i)
		case !resp.Progress && len(resp.Events) == 0:
			return fmt.Errorf("response %d has neither events nor progress", i)
		}
		for _, e := range resp.Events {
			if e.KV.ModRevision <= through {
				return fmt.Errorf("event of revision %d came after response %d had reported all up to revision %d", e.KV.ModRevision, i-1, through)
			}
		}
		if err := diff(resp.Events, known(m, r.req, resp.Events, through+1, resp.Revision)); err != nil {
			return fmt.Errorf("response %d, after revision %d and up to revision %d: %w", i, through, resp.Revision, err)
		}
		through = resp.Revision
	}
	return nil
}

// known returns the expected events of a response. Previous values that were compacted
// before the watch reached them may be missing.
func known(m *Model, req kv.WatchRequest, got []kv.Event, from, upTo kv.Revision) []kv.Event {
	req.StartRevision = max(req.StartRevision, from)
	want := m.Events(req, upTo)
	for i := range want {
		if i < len(got) && got[i].Prev == nil && want[i].Prev != nil && want[i].Prev.ModRevision < m.Compacted {
			want[i].Prev = nil
		}
	}
	return want
}

func (r *recorder) checkEnd(m *Model, resp kv.WatchResponse, through kv.Revision, last bool) error {
	switch {
	case !errors.Is(resp.Err, kv.ErrCompacted):
		return fmt.Errorf("watch failed: %w", resp.Err)
	case !last:
		return errors.New("responses after the error that ended the watch")
	case resp.CompactRevision > m.Compacted:
		return fmt.Errorf("watch reports compaction revision %d, want %d", resp.CompactRevision, m.Compacted)
	case max(r.req.StartRevision, through+1) >= resp.CompactRevision:
		return fmt.Errorf("watch was ended by a compaction at %d although it begins at %d and had reached %d",
			resp.CompactRevision, r.req.StartRevision, through)
	}
	return nil
}
