package apiserver

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

// mostResumed is how many watches of one resource may go on past its cache. Each decodes
// every event for itself; whoever comes after that lists anew, as upstream has everybody do.
const mostResumed = 100

// resuming is a store with a watch cache in which watches also go on from a state that is
// older than the cache: a server that has just been started, or asked for a custom
// resource for the first time, has none of what others have cached, but the keyspace
// has it. So a client that is led to another server misses nothing, and lists nothing.
type resuming struct {
	storage.Interface // with the cache
	past              storage.Interface
	began             atomic.Uint64 // the revision by which the cache had begun; 0 until it is known
	open              atomic.Int32
}

func (r *resuming) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	if opts.SendInitialEvents != nil || !r.precedes(ctx, opts.ResourceVersion) {
		return r.Interface.Watch(ctx, key, opts)
	}
	if r.open.Add(1) > mostResumed {
		r.open.Add(-1)
		return r.Interface.Watch(ctx, key, opts)
	}
	w, err := r.past.Watch(ctx, key, opts)
	if err != nil {
		r.open.Add(-1)
		return nil, err
	}
	return &resumed{Interface: w, ended: sync.OnceFunc(func() { r.open.Add(-1) })}, nil
}

// precedes tells whether a version may be from before the cache.
func (r *resuming) precedes(ctx context.Context, version string) bool {
	revision, err := strconv.ParseUint(version, 10, 64)
	if err != nil || revision == 0 {
		return false // none, any, or for upstream to complain about
	}
	if r.began.Load() == 0 {
		// The cache was made before this, and so holds what comes after it.
		now, err := r.GetCurrentResourceVersion(ctx)
		if err != nil {
			return false
		}
		r.began.CompareAndSwap(0, now)
	}
	return revision < r.began.Load()
}

type resumed struct {
	watch.Interface
	ended func()
}

func (r *resumed) Stop() {
	r.ended()
	r.Interface.Stop()
}
