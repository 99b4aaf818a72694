package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
)

// valueSize is the size of every value, similar to a small Kubernetes object.
const valueSize = 1024

// pageSize is the page size of a list, as client-go's reflectors request it.
const pageSize = 500

// timeLimit is the timeout of one phase, after which the run fails.
const timeLimit = 2 * time.Minute

// measurement is one phase of one round.
type measurement struct {
	System  string `json:"system"`
	Round   int    `json:"round"`
	Op      string `json:"op"`
	Clients int    `json:"clients"`
	// Rate is operations per second; for lists, keys per second.
	Rate float64 `json:"rate"`
	// P50 and P99 are latencies of single operations in milliseconds: a create, update, get or
	// whole list, or a watch event since its write was sent.
	P50 float64 `json:"p50_ms"`
	P99 float64 `json:"p99_ms"`
}

// load generates load on one store, with several connections and a key prefix of its own.
type load struct {
	conns   []*kubernetes.Client
	watcher *kubernetes.Client
	prefix  string
}

func (l *load) conn(client int) *kubernetes.Client { return l.conns[client%len(l.conns)] }

func (l *load) key(i int) string { return fmt.Sprintf("%sobject-%08d", l.prefix, i) }

// parallel measures operations 0 … count-1 done by n clients. Each client takes the
// next operation when it has finished one.
func parallel(ctx context.Context, n, count int, do func(ctx context.Context, client, i int) error) (rate float64, s *samples, err error) {
	ctx, stop := context.WithTimeoutCause(ctx, timeLimit, fmt.Errorf("%d operations took more than %s", count, timeLimit))
	defer stop()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	durations := make([][]time.Duration, n)
	start := time.Now()
	var wg sync.WaitGroup
	for c := range n {
		wg.Go(func() {
			own := make([]time.Duration, 0, count/n+count/10+1)
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= count {
					break
				}
				began := time.Now()
				if err := do(ctx, c, i); err != nil {
					cancel(err)
					break
				}
				own = append(own, time.Since(began))
			}
			durations[c] = own
		})
	}
	wg.Wait()
	elapsed := time.Since(start)
	if err := context.Cause(ctx); err != nil {
		return 0, nil, err
	}
	s = &samples{}
	for _, d := range durations {
		s.add(d...)
	}
	return float64(count) / elapsed.Seconds(), s, nil
}

// values returns random values, which no store can compress. They are generated before
// the measurement.
func values(n int) [][]byte {
	random := rand.New(rand.NewPCG(1, 2))
	out := make([][]byte, n)
	for i := range out {
		v := make([]byte, valueSize)
		for j := 0; j < valueSize; j += 8 {
			binary.LittleEndian.PutUint64(v[j:], random.Uint64())
		}
		out[i] = v
	}
	return out
}

// stamped returns a copy of v that begins with the current time, from which a watcher
// computes the delay of the event.
func stamped(v []byte) []byte {
	out := make([]byte, len(v))
	copy(out, v)
	binary.LittleEndian.PutUint64(out, uint64(time.Now().UnixNano()))
	return out
}

// writes measures creates, updates and gets of single keys, in this order and as many of
// them as ops, with an API server's transactions.
func (l *load) writes(ctx context.Context, clients, count int, ops ...string) ([]measurement, error) {
	vals := values(256)
	revisions := make([]int64, count)
	order := rand.New(rand.NewPCG(3, 4)).Perm(count)
	put := func(ctx context.Context, c, i int, expect int64) error {
		r, err := l.conn(c).Kubernetes.OptimisticPut(ctx, l.key(i), vals[i%len(vals)], expect,
			kubernetes.PutOptions{GetOnFailure: expect != 0})
		if err != nil {
			return err
		}
		if !r.Succeeded {
			return fmt.Errorf("put of %s at revision %d was rejected", l.key(i), expect)
		}
		revisions[i] = r.Revision
		return nil
	}
	phases := []struct {
		op string
		do func(ctx context.Context, c, i int) error
	}{
		{"create", func(ctx context.Context, c, i int) error { return put(ctx, c, i, 0) }},
		{"update", func(ctx context.Context, c, i int) error { return put(ctx, c, order[i], revisions[order[i]]) }},
		{"get", func(ctx context.Context, c, i int) error {
			r, err := l.conn(c).Kubernetes.Get(ctx, l.key(order[i]), kubernetes.GetOptions{})
			if err == nil && (r.KV == nil || len(r.KV.Value) != valueSize) {
				err = fmt.Errorf("get of %s found nothing", l.key(order[i]))
			}
			return err
		}},
	}
	var out []measurement
	for _, p := range phases[:len(ops)] {
		rate, s, err := parallel(ctx, clients, count, p.do)
		if err != nil {
			return nil, fmt.Errorf("%s with %d clients: %w", p.op, clients, err)
		}
		out = append(out, measurement{Op: p.op, Clients: clients, Rate: rate, P50: s.ms(50), P99: s.ms(99)})
	}
	return out, nil
}

