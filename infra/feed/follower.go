package feed

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"
)

const (
	// pageSize is how many values are listed at a time. A value may exceed a megabyte, but nearly all are a
	// few kilobytes.
	pageSize = 500
	// streamKey makes the client open one stream for each follower, so that a progress request concerns its
	// watch alone.
	streamKey = "atoll-infra-feed"
)

// handler stores the values that a follower reads. Its methods are never called concurrently.
type handler interface {
	// put stores a value at a revision. After an error, the previous value remains.
	put(ctx context.Context, key string, value []byte, revision int64) error
	// remove records that a key was deleted at or before a revision.
	remove(key string, revision int64)
	// revision returns the stored revision of a key, or 0; keys returns all stored keys.
	revision(key string) int64
	keys() []string
	// retype updates all references to the types that are served now.
	retype()
}

// follower lists and then watches one prefix of the keyspace.
type follower struct {
	feed    *Feed
	prefix  string
	handler handler

	// handling is held while the handler is called.
	handling    sync.Mutex
	undecodable map[string]error // by key: why a value could not be decoded; guarded by handling

	mu       sync.Mutex
	synced   int64         // everything at or below this revision was handled
	watching bool          // a watch is open that can report progress
	changed  chan struct{} // closed when one of these changes
	failed   error         // why the last attempt to list or watch ended
}

func newFollower(f *Feed, prefix string, h handler) *follower {
	return &follower{feed: f, prefix: prefix, handler: h, undecodable: map[string]error{}, changed: make(chan struct{})}
}

// stream marks calls so that they use this follower's own stream.
func (fo *follower) stream(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, streamKey, fo.feed.id+fo.prefix)
}

// follow lists and watches until ctx ends. After a watch ends for any reason, it lists again: no deletion is
// missed.
func (fo *follower) follow(ctx context.Context) {
	for ctx.Err() == nil {
		revision, err := fo.list(ctx)
		if err == nil {
			err = fo.watch(ctx, revision)
		}
		fo.update(func() { fo.watching, fo.failed = false, err })
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			fo.feed.cfg.Log.Warn("watch ended; restarting", "prefix", fo.prefix, "error", err)
			fo.feed.sleep(ctx)
		}
	}
}

// update changes the follower's progress and wakes its waiters.
func (fo *follower) update(change func()) {
	fo.mu.Lock()
	defer fo.mu.Unlock()
	change()
	close(fo.changed)
	fo.changed = make(chan struct{})
}

// list handles everything under the prefix at one revision, and returns that revision.
func (fo *follower) list(ctx context.Context) (int64, error) {
	seen := map[string]bool{}
	var revision int64
	from, end := fo.prefix, clientv3.GetPrefixRangeEnd(fo.prefix)
	for {
		opts := []clientv3.OpOption{clientv3.WithRange(end), clientv3.WithLimit(pageSize), clientv3.WithSort(clientv3.SortByKey, clientv3.SortAscend)}
		if revision > 0 {
			opts = append(opts, clientv3.WithRev(revision))
		}
		page, err := fo.feed.cfg.Keyspace.Get(ctx, from, opts...)
		if err != nil {
			return 0, fmt.Errorf("list %s: %w", fo.prefix, err)
		}
		if revision == 0 {
			revision = page.Header.Revision
		}
		for _, kv := range page.Kvs {
			seen[string(kv.Key)] = true
			fo.handlePut(ctx, kv)
		}
		if !page.More || len(page.Kvs) == 0 {
			break
		}
		from = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
	}
	fo.handling.Lock()
	for _, key := range fo.handler.keys() {
		if !seen[key] && fo.handler.revision(key) <= revision {
			fo.handler.remove(key, revision)
		}
	}
	for key := range fo.undecodable {
		if !seen[key] {
			delete(fo.undecodable, key)
		}
	}
	fo.handling.Unlock()
	fo.update(func() { fo.synced, fo.failed = revision, nil })
	return revision, nil
}

func (fo *follower) handlePut(ctx context.Context, kv *mvccpb.KeyValue) {
	fo.handling.Lock()
	defer fo.handling.Unlock()
	key := string(kv.Key)
	if _, retry := fo.undecodable[key]; !retry && fo.handler.revision(key) >= kv.ModRevision {
		return
	}
	if err := fo.handler.put(ctx, key, kv.Value, kv.ModRevision); err != nil {
		fo.undecodable[key] = err
		fo.feed.cfg.Log.Warn("stored object cannot be decoded", "key", key, "error", err)
		return
	}
	delete(fo.undecodable, key)
}

