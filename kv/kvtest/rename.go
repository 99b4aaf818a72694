package kvtest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/kv"
)

// Rename tests a Renamer that several servers use, or one. At the end all keyspaces are dropped
// and purged.
func Rename(t *testing.T, servers ...DropServer) {
	for _, tc := range []struct {
		name string
		run  func(e *renameEnv)
	}{
		{"everything stays", testRenameKeeps},
		{"engines end, and no acknowledged write is lost", testRenameWhileWriting},
		{"with partitions", testRenamePartitions},
		{"refused", testRenameRefused},
		{"the old name is used again", testRenameNameAgain},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := &renameEnv{dropEnv{t, servers}}
			tc.run(e)
			for _, name := range e.names() {
				if _, _, part := kv.ParsePartitionName(name); !part {
					e.must(e.db().Drop(e.Context(), name))
				}
			}
			e.purge(1000)
		})
	}
}

type renameEnv struct{ dropEnv }

func (e *renameEnv) rename(from, to string) error {
	e.Helper()
	r, ok := e.db().(kv.Renamer)
	if !ok {
		e.Fatal("the database cannot rename keyspaces")
	}
	return r.Rename(e.Context(), from, to)
}

func (e *renameEnv) names() []string {
	e.Helper()
	names, err := e.db().Keyspaces(e.Context())
	e.must(err)
	return names
}

// over checks that every call of an engine of a renamed keyspace fails for good.
func (e *renameEnv) over(what string, ks kv.Keyspace) {
	e.Helper()
	for name, call := range calls() {
		ctx, cancel := context.WithTimeout(e.Context(), 10*time.Second)
		if err := call(ctx, ks); !isOver(err) {
			e.Errorf("%s, %s: %v", what, name, err)
		}
		cancel()
	}
}

func isOver(err error) bool {
	return errors.Is(err, kv.ErrRenamed) || errors.Is(err, kv.ErrRepartitioned)
}

// testRenameKeeps compares values, revisions, history and leases before and after.
func testRenameKeeps(e *renameEnv) {
	ks := e.open(e.servers[0], "before")
	for i := range 20 {
		e.must(put(e.Context(), ks, fmt.Sprint("k", i%7)))
	}
	lease, err := ks.Grant(e.Context(), 42, time.Hour)
	e.must(err)
	_, err = ks.Txn(e.Context(), kv.TxnRequest{Then: []kv.Op{{Put: &kv.PutOp{Key: []byte("leased"), Lease: lease.ID}}}})
	e.must(err)
	read := func(ks kv.Keyspace, revision kv.Revision) string {
		e.Helper()
		res, err := ks.Range(e.Context(), kv.RangeRequest{Span: kv.Prefix(nil), Revision: revision})
		e.must(err)
		return fmt.Sprintf("%d %+v", res.Revision, res.KVs)
	}
	now, past := read(ks, 0), read(ks, 9)
	e.must(e.rename("before", "after"))
	for i, s := range e.servers {
		if _, err := s.DB.OpenExisting(e.Context(), "before"); !errors.Is(err, kv.ErrKeyNotFound) {
			e.Errorf("server %d opens the old name: %v", i, err)
		}
		table, err := s.DB.OpenExisting(e.Context(), "after")
		e.must(err)
		renamed := s.Open(e, table)
		if is := read(renamed, 0); is != now {
			e.Errorf("server %d has %s instead of %s", i, is, now)
		}
		if is := read(renamed, 9); is != past {
			e.Errorf("server %d had %s instead of %s", i, is, past)
		}
		kept, err := renamed.TimeToLive(e.Context(), 42, true)
		if err != nil || len(kept.Keys) != 1 || string(kept.Keys[0]) != "leased" {
			e.Errorf("the lease is %+v, %v", kept, err)
		}
		// A watch goes on at the revision at which one under the old name ended.
		ctx, cancel := context.WithCancel(e.Context())
		w, err := renamed.Watch(ctx, kv.WatchRequest{Span: kv.Prefix(nil), StartRevision: 3})
		e.must(err)
		if r := <-w.Responses(); r.Err != nil || len(r.Events) == 0 || r.Events[0].KV.ModRevision != 3 {
			e.Errorf("a watch begins with %+v", r)
		}
		cancel()
	}
}

// testRenameWhileWriting renames a keyspace while clients of each server write and watch. Engines
// under the new name are opened at once.
func testRenameWhileWriting(e *renameEnv) {
	ctx, cancel := context.WithTimeout(e.Context(), 30*time.Second)
	defer cancel()
	var clients sync.WaitGroup
	var mu sync.Mutex
	acknowledged := map[string]bool{}
	var engines []kv.Keyspace
	for i, s := range e.servers {
		ks := e.open(s, "busy")
		engines = append(engines, ks)
		w, err := ks.Watch(ctx, kv.WatchRequest{Span: kv.Prefix(nil)})
		e.must(err)
		clients.Go(func() {
			if err := watchError(ctx, w); !isOver(err) {
				e.Errorf("a watch ended with %v", err)
			}
		})
		for n := range 4 {
			clients.Go(func() {
				for j := 0; ; j++ {
					key := fmt.Sprintf("k%d-%d-%d", i, n, j)
					err := put(ctx, ks, key)
					if isOver(err) {
						return
					}
					if err != nil {
						e.Errorf("a write ended with %v", err)
						return
					}
					mu.Lock()
					acknowledged[key] = true
					mu.Unlock()
				}
			})
		}
	}
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(acknowledged)
	}
	for count() < 200*len(e.servers) && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	e.must(e.rename("busy", "moved"))
	moved := e.open(e.other(), "moved")
	e.must(put(ctx, moved, "new"))
	for i, ks := range engines {
		e.over(fmt.Sprintf("server %d", i), ks)
	}
	clients.Wait()
	for i, s := range e.servers {
		res, err := e.open(s, "moved").Range(ctx, kv.RangeRequest{Span: kv.Prefix(nil), KeysOnly: true})
		e.must(err)
		has := map[string]bool{}
		for _, e := range res.KVs {
			has[string(e.Key)] = true
		}
		for key := range acknowledged {
			if !has[key] {
				e.Errorf("server %d lacks %s, which was acknowledged", i, key)
			}
		}
		if !has["new"] {
			e.Errorf("server %d lacks the key written under the new name", i)
		}
	}
}

