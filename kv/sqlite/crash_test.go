package sqlite_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/ncruces/go-sqlite3"
	"github.com/ncruces/go-sqlite3/vfs"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/kv/sqlite"
)

var crashes = flag.Int("runs", 4, "number of seeds for the crash test")

// TestCrash has clients write while the disk fails or loses power, repeatedly on the
// remains of the same database. After each crash, every acknowledged transaction must
// exist, and every other one completely or not at all.
func TestCrash(t *testing.T) {
	for seed := range uint64(*crashes) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			rnd := rand.New(rand.NewPCG(seed, 1))
			c := &crashRun{t: t, rnd: rnd, disk: newFaultDisk(), name: fmt.Sprintf("fault-%d", seed)}
			t.Cleanup(func() { vfs.Unregister(c.name) })
			for i := range c.clients {
				c.clients[i].id = i
			}
			for c.round = range 8 {
				c.run()
				if t.Failed() {
					return
				}
			}
		})
	}
}

type crashRun struct {
	t       *testing.T
	rnd     *rand.Rand
	disk    *faultDisk
	name    string
	round   int
	dir     string
	clients [6]crashClient
}

// crashClient counts: each transaction writes the next number under three keys.
type crashClient struct {
	id int
	// acked is the last number known to be stored; tried is the last that may be.
	acked, tried int
	rev          kv.Revision // of acked
}

func (c *crashRun) path() string { return filepath.Join(c.dir, "kv.db") }

func (c *crashRun) run() {
	t, old := c.t, c.path()
	c.dir = t.TempDir()
	// The disk's files move to the path of this round's shared memory.
	c.disk = c.disk.crash(c.rnd, func(name string) string {
		return strings.Replace(name, old, c.path(), 1)
	})
	vfs.Register(c.name, c.disk)
	db, err := sqlite.Open(c.path(), sqlite.WithVFS(c.name), sqlite.WithWALLimit(1<<20))
	if err != nil {
		t.Fatalf("round %d: %v", c.round, err)
	}
	if err := db.Check(t.Context()); err != nil {
		t.Fatalf("round %d: %v", c.round, err)
	}
	table, err := db.Open(t.Context(), "default")
	if err != nil {
		t.Fatal(err)
	}
	k, err := mvcc.Open(t.Context(), table, db, mvcc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	c.verify(k)

	// The kind and time of this round's failure.
	at := 20 + c.rnd.IntN(400)
	kind := c.rnd.IntN(4)
	seen := 0
	c.disk.setFail(func(op string) error {
		if seen++; seen < at {
			return nil
		}
		switch kind {
		case 0: // one operation fails, the disk continues
			if seen == at {
				return sqlite3.IOERR
			}
		case 1: // full for a while
			if seen < at+30 && op == "write" {
				return errDiskFull
			}
		case 2: // syncs fail once
			if op == "sync" && at > 0 {
				at = 1 << 30
				return sqlite3.IOERR_FSYNC
			}
		default: // power
			c.disk.dead = true
			return sqlite3.IOERR
		}
		return nil
	})
	var wg sync.WaitGroup
	for i := range c.clients {
		wg.Go(func() { c.clients[i].run(t, k, 60) })
	}
	wg.Wait()
	if c.rnd.IntN(2) == 0 {
		// Clean or not: a process may also end without a disk failure.
		k.Close()
		db.Close()
		return
	}
	// The process dies now: any part of the data that is not synced may be lost.
	c.disk.mu.Lock()
	c.disk.dead = true
	c.disk.mu.Unlock()
	k.Close()
	db.Close()
}

func (c *crashClient) key(i int) []byte { return fmt.Appendf(nil, "client/%d/%d", c.id, i) }

func (c *crashClient) run(t *testing.T, k *mvcc.Keyspace, n int) {
	for range n {
		number := c.tried + 1
		var ops []kv.Op
		for i := range 3 {
			v := fmt.Appendf(nil, "%d %s", number, strings.Repeat("x", (number*37+i*911)%3000))
			ops = append(ops, kv.Op{Put: &kv.PutOp{Key: c.key(i), Value: v}})
		}
		if number%5 == 0 {
			ops = append(ops, kv.Op{Put: &kv.PutOp{Key: fmt.Appendf(nil, "temp/%d/%d", c.id, number)}})
		}
		if number%10 == 0 {
			ops = append(ops, kv.Op{Delete: &kv.DeleteOp{Span: kv.Span{Start: fmt.Appendf(nil, "temp/%d/%d", c.id, number-5)}}})
		}
		res, err := k.Txn(context.Background(), kv.TxnRequest{Then: ops})
		switch {
		case err == nil:
			c.acked, c.tried, c.rev = number, number, res.Revision
		case errors.Is(err, kv.ErrUnknownOutcome):
			c.tried = number
		case errors.Is(err, kv.ErrNoSpace) && strings.Contains(err.Error(), "nothing was changed"):
			// verify refuses the number if it is found later
		case !errors.Is(err, kv.ErrUnavailable):
			t.Errorf("client %d: unexpected error: %v", c.id, err)
			return
		}
		if number%25 == 0 && err == nil {
			k.Compact(context.Background(), res.Revision, c.id == 0)
		}
	}
}

func (c *crashRun) verify(k *mvcc.Keyspace) {
	t := c.t
	for i := range c.clients {
		cl := &c.clients[i]
		res, err := k.Range(t.Context(), kv.RangeRequest{Span: kv.Prefix(fmt.Appendf(nil, "client/%d/", cl.id))})
		if err != nil {
			t.Fatal(err)
		}
		if res.Revision < cl.rev {
			t.Errorf("round %d: client %d was acknowledged revision %d, keyspace is at %d", c.round, cl.id, cl.rev, res.Revision)
		}
		number := 0
		for j, e := range res.KVs {
			word, _, _ := strings.Cut(string(e.Value), " ")
			n, _ := strconv.Atoi(word)
			if j > 0 && n != number || len(res.KVs) != 3 {
				t.Errorf("round %d: client %d: half of a transaction: %d keys, %d and %d", c.round, cl.id, len(res.KVs), number, n)
			}
			number = n
		}
		if number < cl.acked || number > cl.tried {
			t.Errorf("round %d: client %d has stored %d, acknowledged %d, tried up to %d", c.round, cl.id, number, cl.acked, cl.tried)
		}
		// A stored transaction stays stored from now on.
		cl.acked, cl.tried = number, number
	}
}
