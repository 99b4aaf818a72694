package etcd

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"

	"github.com/atoll-dev/atoll/kv"
)

// progressRetry is how often a progress request is repeated: etcd drops a request that
// arrives while a watch is behind.
const progressRetry = 20 * time.Millisecond

// Watch opens a separate stream for each watch, because etcd answers progress requests only
// for all watches of a stream at once.
func (r *remote) Watch(ctx context.Context, req kv.WatchRequest) (kv.Watch, error) {
	// Because the revision is fixed here, a stream that breaks before the first event is
	// resumed without a gap or a repeat.
	if req.StartRevision == 0 {
		rev, err := r.head(ctx)
		if err != nil {
			return nil, err
		}
		req.StartRevision = rev + 1
	}
	opts := []clientv3.OpOption{clientv3.WithRange(string(req.End)), clientv3.WithRev(req.StartRevision)}
	if req.PrevKV {
		opts = append(opts, clientv3.WithPrevKV())
	}
	if req.NoPut {
		opts = append(opts, clientv3.WithFilterPut())
	}
	if req.NoDelete {
		opts = append(opts, clientv3.WithFilterDelete())
	}
	if req.ProgressNotify {
		opts = append(opts, clientv3.WithProgressNotify())
	}
	// clientv3 multiplexes watches whose contexts have equal metadata on one stream.
	ctx = metadata.AppendToOutgoingContext(ctx, "atoll-watch", strconv.FormatUint(rand.Uint64(), 36))
	w := &remoteWatch{r: r, ctx: ctx, out: make(chan kv.WatchResponse), ask: make(chan struct{}, 1)}
	in := r.client.Watch(ctx, string(req.Start), opts...)
	reached := make(chan kv.Revision, 1)
	go w.forward(in, reached)
	go w.progress(reached)
	return w, nil
}

func (r *remote) head(ctx context.Context) (kv.Revision, error) {
	res, err := r.Range(ctx, kv.RangeRequest{Span: kv.Span{Start: []byte{0}}, CountOnly: true})
	if err != nil {
		return 0, err
	}
	return res.Revision, nil
}

type remoteWatch struct {
	r   *remote
	ctx context.Context
	out chan kv.WatchResponse
	ask chan struct{}
}

func (w *remoteWatch) Responses() <-chan kv.WatchResponse { return w.out }

func (w *remoteWatch) RequestProgress() {
	select {
	case w.ask <- struct{}{}:
	default: // a pending request is answered for both
	}
}

func (w *remoteWatch) send(r kv.WatchResponse) bool {
	select {
	case w.out <- r:
		return true
	case <-w.ctx.Done():
		return false
	}
}

func (w *remoteWatch) forward(in clientv3.WatchChan, reached chan<- kv.Revision) {
	defer close(w.out)
	defer close(reached)
	for res := range in {
		if err := res.Err(); err != nil {
			out := kv.WatchResponse{Err: fromClient("watch", false, err), CompactRevision: res.CompactRevision}
			w.send(out)
			return
		}
		if res.IsProgressNotify() {
			rev := res.Header.Revision
			if !w.send(kv.WatchResponse{Revision: rev, Progress: true}) {
				return
			}
			select {
			case reached <- rev:
			default: // the next answer suffices
			}
			continue
		}
		if len(res.Events) == 0 {
			continue
		}
		// Not the header's revision: etcd sets the current one even while it still has
		// older events to send to a watch that is behind.
		out := kv.WatchResponse{
			Revision: res.Events[len(res.Events)-1].Kv.ModRevision,
			Events:   make([]kv.Event, len(res.Events)),
		}
		for i, e := range res.Events {
			out.Events[i] = eventFromClient(e)
		}
		if !w.send(out) {
			return
		}
	}
	if w.ctx.Err() == nil {
		w.send(kv.WatchResponse{Err: fmt.Errorf("etcd: watch: %w", fromClient("the client's stream ended", false, rpctypes.ErrStopped))})
	}
}

// progress repeats the request until an answer reaches the keyspace's revision at the time
// of the request.
func (w *remoteWatch) progress(reached <-chan kv.Revision) {
	tick := time.NewTicker(progressRetry)
	tick.Stop()
	var target kv.Revision
	for {
		select {
		case <-w.ctx.Done():
			return
		case <-w.ask:
			rev, err := w.r.head(w.ctx)
			if err != nil {
				// The watch itself reports the error to the client; retry later.
				rev = 1
			}
			target = max(target, rev)
			tick.Reset(progressRetry)
		case <-tick.C:
		case rev, open := <-reached:
			if !open {
				return
			}
			if rev >= target {
				target = 0
				tick.Stop()
			}
			continue
		}
		if target > 0 {
			_ = w.r.client.RequestProgress(w.ctx) // an error ends the watch too
		}
	}
}
