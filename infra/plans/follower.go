package plans

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
	// pageSize is how many values are read at a time: each may be over a megabyte, and nearly all are of a few kilobytes.
	pageSize = 500
	// streamKey has each follower get a stream of its own from the client, so that a progress request concerns
	// its watch alone.
	streamKey = "atoll-infra-feed"
)

// kind is what a follower makes of values. Its methods are called one at a time.
type kind interface {
	// put takes in a value of a revision. An error leaves what is known as it is.
	put(ctx context.Context, key string, value []byte, revision int64) error
	// gone takes in that there is no such key since a revision.
	gone(key string, revision int64)
	// revision is of what is known under a key, 0 if there is nothing. keys are all that are known.
	revision(key string) int64
	keys() []string
	// rename has everything called by the types of now.
	rename()
}

// follower has one prefix of the keyspace: everything under it is read, and then watched.
type follower struct {
	feed   *Feed
	prefix string
	kind   kind

	// taking is held while the kind is told of something.
	taking sync.Mutex
	broken map[string]error // by key: what could not be read, under taking

	mu       sync.Mutex
	reached  int64         // everything at or below this revision was taken in
	watching bool          // there is a watch that progress can be asked of
	moved    chan struct{} // closed when one of these changes
	failed   error         // what the last attempt to read ended with
}

func newFollower(f *Feed, prefix string, k kind) *follower {
	return &follower{feed: f, prefix: prefix, kind: k, broken: map[string]error{}, moved: make(chan struct{})}
}

// stream marks calls so that they are about this follower's own watch.
func (fo *follower) stream(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, streamKey, fo.feed.id+fo.prefix)
}

// follow reads and watches until ctx ends. Whatever ends a watch, everything is compared again: no deletion
// is missed.
func (fo *follower) follow(ctx context.Context) {
	for ctx.Err() == nil {
		revision, err := fo.read(ctx)
		if err == nil {
			err = fo.watch(ctx, revision)
		}
		fo.note(func() { fo.watching, fo.failed = false, err })
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			fo.feed.cfg.Log.Warn("the watch of infrastructure is begun anew", "prefix", fo.prefix, "error", err)
			fo.feed.rest(ctx)
		}
	}
}

// note changes what is known of how far it is, and wakes who waits for it.
func (fo *follower) note(change func()) {
	fo.mu.Lock()
	defer fo.mu.Unlock()
	change()
	close(fo.moved)
	fo.moved = make(chan struct{})
}

// read takes in all there is, at one revision, which it gives.
func (fo *follower) read(ctx context.Context) (int64, error) {
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
			return 0, fmt.Errorf("read what is under %s: %w", fo.prefix, err)
		}
		if revision == 0 {
			revision = page.Header.Revision
		}
		for _, kv := range page.Kvs {
			seen[string(kv.Key)] = true
			fo.take(ctx, kv)
		}
		if !page.More || len(page.Kvs) == 0 {
			break
		}
		from = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
	}
	fo.taking.Lock()
	for _, key := range fo.kind.keys() {
		if !seen[key] && fo.kind.revision(key) <= revision {
			fo.kind.gone(key, revision)
		}
	}
	for key := range fo.broken {
		if !seen[key] {
			delete(fo.broken, key)
		}
	}
	fo.taking.Unlock()
	fo.note(func() { fo.reached, fo.failed = revision, nil })
	return revision, nil
}

func (fo *follower) take(ctx context.Context, kv *mvccpb.KeyValue) {
	fo.taking.Lock()
	defer fo.taking.Unlock()
	key := string(kv.Key)
	if _, retry := fo.broken[key]; !retry && fo.kind.revision(key) >= kv.ModRevision {
		return
	}
	if err := fo.kind.put(ctx, key, kv.Value, kv.ModRevision); err != nil {
		fo.broken[key] = err
		fo.feed.cfg.Log.Warn("a stored object of infrastructure cannot be read", "key", key, "error", err)
		return
	}
	delete(fo.broken, key)
}

