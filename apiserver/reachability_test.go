package apiserver

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/v3/kubernetes"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
)

// datastore is a keyspace that can be unreachable.
type datastore struct {
	kubernetes.Interface
	cut      chan struct{} // closed: unreachable
	slow     time.Duration // duration of a call
	deaf     bool          // a write ignores the cancelation by its caller
	failWith error
	// partFails is the error of a part of the keyspace that the calls do not read.
	partFails error
	told      []error // the causes in the log, and nil for each end of a failure
}

func (d *datastore) Get(ctx context.Context, _ string, _ kubernetes.GetOptions) (out kubernetes.GetResponse, err error) {
	return out, d.answer(ctx)
}

func (d *datastore) List(ctx context.Context, _ string, _ kubernetes.ListOptions) (out kubernetes.ListResponse, err error) {
	select {
	case <-time.After(d.slow):
		return out, d.answer(ctx)
	case <-ctx.Done():
		return out, ctx.Err()
	}
}

func (d *datastore) OptimisticPut(ctx context.Context, _ string, _ []byte, _ int64, _ kubernetes.PutOptions) (out kubernetes.PutResponse, err error) {
	if d.deaf {
		ctx = context.WithoutCancel(ctx)
	}
	return out, d.answer(ctx)
}

func (d *datastore) answer(ctx context.Context) error {
	select {
	case <-d.cut:
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Hour):
			return errors.New("hours later")
		}
	default:
		return d.failWith
	}
}

// through returns the calls that a request may make, by name.
func (d *datastore) through(c *reachability) map[string]func(context.Context) error {
	i := guardedClient{d, c}
	return map[string]func(context.Context) error{
		"get":  func(ctx context.Context) error { _, err := i.Get(ctx, "k", kubernetes.GetOptions{}); return err },
		"list": func(ctx context.Context) error { _, err := i.List(ctx, "k", kubernetes.ListOptions{}); return err },
		"put": func(ctx context.Context) error {
			_, err := i.OptimisticPut(ctx, "k", nil, 0, kubernetes.PutOptions{})
			return err
		},
	}
}

func openReachability(d *datastore) *reachability {
	whole := func(ctx context.Context) error {
		if d.partFails != nil {
			return d.partFails
		}
		return d.answer(ctx)
	}
	return newReachability(clock.RealClock{}, d.answer, whole, func(cause error) { d.told = append(d.told, cause) })
}

func statusCode(err error) int32 {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return status.Status().Code
	}
	return 0
}

func TestUnreachableDatastoreFailsCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &datastore{cut: make(chan struct{})}
		c := openReachability(d)
		defer c.stop()
		calls := d.through(c)
		for what, call := range calls {
			if err := call(t.Context()); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		close(d.cut)
		for what, call := range calls {
			limit := time.Duration(0) // the outage is known
			if !c.lost() {
				limit = suspectAfter + reachabilityTimeout
			}
			begin := time.Now()
			err := call(t.Context())
			if took := time.Since(begin); statusCode(err) != http.StatusServiceUnavailable || took != limit {
				t.Errorf("%s: after %v: %v", what, took, err)
			}
			if _, again := apierrors.SuggestsClientDelay(err); again {
				t.Errorf("%s: with Retry-After clients would retry silently", what)
			}
		}

		d.cut = make(chan struct{})
		time.Sleep(reachabilityTimeout + probeEvery) // with a fake clock
		synctest.Wait()
		if len(d.told) != 2 || d.told[0] == nil || d.told[1] != nil {
			t.Errorf("the log has %v", d.told)
		}
		synctest.Wait()
		for what, call := range calls {
			if err := call(t.Context()); err != nil {
				t.Errorf("%s after recovery: %v", what, err)
			}
		}
		if c.probing {
			t.Error("still probing")
		}
	})
}

// TestSlowCallIsNoOutage: a slow call does not mean that the datastore is unreachable.
func TestSlowCallIsNoOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &datastore{cut: make(chan struct{}), slow: time.Minute}
		c := openReachability(d)
		defer c.stop()
		if err := d.through(c)["list"](t.Context()); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if c.probing || c.suspects != 0 || c.lost() {
			t.Errorf("probing %v, doubts %d, lost %v", c.probing, c.suspects, c.lost())
		}
	})
}

func TestWriteWithUnknownOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &datastore{cut: make(chan struct{}), deaf: true}
		c := openReachability(d)
		defer c.stop()
		close(d.cut)
		begin := time.Now()
		err := d.through(c)["put"](t.Context())
		if _, again := apierrors.SuggestsClientDelay(err); statusCode(err) != http.StatusGatewayTimeout || again {
			t.Errorf("after %v: %v", time.Since(begin), err)
		}
		if took := time.Since(begin); took > 5*time.Second {
			t.Errorf("took %v", took)
		}
		c.stop()
		time.Sleep(2 * time.Hour) // until the write ends
	})
}

func TestErrorsOfTheKeyspace(t *testing.T) {
	for _, test := range []struct {
		err  error
		want int32
	}{
		{rpctypes.ErrTimeout, http.StatusGatewayTimeout},
		{rpctypes.ErrTooManyRequests, http.StatusTooManyRequests},
		{rpctypes.ErrStopped, http.StatusServiceUnavailable},
		{rpctypes.ErrCompacted, 0}, // handled by upstream
		{errors.New("anything else"), 0},
	} {
		d := &datastore{cut: make(chan struct{}), failWith: test.err}
		c := openReachability(d)
		for what, call := range d.through(c) {
			err := call(t.Context())
			if got := statusCode(err); got != test.want || got == 0 && err != test.err {
				t.Errorf("%s with %v: %v", what, test.err, err)
			}
		}
		c.stop()
	}
}

// TestPartFails: while one part of the keyspace is not served, calls to the others succeed, and the log has
// the cause once.
func TestPartFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &datastore{cut: make(chan struct{}), failWith: rpctypes.ErrStopped, partFails: rpctypes.ErrStopped}
		c := openReachability(d)
		defer c.stop()
		get := d.through(c)["get"]
		if err := get(t.Context()); statusCode(err) != http.StatusServiceUnavailable {
			t.Error(err)
		}
		d.failWith = nil // other parts answer
		for range 10 {
			if err := get(t.Context()); err != nil || c.lost() {
				t.Errorf("%v, lost %v", err, c.lost())
			}
			time.Sleep(probeEvery)
		}
		if len(d.told) != 1 {
			t.Errorf("the log has %v", d.told)
		}
		d.partFails = nil
		time.Sleep(probeEvery)
		if err := get(t.Context()); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if len(d.told) != 2 || d.told[1] != nil {
			t.Errorf("the log has %v", d.told)
		}
	})
}
