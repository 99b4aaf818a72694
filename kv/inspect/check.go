package inspect

import (
	"bytes"
	"context"
	"fmt"
	"hash/maphash"

	"github.com/atoll-dev/atoll/kv"
)

// state is a summary of a key's state, sufficient to compare two states.
type state struct {
	mod, create kv.Revision
	version     int64
	lease       kv.LeaseID
	value       uint64
}

// ProgressFunc is called with the progress of a Check. done and total count keys and
// changes read; total is 0 while unknown.
type ProgressFunc func(done, total int64)

// pageKeys is the number of keys in a page of a scan.
const pageKeys = 1000

// Check replays the log of a table from the state at the compaction revision, and compares
// the result with the current state. It uses only the contract of kv.Table, so it verifies
// every dialect independently. It calls finding for each problem; the returned error is
// that of reading.
//
// It uses about 100 bytes of memory for each key. Others may write and compact meanwhile: a
// compaction makes it start again.
func Check(ctx context.Context, table kv.Table, progress ProgressFunc, finding func(string)) error {
	for attempt := 1; ; attempt++ {
		c := &checker{ctx: ctx, table: table, progress: progress, seed: maphash.MakeSeed()}
		again, err := c.run()
		if err != nil {
			return err
		}
		if again && attempt < 10 {
			continue
		}
		if again {
			return fmt.Errorf("check: %w: history was compacted during all %d attempts: retry when compactions are less frequent",
				kv.ErrUnavailable, attempt)
		}
		for _, f := range c.found {
			finding(f)
		}
		return nil
	}
}

type checker struct {
	ctx      context.Context
	table    kv.Table
	progress ProgressFunc
	seed     maphash.Seed
	head     kv.Head
	keys     map[string]state
	done     int64
	found    []string
}

func (c *checker) report(format string, args ...any) {
	c.found = append(c.found, fmt.Sprintf(format, args...))
}

func (c *checker) step(n int) {
	c.done += int64(n)
	if c.progress != nil {
		c.progress(c.done, 0)
	}
}

func (c *checker) run() (again bool, err error) {
	if c.head, err = c.table.Head(c.ctx); err != nil {
		return false, err
	}
	if c.head.Compacted > c.head.Revision {
		c.report("the compaction revision %d is above the head %d", c.head.Compacted, c.head.Revision)
		return false, nil
	}
	for _, stage := range []func() error{c.readBase, c.replay, c.compare, c.checkLeases} {
		err := stage()
		now, herr := c.table.Head(c.ctx)
		switch {
		case herr != nil:
			return false, herr
		case now.Revision < c.head.Revision || now.Compacted < c.head.Compacted:
			c.report("the head decreased from %+v to %+v", c.head, now)
			return false, nil
		case now.Compacted != c.head.Compacted:
			return true, nil
		case err != nil:
			return false, err
		}
	}
	return false, nil
}

// scan reads the state at rev, in pages.
func (c *checker) scan(rev kv.Revision, each func(kv.KeyValue)) error {
	req := kv.RangeRequest{Span: kv.Prefix(nil), Revision: rev, Limit: pageKeys}
	var last []byte
	for {
		res, _, err := c.table.Range(c.ctx, req, false)
		if err != nil {
			return err
		}
		for _, e := range res.KVs {
			if last != nil && bytes.Compare(e.Key, last) <= 0 {
				c.report("at revision %d key %q comes after %q", rev, e.Key, last)
			}
			last = e.Key
			each(e)
		}
		c.step(len(res.KVs))
		if !res.More || len(res.KVs) == 0 {
			return nil
		}
		req.Start = append(append(make([]byte, 0, len(last)+1), last...), 0)
	}
}

func (c *checker) stateOf(e kv.KeyValue) state {
	return state{e.ModRevision, e.CreateRevision, e.Version, e.Lease, maphash.Bytes(c.seed, e.Value)}
}

// readBase reads the oldest available state.
func (c *checker) readBase() error {
	c.keys = map[string]state{}
	if c.head.Compacted <= 1 {
		return nil // the log is complete from the first revision
	}
	return c.scan(c.head.Compacted, func(e kv.KeyValue) { c.keys[string(e.Key)] = c.stateOf(e) })
}