func (fo *follower) handleDelete(key string, revision int64) {
	fo.handling.Lock()
	defer fo.handling.Unlock()
	delete(fo.undecodable, key)
	if fo.handler.revision(key) < revision {
		fo.handler.remove(key, revision)
	}
}

// errRetryUndecodable ends a watch so that undecodable values are read again.
var errRetryUndecodable = errors.New("retrying values that could not be decoded")

// watch handles everything that changes after a revision.
func (fo *follower) watch(ctx context.Context, revision int64) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	responses := fo.feed.cfg.Keyspace.Watch(fo.stream(ctx), fo.prefix, clientv3.WithPrefix(), clientv3.WithRev(revision+1), clientv3.WithCreatedNotify())
	again := fo.feed.cfg.Clock.NewTicker(5 * retryAfter)
	defer again.Stop()
	for {
		select {
		case <-again.C():
			if fo.undecodableError() != nil {
				return errRetryUndecodable
			}
		case r, open := <-responses:
			if !open {
				return errors.Join(ctx.Err(), errors.New("the watch ended"))
			}
			if err := r.Err(); err != nil {
				if errors.Is(err, rpctypes.ErrCompacted) {
					fo.feed.cfg.Log.Info("watch revision was compacted; listing again", "prefix", fo.prefix)
					return nil
				}
				return err
			}
			fo.handleResponse(ctx, r)
		}
	}
}

func (fo *follower) handleResponse(ctx context.Context, r clientv3.WatchResponse) {
	var revision int64
	for _, e := range r.Events {
		if e.Type == clientv3.EventTypeDelete {
			fo.handleDelete(string(e.Kv.Key), e.Kv.ModRevision)
		} else {
			fo.handlePut(ctx, e.Kv)
		}
		revision = e.Kv.ModRevision
	}
	if r.IsProgressNotify() {
		revision = r.Header.Revision
	}
	fo.update(func() {
		fo.watching = true
		fo.synced = max(fo.synced, revision)
	})
}

// undecodableError returns an error that names the values that could not be decoded, or nil.
func (fo *follower) undecodableError() error {
	fo.handling.Lock()
	defer fo.handling.Unlock()
	if len(fo.undecodable) == 0 {
		return nil
	}
	return undecodableError(fo.undecodable)
}

// catchUp returns once everything was handled that is stored at the time of the call.
func (fo *follower) catchUp(ctx, run context.Context) error {
	// A linearizable read: its revision belongs to the prefix's own order, if the prefix is a partition. It
	// reads the key that equals the prefix, which nothing is stored under, because a range would be counted.
	now, err := fo.feed.cfg.Keyspace.Get(ctx, fo.prefix, clientv3.WithKeysOnly())
	if err != nil {
		return fmt.Errorf("read the current revision of %s: %w", fo.prefix, err)
	}
	// One progress request is enough while its watch lasts, which it may not.
	again := fo.feed.cfg.Clock.NewTicker(retryAfter)
	defer again.Stop()
	for requested := false; ; {
		fo.mu.Lock()
		synced, watching, changed, failed := fo.synced, fo.watching, fo.changed, fo.failed
		fo.mu.Unlock()
		if synced >= now.Header.Revision {
			return fo.undecodableError()
		}
		if watching && !requested {
			if err := fo.feed.cfg.Keyspace.RequestProgress(fo.stream(ctx)); err != nil && ctx.Err() == nil {
				fo.feed.cfg.Log.Debug("watch progress request failed", "prefix", fo.prefix, "error", err)
			}
			requested = true
		}
		select {
		case <-changed:
		case <-again.C():
			requested = false
		case <-run.Done():
			return ErrNotRunning
		case <-ctx.Done():
			if failed != nil {
				return fmt.Errorf("list %s: %w", fo.prefix, failed)
			}
			return fmt.Errorf("wait for the watch of %s to catch up: %w", fo.prefix, ctx.Err())
		}
	}
}

// retype updates all references to the types that are served now.
func (fo *follower) retype() {
	fo.handling.Lock()
	defer fo.handling.Unlock()
	fo.handler.retype()
}
