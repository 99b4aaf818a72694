package kvtest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/kv"
)

// DropServer is a process with a database that holds keyspaces. Several of them may use one
// database.
type DropServer struct {
	DB kv.Dropper
	// Open opens an engine of a keyspace.
	Open func(t testing.TB, table kv.Table) kv.Keyspace
}

// Drop tests a Dropper that several servers use, or one. At the end all keyspaces are dropped
// and purged.
func Drop(t *testing.T, servers ...DropServer) {
	for _, tc := range []struct {
		name string
		run  func(e *dropEnv)
	}{
		{"ends everything", testDropEnds},
		{"the name is used again", testDropNameAgain},
		{"with partitions", testDropPartitions},
		{"unknown names", testDropUnknown},
		{"an open without creating", testOpenExisting},
		{"purge while another keyspace is written", testPurgeWhileWriting},
	} {
		t.Run(tc.name, func(t *testing.T) { tc.run(&dropEnv{t, servers}) })
	}
}

// testDropEnds drops a keyspace while clients of each server write, watch and hold leases.
func testDropEnds(e *dropEnv) {
	const name = "ends"
	ctx, cancel := context.WithTimeout(e.Context(), 30*time.Second)
	defer cancel()
	var clients sync.WaitGroup
	var wrote, late atomic.Int64
	var dropped atomic.Bool
	var engines []kv.Keyspace
	for i, s := range e.servers {
		ks := e.open(s, name)
		engines = append(engines, ks)
		lease, err := ks.Grant(ctx, 0, time.Minute)
		e.must(err)
		w, err := ks.Watch(ctx, kv.WatchRequest{Span: kv.Prefix(nil)})
		e.must(err)
		clients.Go(func() {
			if err := watchError(ctx, w); !errors.Is(err, kv.ErrDropped) {
				e.Errorf("a watch ended with %v", err)
			}
		})
		clients.Go(func() {
			for {
				if _, err := ks.KeepAlive(ctx, lease.ID); err != nil {
					if !errors.Is(err, kv.ErrDropped) {
						e.Errorf("a lease ended with %v", err)
					}
					return
				}
			}
		})
		for n := range 4 {
			clients.Go(func() {
				for j := 0; ; j++ {
					after := dropped.Load()
					err := put(ctx, ks, fmt.Sprintf("k%d-%d-%d", i, n, j%50))
					switch {
					case err == nil && after:
						late.Add(1)
					case err == nil:
						wrote.Add(1)
					case errors.Is(err, kv.ErrDropped):
						return
					default:
						e.Errorf("a write ended with %v", err)
						return
					}
				}
			})
		}
	}
	for wrote.Load() < int64(200*len(e.servers)) && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	e.must(e.db().Drop(ctx, name))
	dropped.Store(true)
	for i, ks := range engines {
		e.ended(fmt.Sprintf("server %d", i), ks)
	}
	clients.Wait()
	if late.Load() > 0 {
		e.Errorf("%d writes were acknowledged after the drop", late.Load())
	}
}

// testDropNameAgain uses the name while engines have the dropped keyspace open.
func testDropNameAgain(e *dropEnv) {
	const name = "again"
	var old []kv.Keyspace
	for _, s := range e.servers {
		old = append(old, e.open(s, name))
	}
	e.must(put(e.Context(), old[0], "old"))
	var ids []int64
	for range 3 {
		e.must(e.db().Drop(e.Context(), name))
		table, err := e.other().DB.Open(e.Context(), name)
		e.must(err)
		ids = append(ids, table.(kv.IdentifiedTable).ID())
		ks := e.other().Open(e, table)
		res, err := ks.Range(e.Context(), kv.RangeRequest{Span: kv.Prefix(nil)})
		e.must(err)
		if res.Revision != 1 || len(res.KVs) != 0 {
			e.Errorf("the new keyspace is at revision %d and has %d keys", res.Revision, len(res.KVs))
		}
		e.must(put(e.Context(), ks, "new"))
		for i, ks := range old {
			e.ended(fmt.Sprintf("old engine %d", i), ks)
		}
		// All servers open the same new one.
		for _, s := range e.servers {
			same := e.open(s, name)
			res, err := same.Range(e.Context(), kv.RangeRequest{Span: kv.Prefix(nil)})
			e.must(err)
			if len(res.KVs) != 1 || string(res.KVs[0].Key) != "new" {
				e.Errorf("the new keyspace has %v", res.KVs)
			}
			old = append(old, same)
		}
		old = append(old, ks)
		e.purge(1000)
	}
	if ids[0] == ids[1] || ids[1] == ids[2] || ids[0] == ids[2] {
		e.Errorf("IDs of three keyspaces: %v", ids)
	}
	e.must(e.db().Drop(e.Context(), name))
}

