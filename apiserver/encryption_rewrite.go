package apiserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"
)

// rewriter stores the objects of a DefaultEncryption's resources again that are not encrypted as they
// would be now: those from before encryption, or under a former key. It changes their revision and
// nothing else, as an update without changes does. It may run on several servers.
type rewriter struct {
	encryption *encryption
	kv         clientv3.KV
	log        *slog.Logger
	metrics    *EncryptionMetrics
	// pace returns when the next object may be written.
	pace func(context.Context) error
	// pause is the time between passes, if some objects could not be written.
	pause time.Duration
}

const (
	// rewritesPerSecond leaves most of the datastore to clients.
	rewritesPerSecond = 200
	rewritePage       = 100
)

func newRewriter(e *encryption, kv clientv3.KV, log *slog.Logger) *rewriter {
	metrics := e.defaults.Metrics
	if metrics == nil {
		metrics = NewEncryptionMetrics()
	}
	return &rewriter{
		encryption: e, kv: kv, log: log, metrics: metrics,
		pace:  rate.NewLimiter(rewritesPerSecond, rewritePage).Wait,
		pause: 30 * time.Second,
	}
}

// run makes a pass over all objects at the start, and again when another key encrypts. It looks at the other keyspaces again from time
// to time, because there may be new ones.
func (r *rewriter) run(ctx context.Context) {
	defer r.metrics.complete.Set(0) // another server leads
	complete := false
	for {
		var err error
		if complete {
			err = r.others(ctx)
		} else {
			r.metrics.complete.Set(0)
			var n int
			if n, err = r.pass(ctx); err == nil {
				r.log.Info("all stored objects of this keyspace are encrypted as configured", "rewritten", n)
			}
			err = errors.Join(err, r.others(ctx))
		}
		if ctx.Err() != nil {
			return
		}
		var again <-chan time.Time
		if complete = err == nil; complete {
			r.metrics.complete.Set(1)
			if r.encryption.defaults.Others != nil {
				again = time.After(r.encryption.defaults.Recheck)
			}
		} else {
			r.metrics.complete.Set(0)
			r.log.Error("some stored objects could not be encrypted with the present key; trying again later", "err", err)
			again = time.After(r.pause)
		}
		select {
		case <-ctx.Done():
			return
		case <-r.encryption.changed:
			complete = false
		case <-again:
		}
	}
}

// others makes a pass over the other keyspaces.
func (r *rewriter) others(ctx context.Context) error {
	if r.encryption.defaults.Others == nil {
		return nil
	}
	return r.encryption.defaults.Others(ctx, Rewriting{r})
}

// pass returns the number of objects that it has written, and the first error of each resource.
func (r *rewriter) pass(ctx context.Context) (rewritten int, err error) {
	var errs []error
	for _, resource := range r.encryption.defaults.Resources {
		n, err := r.resource(ctx, resource)
		rewritten += n
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", resource, err))
		}
	}
	return rewritten, errors.Join(errs...)
}

func (r *rewriter) resource(ctx context.Context, resource schema.GroupResource) (rewritten int, failed error) {
	prefix := storedUnder(resource)
	end := clientv3.GetPrefixRangeEnd(prefix)
	transformer := r.encryption.transformer(resource)
	logged := false
	for from := prefix; ; {
		page, err := r.kv.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(rewritePage))
		if err != nil {
			return rewritten, errors.Join(failed, err)
		}
		for _, e := range page.Kvs {
			done, err := r.object(ctx, transformer, string(e.Key), e.Value, e.ModRevision)
			if ctx.Err() != nil {
				return rewritten, ctx.Err()
			}
			if err != nil && failed == nil {
				failed = fmt.Errorf("%s: %w", e.Key[len(registryPrefix):], err)
			}
			if done {
				rewritten++
				r.metrics.rewritten.WithLabelValues(resource.String()).Inc()
				if !logged {
					logged = true
					r.log.Info("encrypting the stored objects that are not encrypted with the present key", "resource", resource.String())
				}
			}
			from = string(e.Key) + "\x00"
		}
		if !page.More {
			return rewritten, failed
		}
	}
}

// storedUnder begins the keys of a resource that is encrypted by default.
func storedUnder(resource schema.GroupResource) string {
	prefix := registryPrefix
	if resource.Group != "" {
		prefix += resource.Group + "/"
	}
	return prefix + resource.Resource + "/"
}

// object writes one object again, if that would store it in another form. If another client changes it
// at the same time, that one encrypts it.
func (r *rewriter) object(ctx context.Context, t value.Transformer, key string, stored []byte, revision int64) (bool, error) {
	at := value.DefaultContext(key)
	plain, stale, err := t.TransformFromStorage(ctx, stored, at)
	if err != nil || !stale {
		return false, err
	}
	sealed, err := t.TransformToStorage(ctx, plain, at)
	if err != nil {
		return false, err
	}
	if err := r.pace(ctx); err != nil {
		return false, err
	}
	answer, err := r.kv.Txn(ctx).
		If(clientv3.Compare(clientv3.ModRevision(key), "=", revision)).
		Then(clientv3.OpPut(key, string(sealed), clientv3.WithIgnoreLease())).
		Commit()
	if err != nil {
		return false, err
	}
	return answer.Succeeded, nil
}