// list measures reading count keys in pages, several times over.
func (l *load) list(ctx context.Context, count, times int) (measurement, error) {
	vals := values(256)
	_, _, err := parallel(ctx, 64, count, func(ctx context.Context, c, i int) error {
		_, err := l.conn(c).Kubernetes.OptimisticPut(ctx, l.key(i), vals[i%len(vals)], 0, kubernetes.PutOptions{})
		return err
	})
	if err != nil {
		return measurement{}, fmt.Errorf("fill for list: %w", err)
	}
	s := &samples{}
	for range times + 1 {
		began := time.Now()
		if err := l.listOnce(ctx, count); err != nil {
			return measurement{}, fmt.Errorf("list: %w", err)
		}
		s.add(time.Since(began))
	}
	s.all = s.all[1:] // the first one warms caches, on every system
	median := s.ms(50)
	return measurement{Op: "list", Clients: 1, Rate: float64(count) / median * 1000, P50: median, P99: s.ms(99)}, nil
}

func (l *load) listOnce(ctx context.Context, want int) error {
	got := 0
	options := kubernetes.ListOptions{Limit: pageSize}
	for {
		page, err := l.conns[0].Kubernetes.List(ctx, l.prefix, options)
		if err != nil {
			return err
		}
		if left := int64(want - got); page.Count != left {
			return fmt.Errorf("page after %d keys reports %d remaining keys, want %d", got, page.Count, left)
		}
		got += len(page.Kvs)
		if got == want {
			return nil
		}
		if len(page.Kvs) == 0 {
			return fmt.Errorf("listed %d keys of %d", got, want)
		}
		options.Revision = page.Revision
		options.Continue = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
	}
}

// watch measures the time from sending a write to its event arriving at a watcher of
// the whole prefix, while clients create at full speed.
func (l *load) watch(ctx context.Context, clients, count int) (measurement, error) {
	vals := values(256)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// The same options as an API server's watch cache.
	events := l.watcher.Watch(clientv3.WithRequireLeader(ctx), l.prefix, clientv3.WithPrefix(),
		clientv3.WithPrevKV(), clientv3.WithProgressNotify(), clientv3.WithCreatedNotify())
	if r, ok := <-events; !ok || r.Err() != nil {
		return measurement{}, fmt.Errorf("watch: %v", r.Err())
	}
	s := &samples{}
	watched := make(chan error, 1)
	go func() {
		for r := range events {
			if err := r.Err(); err != nil {
				watched <- err
				return
			}
			now := time.Now().UnixNano()
			for _, e := range r.Events {
				s.add(time.Duration(now - int64(binary.LittleEndian.Uint64(e.Kv.Value))))
			}
			if len(s.all) >= count {
				watched <- nil
				return
			}
		}
		watched <- ctx.Err()
	}()
	rate, _, err := parallel(ctx, clients, count, func(ctx context.Context, c, i int) error {
		_, err := l.conn(c).Kubernetes.OptimisticPut(ctx, l.key(i), stamped(vals[i%len(vals)]), 0, kubernetes.PutOptions{})
		return err
	})
	if err != nil {
		return measurement{}, fmt.Errorf("write for watch: %w", err)
	}
	select {
	case err := <-watched:
		if err != nil {
			return measurement{}, fmt.Errorf("watch: %w", err)
		}
	case <-time.After(timeLimit):
		return measurement{}, fmt.Errorf("watch: events are still missing after %s", timeLimit)
	}
	return measurement{Op: "watch", Clients: clients, Rate: rate, P50: s.ms(50), P99: s.ms(99)}, nil
}
