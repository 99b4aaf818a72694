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

// impatient has calls of a keyspace's client end when contact with the datastore is
// lost, and turns its errors into what clients of the API can act on. Upstream's
// store hands every other error on as 500, with all that it says.
type impatient struct {
	kubernetes.Interface
	contact *contact
}

// impatientKV and impatientLease are the few calls that upstream's store does not
// make through kubernetes.Interface.
type (
	impatientKV struct {
		clientv3.KV
		contact *contact
	}
	impatientLease struct {
		clientv3.Lease
		contact *contact
	}
)

func (i impatient) Get(ctx context.Context, key string, opts kubernetes.GetOptions) (kubernetes.GetResponse, error) {
	return reading(ctx, i.contact, func(ctx context.Context) (kubernetes.GetResponse, error) {
		return i.Interface.Get(ctx, key, opts)
	})
}

func (i impatient) List(ctx context.Context, prefix string, opts kubernetes.ListOptions) (kubernetes.ListResponse, error) {
	return reading(ctx, i.contact, func(ctx context.Context) (kubernetes.ListResponse, error) {
		return i.Interface.List(ctx, prefix, opts)
	})
}

func (i impatient) Count(ctx context.Context, prefix string, opts kubernetes.CountOptions) (int64, error) {
	return reading(ctx, i.contact, func(ctx context.Context) (int64, error) {
		return i.Interface.Count(ctx, prefix, opts)
	})
}

func (i impatient) OptimisticPut(ctx context.Context, key string, value []byte, expected int64, opts kubernetes.PutOptions) (kubernetes.PutResponse, error) {
	return writing(ctx, i.contact, func(ctx context.Context) (kubernetes.PutResponse, error) {
		return i.Interface.OptimisticPut(ctx, key, value, expected, opts)
	})
}

func (i impatient) OptimisticDelete(ctx context.Context, key string, expected int64, opts kubernetes.DeleteOptions) (kubernetes.DeleteResponse, error) {
	return writing(ctx, i.contact, func(ctx context.Context) (kubernetes.DeleteResponse, error) {
		return i.Interface.OptimisticDelete(ctx, key, expected, opts)
	})
}

func (i impatientKV) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	return reading(ctx, i.contact, func(ctx context.Context) (*clientv3.GetResponse, error) {
		return i.KV.Get(ctx, key, opts...)
	})
}

func (i impatientLease) Grant(ctx context.Context, ttl int64) (*clientv3.LeaseGrantResponse, error) {
	// Of a lease that nobody knows of nothing is left when its time is over.
	return writing(ctx, i.contact, func(ctx context.Context) (*clientv3.LeaseGrantResponse, error) {
		return i.Lease.Grant(ctx, ttl)
	})
}

func reading[T any](ctx context.Context, c *contact, read func(context.Context) (T, error)) (T, error) {
	var none T
	if c.lost() {
		return none, unreachable()
	}
	within, over := c.during(ctx)
	defer over()
	out, err := read(within)
	if err == nil {
		return out, nil
	}
	return none, inform(ctx, within, err)
}

// lastWord is how long a write that is to end has to say that nothing has happened.
const lastWord = 100 * time.Millisecond

// writing differs from reading in that a write which is on its way to the datastore
// cannot be called back: who stops waiting for it does not know what becomes of it.
func writing[T any](ctx context.Context, c *contact, write func(context.Context) (T, error)) (T, error) {
	var none T
	if c.lost() {
		return none, unreachable()
	}
	within, over := c.during(ctx)
	type result struct {
		out T
		err error
	}
	done := make(chan result, 1)
	go func() {
		defer over()
		out, err := write(within)
		if err != nil {
			err = inform(ctx, within, err)
		}
		done <- result{out, err}
	}()
	select {
	case r := <-done:
		return r.out, r.err
	case <-within.Done():
	}
	if ctx.Err() != nil {
		// It is the caller who gives up. What the keyspace promises then holds: it
		// tells what happened.
		r := <-done
		return r.out, r.err
	}
	select {
	case r := <-done:
		return r.out, r.err
	case <-c.clock.After(lastWord):
		return none, unknownOutcome()
	}
}

// inform says what an error of the keyspace means to a client of the API. within is
// the context of the call, made from ctx.
func inform(ctx, within context.Context, err error) error {
	if ctx.Err() != nil {
		return err // nobody hears it
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
		return unavailable("does not serve, and nothing was read or changed: try again, ask another server, or see why in /readyz?verbose of this one")
	}
	return err
}

// unreachable: contact is lost.
func unreachable() error {
	return unavailable("cannot be reached, and nothing was read or changed: try again, or ask another server")
}

// unavailable says why nothing has happened. It does not say when to try again: with
// Retry-After client-go would, ten times, before it told anybody.
func unavailable(why string) error {
	return failure(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "the datastore of this server "+why)
}

// unknownOutcome does not ask for a repetition: that is for whoever knows what it
// would do.
func unknownOutcome() error {
	return failure(http.StatusGatewayTimeout, metav1.StatusReasonTimeout,
		"the datastore of this server does not answer, and whether the change was made is not known: read the object before you try again")
}

func overloaded() error {
	s := failure(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests,
		"too many writes wait for the datastore of this server, and nothing was changed: try again later")
	// Most clients then do so by themselves.
	s.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
	return s
}

func failure(code int32, reason metav1.StatusReason, message string) *apierrors.StatusError {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason, Message: message}}
}