func (fo *follower) lose(key string, revision int64) {
	fo.taking.Lock()
	defer fo.taking.Unlock()
	delete(fo.broken, key)
	if fo.kind.revision(key) < revision {
		fo.kind.gone(key, revision)
	}
}

// errAgain has what could not be read tried again.
var errAgain = errors.New("what could not be read is read again")

// watch takes in what changes after a revision.
func (fo *follower) watch(ctx context.Context, revision int64) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	responses := fo.feed.cfg.Keyspace.Watch(fo.stream(ctx), fo.prefix, clientv3.WithPrefix(), clientv3.WithRev(revision+1), clientv3.WithCreatedNotify())
	again := fo.feed.cfg.Clock.NewTicker(5 * retryAfter)
	defer again.Stop()
	for {
		select {
		case <-again.C():
			if fo.unread() != nil {
				return errAgain
			}
		case r, open := <-responses:
			if !open {
				return errors.Join(ctx.Err(), errors.New("the watch ended"))
			}
			if err := r.Err(); err != nil {
				if errors.Is(err, rpctypes.ErrCompacted) {
					fo.feed.cfg.Log.Info("the history of infrastructure was compacted past a watch; everything is compared again", "prefix", fo.prefix)
					return nil
				}
				return err
			}
			fo.respond(ctx, r)
		}
	}
}

func (fo *follower) respond(ctx context.Context, r clientv3.WatchResponse) {
	var revision int64
	for _, e := range r.Events {
		if e.Type == clientv3.EventTypeDelete {
			fo.lose(string(e.Kv.Key), e.Kv.ModRevision)
		} else {
			fo.take(ctx, e.Kv)
		}
		revision = e.Kv.ModRevision
	}
	if r.IsProgressNotify() {
		revision = r.Header.Revision
	}
	fo.note(func() {
		fo.watching = true
		fo.reached = max(fo.reached, revision)
	})
}

// unread is an error about what could not be read.
func (fo *follower) unread() error {
	fo.taking.Lock()
	defer fo.taking.Unlock()
	if len(fo.broken) == 0 {
		return nil
	}
	return unreadable(fo.broken)
}

// catchUp returns once everything was taken in that is there now.
func (fo *follower) catchUp(ctx, run context.Context) error {
	// A read of the present, which is in one order with all writes: its revision is of the prefix's own
	// order, if that is a partition. Of one key, that of the prefix itself, which nothing is under: a range would be counted.
	now, err := fo.feed.cfg.Keyspace.Get(ctx, fo.prefix, clientv3.WithKeysOnly())
	if err != nil {
		return fmt.Errorf("find out what was written last under %s: %w", fo.prefix, err)
	}
	// One request is enough as long as its watch lasts. It may not.
	again := fo.feed.cfg.Clock.NewTicker(retryAfter)
	defer again.Stop()
	for asked := false; ; {
		fo.mu.Lock()
		reached, watching, moved, failed := fo.reached, fo.watching, fo.moved, fo.failed
		fo.mu.Unlock()
		if reached >= now.Header.Revision {
			return fo.unread()
		}
		if watching && !asked {
			if err := fo.feed.cfg.Keyspace.RequestProgress(fo.stream(ctx)); err != nil && ctx.Err() == nil {
				fo.feed.cfg.Log.Debug("progress of a watch could not be asked for", "prefix", fo.prefix, "error", err)
			}
			asked = true
		}
		select {
		case <-moved:
		case <-again.C():
			asked = false
		case <-run.Done():
			return ErrNotFed
		case <-ctx.Done():
			if failed != nil {
				return fmt.Errorf("read what is under %s: %w", fo.prefix, failed)
			}
			return fmt.Errorf("wait until everything under %s was read: %w", fo.prefix, ctx.Err())
		}
	}
}

// rename has everything called by the types of now.
func (fo *follower) rename() {
	fo.taking.Lock()
	defer fo.taking.Unlock()
	fo.kind.rename()
}
