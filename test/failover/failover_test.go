// Package failover has a soak of three servers on a PostgreSQL with a standby, while the
// database is promoted, restored, frozen and cut off in random order.
package failover

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/playground/pgproxy"
	playground "github.com/atoll-dev/atoll/playground/postgres"
	"github.com/atoll-dev/atoll/server"
)

var (
	runs = flag.Int("runs", 4, "number of faults")
	seed = flag.Uint64("seed", 1, "of the order of faults")
)

// partition is a prefix with revisions of its own.
const partition = "/p/"

// world is the databases, the servers and the acknowledged writes.
type world struct {
	*testing.T
	ctx    context.Context
	random *rand.Rand

	primary, standby *playground.Server
	servers          []*node
	proxies          []*pgproxy.Proxy // of both databases
	poolers          []*playground.Pooler

	// gate is held by writers during a call, so that a fault can wait for them.
	gate sync.RWMutex

	mu sync.Mutex
	// acked is the last acknowledged value of each key, and given who got each revision of a
	// partition.
	acked map[string]int
	given map[revision]string
	// accepted counts accepted losses: calls that began before one may miss acknowledged writes.
	accepted int
	counts   map[string]int
}

type revision struct {
	partition bool
	number    kv.Revision
}

// node is one server: a keyspace on a database object of its own.
type node struct {
	name string
	url  string
	busy bool

	mu   sync.RWMutex
	db   *server.Datastore
	open kv.Keyspace
	stop func() error
}