// replay applies the log up to the head.
func (c *checker) replay() error {
	after := max(c.head.Compacted, 1)
	for after < c.head.Revision {
		changes, _, err := c.table.Changes(c.ctx, after, c.head.Revision, pageKeys, false)
		if err != nil {
			return err
		}
		if len(changes) == 0 {
			c.report("the log ends at revision %d, the head is at %d", after, c.head.Revision)
			return nil
		}
		before := after
		for i := range changes {
			ch := &changes[i]
			if rev := ch.KV.ModRevision; rev != before && rev != before+1 {
				c.report("the log has a gap from revision %d to %d", before, rev)
			}
			before = ch.KV.ModRevision
			c.apply(ch)
		}
		if before == after {
			c.report("the log does not continue after revision %d", after)
			return nil
		}
		after = before
		c.step(len(changes))
	}
	return nil
}

func (c *checker) apply(ch *kv.Change) {
	key := string(ch.KV.Key)
	old, existed := c.keys[key]
	if ch.PrevRevision != old.mod { // 0 if it did not exist
		c.report("revision %d of key %q claims to replace revision %d; the log has %d", ch.KV.ModRevision, key, ch.PrevRevision, old.mod)
	}
	if ch.Deleted {
		delete(c.keys, key)
		return
	}
	want := kv.KeyValue{CreateRevision: ch.KV.ModRevision, Version: 1}
	if existed {
		want = kv.KeyValue{CreateRevision: old.create, Version: old.version + 1}
	}
	if ch.KV.CreateRevision != want.CreateRevision || ch.KV.Version != want.Version {
		c.report("revision %d of key %q has version %d, created at %d; according to the log it should be version %d, created at %d",
			ch.KV.ModRevision, key, ch.KV.Version, ch.KV.CreateRevision, want.Version, want.CreateRevision)
	}
	c.keys[key] = c.stateOf(ch.KV)
}

// compare compares the replayed log with the current state.
func (c *checker) compare() error {
	missing := len(c.keys)
	seen := make(map[string]struct{}, len(c.keys))
	err := c.scan(c.head.Revision, func(e kv.KeyValue) {
		key := string(e.Key)
		seen[key] = struct{}{}
		switch want, ok := c.keys[key]; {
		case !ok:
			c.report("key %q exists at revision %d, but not in the log", key, e.ModRevision)
		case want != c.stateOf(e):
			missing--
			c.report("key %q is at revision %d, version %d; in the log it is at revision %d, version %d, or has a different value",
				key, e.ModRevision, e.Version, want.mod, want.version)
		default:
			missing--
		}
	})
	if err != nil || missing == 0 {
		return err
	}
	for key, s := range c.keys {
		if _, ok := seen[key]; !ok {
			c.report("key %q is lost: in the log it exists at revision %d", key, s.mod)
		}
	}
	return nil
}

// checkLeases compares the keys of leases both ways. Leases have no revisions, so keys that
// changed after the head was read are skipped.
func (c *checker) checkLeases() error {
	leases, err := c.table.Leases(c.ctx)
	if err != nil {
		return err
	}
	exists := map[kv.LeaseID]bool{}
	attached := map[string]kv.LeaseID{}
	for _, l := range leases {
		exists[l.ID] = true
		keys, _, err := c.table.LeaseKeys(c.ctx, l.ID)
		if err != nil {
			return err
		}
		for _, k := range keys {
			attached[string(k)] = l.ID
		}
	}
	for key, s := range c.keys {
		if s.lease == attached[key] && (s.lease == 0 || exists[s.lease]) {
			continue
		}
		res, _, err := c.table.Range(c.ctx, kv.RangeRequest{Span: kv.Span{Start: []byte(key)}}, false)
		if err != nil {
			return err
		}
		if len(res.KVs) != 1 || res.KVs[0].ModRevision != s.mod {
			continue
		}
		if !exists[s.lease] && s.lease != 0 {
			c.report("key %q is attached to lease %x, which does not exist", key, s.lease)
		} else {
			c.report("key %q is attached to lease %x, but listed among the keys of lease %x", key, s.lease, attached[key])
		}
	}
	return nil
}