// testDropPartitions drops a keyspace with its partitions, and nothing of keyspaces with
// similar names.
func testDropPartitions(e *dropEnv) {
	const name = "parts"
	splitter := e.db().(kv.Splitter)
	var kept []string
	for _, of := range []string{name, name + "2", "part", name + "@"} {
		for _, prefix := range []string{"/a/", "/b/"} {
			_, err := splitter.Split(e.Context(), of, prefix, kv.SplitOptions{EmptyOnly: true})
			e.must(err)
		}
		if of != name {
			kept = append(kept, of)
		}
	}
	names := []string{name, kv.PartitionName(name, "/a/"), kv.PartitionName(name, "/b/")}
	var engines []kv.Keyspace
	for _, s := range e.servers {
		for _, n := range names {
			ks := e.open(s, n)
			e.must(put(e.Context(), ks, "k"))
			engines = append(engines, ks)
		}
		prefixes, err := s.DB.Partitions(e.Context(), name)
		e.must(err)
		if fmt.Sprint(prefixes) != "[/a/ /b/]" {
			e.Errorf("partitions: %v", prefixes)
		}
	}
	if err := e.db().Drop(e.Context(), names[1]); !errors.Is(err, kv.ErrInvalidRequest) {
		e.Errorf("drop a partition: %v", err)
	}
	e.must(e.db().Drop(e.Context(), name))
	for i, ks := range engines {
		e.ended(fmt.Sprintf("engine %d", i), ks)
	}
	for _, s := range e.servers {
		prefixes, err := s.DB.Partitions(e.Context(), name)
		if err != nil || len(prefixes) != 0 {
			e.Errorf("partitions of the dropped keyspace: %v, %v", prefixes, err)
		}
		if _, err := s.DB.Open(e.Context(), names[1]); !errors.Is(err, kv.ErrKeyNotFound) {
			e.Errorf("open a partition of the dropped keyspace: %v", err)
		}
		for _, of := range kept {
			if prefixes, err := s.DB.Partitions(e.Context(), of); err != nil || fmt.Sprint(prefixes) != "[/a/ /b/]" {
				e.Errorf("partitions of %q: %v, %v", of, prefixes, err)
			}
		}
	}
	for _, of := range kept {
		e.must(e.db().Drop(e.Context(), of))
	}
	e.purge(1000)
}

func testDropUnknown(e *dropEnv) {
	ks := e.open(e.other(), "known")
	e.must(put(e.Context(), ks, "k"))
	for range 2 {
		if err := e.db().Drop(e.Context(), "unknown"); !errors.Is(err, kv.ErrKeyNotFound) {
			e.Errorf("drop an unknown keyspace: %v", err)
		}
	}
	e.must(put(e.Context(), ks, "k"))
	e.must(e.db().Drop(e.Context(), "known"))
	if err := e.db().Drop(e.Context(), "known"); !errors.Is(err, kv.ErrKeyNotFound) {
		e.Errorf("drop it twice: %v", err)
	}
	e.purge(1000)
	if more, err := e.db().Purge(e.Context(), 1); more || err != nil {
		e.Errorf("purge nothing: %v, %v", more, err)
	}
}

// testOpenExisting opens a keyspace without creating it.
func testOpenExisting(e *dropEnv) {
	const name = "existing"
	missing := func(when string) {
		e.Helper()
		for _, s := range e.servers {
			if _, err := s.DB.OpenExisting(e.Context(), name); !errors.Is(err, kv.ErrKeyNotFound) {
				e.Errorf("%s: %v", when, err)
			}
			names, err := s.DB.Keyspaces(e.Context())
			e.must(err)
			for _, n := range names {
				if n == name {
					e.Errorf("%s: it is listed", when)
				}
			}
		}
	}
	missing("before it was created")
	e.must(put(e.Context(), e.open(e.servers[0], name), "k"))
	for _, s := range e.servers {
		table, err := s.DB.OpenExisting(e.Context(), name)
		e.must(err)
		if head, err := table.Head(e.Context()); err != nil || head.Revision != 2 {
			e.Errorf("head %v, %v", head, err)
		}
	}
	e.must(e.db().Drop(e.Context(), name))
	missing("after the drop")
}

// testPurgeWhileWriting removes a dropped keyspace in short steps, from several servers at
// once, while another keyspace is written.
func testPurgeWhileWriting(e *dropEnv) {
	gone, kept := e.open(e.servers[0], "gone"), e.open(e.other(), "kept")
	for i := range 300 {
		e.must(put(e.Context(), gone, fmt.Sprint("k", i%100)))
	}
	e.must(e.db().Drop(e.Context(), "gone"))
	var purging sync.WaitGroup
	var done atomic.Bool
	for _, s := range e.servers {
		purging.Go(func() {
			for more := true; more; {
				var err error
				if more, err = s.DB.Purge(e.Context(), 7); err != nil {
					e.Error(err)
					return
				}
			}
		})
	}
	var writing sync.WaitGroup
	writes := 0
	writing.Go(func() {
		for !done.Load() || writes < 10 {
			if err := put(e.Context(), kept, fmt.Sprint("k", writes%10)); err != nil {
				e.Error(err)
				return
			}
			writes++
		}
	})
	purging.Wait()
	done.Store(true)
	writing.Wait()
	e.purge(1000)
	res, err := kept.Range(e.Context(), kv.RangeRequest{Span: kv.Prefix(nil)})
	e.must(err)
	if res.Count != 10 || res.Revision != kv.Revision(writes)+1 {
		e.Errorf("the other keyspace has %d keys at revision %d after %d writes", res.Count, res.Revision, writes)
	}
	e.must(e.db().Drop(e.Context(), "kept"))
	e.purge(1000)
}
