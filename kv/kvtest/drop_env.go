package kvtest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/kv"
)

type dropEnv struct {
	*testing.T
	servers []DropServer
}

// db returns the database of the first server, which drops.
func (e *dropEnv) db() kv.Dropper { return e.servers[0].DB }

// other returns the last server, which is another one than the first if there are several.
func (e *dropEnv) other() DropServer { return e.servers[len(e.servers)-1] }

func (e *dropEnv) must(err error) {
	e.Helper()
	if err != nil {
		e.Fatal(err)
	}
}

// open opens an engine of a keyspace.
func (e *dropEnv) open(s DropServer, name string) kv.Keyspace {
	e.Helper()
	table, err := s.DB.Open(e.Context(), name)
	e.must(err)
	return s.Open(e, table)
}

func put(ctx context.Context, ks kv.Keyspace, key string) error {
	_, err := ks.Txn(ctx, kv.TxnRequest{Then: []kv.Op{{Put: &kv.PutOp{Key: []byte(key), Value: []byte("v")}}}})
	return err
}

// calls are all calls of a keyspace.
func calls() map[string]func(ctx context.Context, ks kv.Keyspace) error {
	return map[string]func(ctx context.Context, ks kv.Keyspace) error{
		"get": func(ctx context.Context, ks kv.Keyspace) error {
			_, err := ks.Range(ctx, kv.RangeRequest{Span: kv.Span{Start: []byte("k")}})
			return err
		},
		"list": func(ctx context.Context, ks kv.Keyspace) error {
			_, err := ks.Range(ctx, kv.RangeRequest{Span: kv.Prefix(nil)})
			return err
		},
		"list the past": func(ctx context.Context, ks kv.Keyspace) error {
			_, err := ks.Range(ctx, kv.RangeRequest{Span: kv.Prefix(nil), Revision: 2})
			return err
		},
		"put": func(ctx context.Context, ks kv.Keyspace) error { return put(ctx, ks, "k") },
		"grant": func(ctx context.Context, ks kv.Keyspace) error {
			_, err := ks.Grant(ctx, 0, time.Minute)
			return err
		},
		"leases": func(ctx context.Context, ks kv.Keyspace) error {
			_, _, err := ks.LeaseList(ctx)
			return err
		},
		"compact": func(ctx context.Context, ks kv.Keyspace) error {
			_, err := ks.Compact(ctx, 2, true)
			return err
		},
		"watch": func(ctx context.Context, ks kv.Keyspace) error {
			w, err := ks.Watch(ctx, kv.WatchRequest{Span: kv.Prefix(nil), StartRevision: 2})
			if err != nil {
				return err
			}
			return watchError(ctx, w)
		},
		"status": func(ctx context.Context, ks kv.Keyspace) error {
			_, err := ks.Status(ctx)
			return err
		},
	}
}

// watchError returns the error that a watch ends with.
func watchError(ctx context.Context, w kv.Watch) error {
	for {
		select {
		case r, ok := <-w.Responses():
			if !ok {
				return errors.New("the watch has ended without an error")
			}
			if r.Err != nil {
				return r.Err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// ended checks that every call of an engine fails with ErrDropped.
func (e *dropEnv) ended(what string, ks kv.Keyspace) {
	e.Helper()
	for name, call := range calls() {
		ctx, cancel := context.WithTimeout(e.Context(), 10*time.Second)
		if err := call(ctx, ks); !errors.Is(err, kv.ErrDropped) || errors.Is(err, kv.ErrBehind) {
			e.Errorf("%s, %s: %v", what, name, err)
		}
		cancel()
	}
}

// purge removes all rows of dropped keyspaces.
func (e *dropEnv) purge(limit int) {
	e.Helper()
	for more := true; more; {
		var err error
		more, err = e.db().Purge(e.Context(), limit)
		e.must(err)
	}
}