// testRenamePartitions renames a keyspace with its partitions, and none of similar names.
func testRenamePartitions(e *renameEnv) {
	splitter := e.db().(kv.Splitter)
	for _, of := range []string{"parts", "parts2", "parts@", "part"} {
		for _, prefix := range []string{"/a/", "/b/"} {
			_, err := splitter.Split(e.Context(), of, prefix, kv.SplitOptions{EmptyOnly: true})
			e.must(err)
		}
	}
	var engines []kv.Keyspace
	for _, s := range e.servers {
		for _, name := range []string{"parts", kv.PartitionName("parts", "/a/")} {
			ks := e.open(s, name)
			e.must(put(e.Context(), ks, "k"))
			engines = append(engines, ks)
		}
	}
	if err := e.rename(kv.PartitionName("parts", "/a/"), "whole"); !errors.Is(err, kv.ErrInvalidRequest) {
		e.Errorf("rename a partition: %v", err)
	}
	if err := e.rename("parts", kv.PartitionName("part", "/c/")); !errors.Is(err, kv.ErrInvalidRequest) {
		e.Errorf("rename to the name of a partition: %v", err)
	}
	e.must(e.rename("parts", "whole"))
	for i, ks := range engines {
		e.over(fmt.Sprintf("engine %d", i), ks)
	}
	for _, s := range e.servers {
		for of, want := range map[string]string{"parts": "[]", "whole": "[/a/ /b/]", "parts2": "[/a/ /b/]", "parts@": "[/a/ /b/]", "part": "[/a/ /b/]"} {
			if prefixes, err := s.DB.Partitions(e.Context(), of); err != nil || fmt.Sprint(prefixes) != want {
				e.Errorf("partitions of %q: %v, %v", of, prefixes, err)
			}
		}
		for _, name := range []string{"whole", kv.PartitionName("whole", "/a/")} {
			res, err := e.open(s, name).Range(e.Context(), kv.RangeRequest{Span: kv.Prefix(nil)})
			e.must(err)
			if len(res.KVs) != 1 {
				e.Errorf("%s has %v", name, res.KVs)
			}
		}
	}
}

// testRenameRefused: a rename that is refused changes nothing, and open engines go on.
func testRenameRefused(e *renameEnv) {
	one, two := e.open(e.servers[0], "one"), e.open(e.other(), "two")
	for from, to := range map[string]string{"one": "one", "two": "", "missing": "missing"} {
		if err := e.rename(from, to); !errors.Is(err, kv.ErrInvalidRequest) {
			e.Errorf("rename %q to %q: %v", from, to, err)
		}
	}
	if err := e.rename("one", "two"); !errors.Is(err, kv.ErrKeyspaceExists) {
		e.Errorf("rename to a name that is taken: %v", err)
	}
	if err := e.rename("missing", "three"); !errors.Is(err, kv.ErrKeyNotFound) {
		e.Errorf("rename what does not exist: %v", err)
	}
	for _, ks := range []kv.Keyspace{one, two} {
		e.must(put(e.Context(), ks, "k"))
	}
	e.must(e.rename("one", "three"))
	for range 2 {
		if err := e.rename("one", "three"); !errors.Is(err, kv.ErrKeyNotFound) {
			e.Errorf("repeat a rename: %v", err)
		}
	}
	e.must(put(e.Context(), two, "k"))
	if names := fmt.Sprint(e.names()); names != "[three two]" {
		e.Errorf("keyspaces: %s", names)
	}
}

// testRenameNameAgain creates a keyspace with the old name, renames both in a circle, and drops one.
func testRenameNameAgain(e *renameEnv) {
	e.must(put(e.Context(), e.open(e.servers[0], "a"), "first"))
	e.must(e.rename("a", "b"))
	again := e.open(e.other(), "a")
	res, err := again.Range(e.Context(), kv.RangeRequest{Span: kv.Prefix(nil)})
	e.must(err)
	if res.Revision != 1 || len(res.KVs) != 0 {
		e.Errorf("the new keyspace is at revision %d and has %v", res.Revision, res.KVs)
	}
	e.must(put(e.Context(), again, "second"))
	for _, step := range [][2]string{{"a", "c"}, {"b", "a"}, {"c", "b"}} {
		e.must(e.rename(step[0], step[1]))
	}
	for _, s := range e.servers {
		for name, key := range map[string]string{"a": "first", "b": "second"} {
			res, err := e.open(s, name).Range(e.Context(), kv.RangeRequest{Span: kv.Prefix(nil)})
			e.must(err)
			if len(res.KVs) != 1 || string(res.KVs[0].Key) != key {
				e.Errorf("%s has %v", name, res.KVs)
			}
		}
	}
	e.over("the engine of the second one", again)
	e.must(e.db().Drop(e.Context(), "a"))
	e.purge(1000)
	res, err = e.open(e.other(), "b").Range(e.Context(), kv.RangeRequest{Span: kv.Prefix(nil)})
	if err != nil || len(res.KVs) != 1 {
		e.Errorf("after the drop of the other one: %+v, %v", res, err)
	}
}
