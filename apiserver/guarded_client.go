package apiserver

import (
	"context"
	"errors"
	"net/http"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// guardedClient ends the calls of a keyspace's client when contact with the datastore
// is lost. It translates their errors into ones that API clients can act on. Upstream's
// store returns every other error as a 500 with its full text.
type guardedClient struct {
	kubernetes.Interface
	reachability *reachability
}

// guardedKV and guardedLease have the few calls that upstream's store does not make
// through kubernetes.Interface.
type (
	guardedKV struct {
		clientv3.KV
		contact *reachability
	}
	guardedLease struct {
		clientv3.Lease
		contact *reachability
	}
)

func (i guardedClient) Get(ctx context.Context, key string, opts kubernetes.GetOptions) (kubernetes.GetResponse, error) {
	return reading(ctx, i.reachability, func(ctx context.Context) (kubernetes.GetResponse, error) {
		return i.Interface.Get(ctx, key, opts)
	})
}

func (i guardedClient) List(ctx context.Context, prefix string, opts kubernetes.ListOptions) (kubernetes.ListResponse, error) {
	return reading(ctx, i.reachability, func(ctx context.Context) (kubernetes.ListResponse, error) {
		return i.Interface.List(ctx, prefix, opts)
	})
}

func (i guardedClient) Count(ctx context.Context, prefix string, opts kubernetes.CountOptions) (int64, error) {
	return reading(ctx, i.reachability, func(ctx context.Context) (int64, error) {
		return i.Interface.Count(ctx, prefix, opts)
	})
}

func (i guardedClient) OptimisticPut(ctx context.Context, key string, value []byte, expected int64, opts kubernetes.PutOptions) (kubernetes.PutResponse, error) {
	return writing(ctx, i.reachability, func(ctx context.Context) (kubernetes.PutResponse, error) {
		return i.Interface.OptimisticPut(ctx, key, value, expected, opts)
	})
}

func (i guardedClient) OptimisticDelete(ctx context.Context, key string, expected int64, opts kubernetes.DeleteOptions) (kubernetes.DeleteResponse, error) {
	return writing(ctx, i.reachability, func(ctx context.Context) (kubernetes.DeleteResponse, error) {
		return i.Interface.OptimisticDelete(ctx, key, expected, opts)
	})
}

func (i guardedKV) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	return reading(ctx, i.contact, func(ctx context.Context) (*clientv3.GetResponse, error) {
		return i.KV.Get(ctx, key, opts...)
	})
}

func (i guardedLease) Grant(ctx context.Context, ttl int64) (*clientv3.LeaseGrantResponse, error) {
	// If the answer is lost, the unused lease simply expires.
	return writing(ctx, i.contact, func(ctx context.Context) (*clientv3.LeaseGrantResponse, error) {
		return i.Lease.Grant(ctx, ttl)
	})
}

func reading[T any](ctx context.Context, c *reachability, read func(context.Context) (T, error)) (T, error) {
	var none T
	if c.lost() {
		return none, unreachable()
	}
	within, over := c.guard(ctx)
	defer over()
	out, err := read(within)
	if err == nil {
		c.succeeded()
		return out, nil
	}
	return none, c.clientError(ctx, within, err)
}

// finalAnswerTimeout is how long a write that is being canceled has to report that
// nothing has happened.
const finalAnswerTimeout = 100 * time.Millisecond

// writing differs from reading: a write that was sent to the datastore cannot be
// canceled. A caller that stops waiting does not know its outcome.
func writing[T any](ctx context.Context, c *reachability, write func(context.Context) (T, error)) (T, error) {
	var none T
	if c.lost() {
		return none, unreachable()
	}
	within, over := c.guard(ctx)
	type result struct {
		out T
		err error
	}
	done := make(chan result, 1)
	go func() {
		defer over()
		out, err := write(within)
		if err == nil {
			c.succeeded()
			c.full.Store(false)
		} else {
			err = c.clientError(ctx, within, err)
		}
		done <- result{out, err}
	}()
	select {
	case r := <-done:
		return r.out, r.err
	case <-within.Done():
	}
	if ctx.Err() != nil {
		// The caller itself has canceled. The keyspace then promises to report the
		// outcome.
		r := <-done
		return r.out, r.err
	}
	select {
	case r := <-done:
		return r.out, r.err
	case <-c.clock.After(finalAnswerTimeout):
		return none, unknownOutcome()
	}
}

// clientError translates an error of the keyspace for a client of the API. within is
// the context of the call, derived from ctx.
func (c *reachability) clientError(ctx, within context.Context, err error) error {
	if errors.Is(err, rpctypes.ErrNoSpace) {
		c.full.Store(true)
		return noSpace()
	}
	if ctx.Err() != nil {
		return err // the client has gone
	}
	var known rpctypes.EtcdError
	errors.As(err, &known)
	switch {
	case errors.Is(err, rpctypes.ErrTimeout):
		return unknownOutcome()
	case errors.Is(err, rpctypes.ErrTooManyRequests):
		return overloaded()
	case within.Err() != nil:
		return unreachable() // ended by loss of contact, before anything happened
	case known.Code() == codes.Unavailable, status.Code(err) == codes.Unavailable:
		c.failed(err)
		return unavailable("is not serving, and nothing was read or changed: try again, use another server, or check /readyz?verbose of this one for the cause")
	}
	return err
}

// unreachable is the error while contact is lost.
func unreachable() error {
	return unavailable("cannot be reached, and nothing was read or changed: try again, or use another server")
}

// unavailable is the error for a call that had no effect. It has no Retry-After:
// client-go would retry ten times before it reported anything.
func unavailable(why string) error {
	return failure(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "the datastore of this server "+why)
}

// unknownOutcome does not ask the client to retry: only the client knows what a second
// attempt would do.
func unknownOutcome() error {
	return failure(http.StatusGatewayTimeout, metav1.StatusReasonTimeout,
		"the datastore of this server does not respond, and it is unknown whether the change was made: read the object before you try again")
}

func overloaded() error {
	s := failure(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests,
		"too many writes are waiting for the datastore of this server, and nothing was changed: try again later")
	// Most clients then retry by themselves.
	s.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
	return s
}

// noSpace has a code of its own: the request was valid, and the server works. Upstream would answer 500 with
// etcd's text.
func noSpace() *apierrors.StatusError {
	return failure(http.StatusInsufficientStorage, "InsufficientStorage",
		"the disk of this server's datastore is full, and nothing was changed: free space on it; writes then succeed again")
}

func failure(code int32, reason metav1.StatusReason, message string) *apierrors.StatusError {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason, Message: message}}
}
