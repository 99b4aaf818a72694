package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/atoll-dev/atoll/kv"
)

// TestLeasesOfMany: keyspaces that share queries get their own leases, and one that is dropped does not disturb the others.
func TestLeasesOfMany(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, d *database) {
		schema := d.schema(t)
		db, other := openURL(t, d.as(t, "one"), schema), openURL(t, d.as(t, "two"), schema)
		var tables []*table
		for i := range 5 {
			table := openTable(t, db, fmt.Sprint("k", i))
			tables = append(tables, table)
			for id := range i { // the first one has none
				if err := table.Update(t.Context(), nil, func(tx kv.Tx) error {
					return tx.PutLease(kv.LeaseRecord{ID: kv.LeaseID(id + 1), TTL: int64(10 * i), Beat: 7})
				}); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := other.Drop(t.Context(), "k2"); err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for range 10 {
			for i, table := range tables {
				all.Go(func() {
					leases, err := table.Leases(t.Context())
					if i == 2 {
						if !errors.Is(err, kv.ErrDropped) {
							t.Errorf("the dropped keyspace: %v, %v", leases, err)
						}
						return
					}
					if err != nil || len(leases) != i {
						t.Errorf("k%d: %v, %v", i, leases, err)
					}
					for _, l := range leases {
						if l.ID < 1 || l.TTL != int64(10*i) || l.Beat != 7 {
							t.Errorf("k%d has %v", i, l)
						}
					}
				})
			}
		}
		all.Wait()
	})
}

type counted struct {
	err  error
	done chan struct{}
}

func (c *counted) context() context.Context { return context.Background() }

func (c *counted) end(err error) {
	c.err = err
	close(c.done)
}

// TestBatches: calls that arrive during a query share the next one, up to its size. Each gets the error of its own query.
func TestBatches(t *testing.T) {
	t.Parallel()
	failed := errors.New("failed")
	began, proceed := make(chan int), make(chan error)
	b := batches[*counted]{queries: 1, size: 3, query: func(_ context.Context, batch []*counted) error {
		began <- len(batch)
		return <-proceed
	}}
	var calls []*counted
	add := func() {
		calls = append(calls, &counted{done: make(chan struct{})})
		b.add(calls[len(calls)-1])
	}
	for _, want := range []int{1, 3, 1} {
		if want == 1 && len(calls) == 0 {
			add()
		}
		if got := <-began; got != want {
			t.Errorf("a query has %d calls, want %d", got, want)
		}
		if len(calls) == 1 {
			for range 4 {
				add()
			}
		}
		var err error
		if want == 3 {
			err = failed
		}
		proceed <- err
	}
	for i, c := range calls {
		<-c.done
		if isSecond := i >= 1 && i <= 3; errors.Is(c.err, failed) != isSecond {
			t.Errorf("call %d: %v", i, c.err)
		}
	}
}