func TestFailovers(t *testing.T) {
	if testing.Short() {
		t.Skip("starts databases")
	}
	w := start(t)
	ctx, cancel := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	for i, n := range w.servers {
		for j := range 2 {
			writers.Go(func() { w.write(ctx, n, fmt.Sprintf("%s%d-%d", []string{"/a/", partition}[j], i, j)) })
		}
	}
	defer func() {
		cancel()
		writers.Wait()
	}()
	faults := w.faults()
	for i := range *runs {
		// Each kind comes once before the order is random.
		f := faults[i%len(faults)]
		if i >= len(faults) {
			f = faults[w.random.IntN(len(faults))]
		}
		begin := time.Now()
		w.servers[w.random.IntN(3)].setBusy(false)
		f.run()
		w.served(f.name)
		for _, n := range w.servers {
			n.setBusy(true)
		}
		w.count(f.name)
		t.Logf("%3d %-40s %5.1f s", i, f.name, time.Since(begin).Seconds())
		if t.Failed() {
			return
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	t.Logf("%d revisions acknowledged; %v", len(w.given), w.counts)
}

func start(t *testing.T) *world {
	w := &world{T: t, ctx: t.Context(), random: rand.New(rand.NewPCG(*seed, 0)),
		acked: map[string]int{}, given: map[revision]string{}, counts: map[string]int{}}
	var err error
	if w.primary, err = playground.Start(w.ctx, playground.Config{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.primary.Stop(); w.standby.Stop() })
	if w.standby, err = w.primary.Standby(w.ctx, false); err != nil {
		t.Fatal(err)
	}
	both := []*playground.Server{w.primary, w.standby}
	urls := make([][]string, 3)
	for i, s := range both {
		p, err := pgproxy.Start(pgproxy.Config{Server: s.Address(), Seed: *seed})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Close)
		w.proxies = append(w.proxies, p)
		through, err := p.URL(s.URL(), "through a proxy")
		if err != nil {
			t.Fatal(err)
		}
		pooled := s.URL()
		pool, err := s.Pooler(context.WithoutCancel(w.ctx), "session")
		if err == nil {
			t.Cleanup(pool.Stop)
			w.poolers = append(w.poolers, pool)
			pooled = pool.URL()
		} else if !errors.Is(err, playground.ErrNoPooler) {
			t.Fatal(i, err)
		}
		for k, url := range []string{s.URL(), through, pooled} {
			urls[k] = append(urls[k], url)
		}
	}
	for i, pair := range urls {
		n := &node{name: []string{"direct", "through a proxy", "through PgBouncer"}[i], url: severalHosts(pair), busy: true}
		w.servers = append(w.servers, n)
		w.open(n)
		if i == 0 {
			splitter, ok := n.db.Backend.(kv.Splitter)
			if !ok {
				t.Fatal("the database cannot be split")
			}
			if _, err := splitter.Split(w.ctx, "default", partition, kv.SplitOptions{EmptyOnly: true}); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Cleanup(func() {
		for _, n := range w.servers {
			n.close()
		}
	})
	w.served("start")
	return w
}

// severalHosts combines two URLs that differ only in their hosts.
func severalHosts(urls []string) string {
	host := func(url string) string {
		_, rest, _ := strings.Cut(url, "@")
		host, _, _ := strings.Cut(rest, "/")
		return host
	}
	return strings.Replace(urls[0], "@"+host(urls[0])+"/", "@"+host(urls[0])+","+host(urls[1])+"/", 1)
}

func (w *world) open(n *node) {
	w.Helper()
	var last error
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		db, err := server.OpenDatastore(w.ctx, n.url)
		if err == nil {
			keyspace, kerr := db.Keyspace(context.WithoutCancel(w.ctx), "default", mvcc.Options{})
			if kerr == nil {
				n.mu.Lock()
				n.db, n.open, n.stop = db, keyspace, func() error { return errors.Join(keyspace.Close(), db.Close()) }
				n.mu.Unlock()
				return
			}
			err = errors.Join(kerr, db.Close())
		}
		last = err
	}
	w.Fatalf("open the server %s: %v", n.name, last)
}

func (n *node) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stop != nil {
		_ = n.stop()
		n.stop, n.open = nil, nil
	}
}

func (n *node) keyspace() kv.Keyspace {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.open
}

func (n *node) setBusy(busy bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.busy = busy
}

func (n *node) isBusy() bool {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.busy
}

// write puts ascending numbers to a key, through one server, and reads it through all of them.
func (w *world) write(ctx context.Context, n *node, key string) {
	for value := 1; ctx.Err() == nil; value++ {
		w.gate.RLock() // before it looks, or it would still write after a pause has begun
		if !n.isBusy() {
			w.gate.RUnlock()
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
			value--
			continue
		}
		_ = w.put(ctx, n, key, value)
		if other := w.servers[value%len(w.servers)]; other.isBusy() {
			_ = w.get(ctx, other, key)
		}
		w.gate.RUnlock()
	}
}

const callLimit = 30 * time.Second

func (w *world) put(ctx context.Context, n *node, key string, value int) error {
	ks := n.keyspace()
	if ks == nil {
		return errors.New("the server is not open")
	}
	w.mu.Lock()
	accepted := w.accepted
	w.mu.Unlock()
	call, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	res, err := ks.Txn(call, kv.TxnRequest{Then: []kv.Op{{Put: &kv.PutOp{Key: []byte(key), Value: []byte(strconv.Itoa(value))}}}})
	if err != nil {
		if w.Context().Err() == nil && !w.failsWell(err) {
			w.Errorf("put through the server %s: %v", n.name, err)
		}
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	r := revision{strings.HasPrefix(key, partition), res.Revision}
	mine := fmt.Sprint(key, "=", value)
	if other, twice := w.given[r]; twice {
		w.Errorf("revision %d was given to %s, and by the server %s to %s", r.number, other, n.name, mine)
	}
	w.given[r] = mine
	if accepted == w.accepted {
		w.acked[key] = max(w.acked[key], value)
	}
	return nil
}

// failsWell reports whether an error is one that clients expect: nothing has happened, it is
// unknown, or the database lacks something.
func (w *world) failsWell(err error) bool {
	for _, kind := range []error{kv.ErrUnavailable, kv.ErrUnknownOutcome, kv.ErrBehind, kv.ErrClosed, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

// get checks that a read misses no write that was acknowledged before.
func (w *world) get(ctx context.Context, n *node, key string) error {
	ks := n.keyspace()
	if ks == nil {
		return errors.New("the server is not open")
	}
	w.mu.Lock()
	want, accepted := w.acked[key], w.accepted
	w.mu.Unlock()
	call, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	res, err := ks.Range(call, kv.RangeRequest{Span: kv.Span{Start: []byte(key)}})
	if err != nil {
		if w.Context().Err() == nil && !w.failsWell(err) {
			w.Errorf("get through the server %s: %v", n.name, err)
		}
		return err
	}
	got := 0
	if len(res.KVs) == 1 {
		got, _ = strconv.Atoi(string(res.KVs[0].Value))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if got < want && accepted == w.accepted {
		w.Errorf("the server %s returns %s=%d at revision %d, and %d was acknowledged before", n.name, key, got, res.Revision, want)
	}
	return nil
}

// served waits until all servers serve both partitions.
func (w *world) served(after string) {
	w.Helper()
	for i, n := range w.servers {
		for _, prefix := range []string{"/a/", partition} {
			key := fmt.Sprintf("%sserved-%d", prefix, i)
			w.mu.Lock()
			value := w.acked[key] + 1
			w.mu.Unlock()
			var err error
			for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
				if err = w.put(w.ctx, n, key, value); err == nil {
					err = w.get(w.ctx, n, key)
				}
				if err == nil || w.Failed() {
					break
				}
				if time.Now().After(deadline) {
					w.Fatalf("after %s the server %s does not serve again: %v", after, n.name, err)
				}
			}
		}
	}
}

// refused waits until no server serves any more: each refuses with the reason, and none has
// returned outdated values (get checks that).
func (w *world) refused(after string) {
	w.Helper()
	for _, n := range w.servers {
		for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
			err := w.get(w.ctx, n, "/a/0-0")
			if errors.Is(err, kv.ErrBehind) || w.Failed() {
				break
			}
			if time.Now().After(deadline) {
				w.Fatalf("after %s the server %s does not refuse to serve: %v", after, n.name, err)
			}
		}
	}
}

func (w *world) count(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counts[what]++
}

// do fails the test if a step of a fault fails.
func (w *world) do(what string, err error) {
	w.Helper()
	if err != nil {
		w.Fatalf("%s: %v", what, err)
	}
}
