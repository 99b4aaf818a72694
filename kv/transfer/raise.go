package transfer

import (
	"context"
	"fmt"

	"github.com/atoll-dev/atoll/kv"
)

// raiseKey is put and deleted in one transaction to make a revision.
const raiseKey = "atoll.dev/raise-revision"

// Raise advances a keyspace without keys to a revision, and makes that its compaction
// revision. A keyspace already at or beyond it is unchanged. No engine may be open on the
// table.
//
// Clients of a restored or copied keyspace remember revisions of the original. If the new
// keyspace began at a lower revision, they would mistake old state for new. A watch from a
// remembered revision would wait for it silently, and miss all changes before. If the
// keyspace begins above all of them, every such watch gets a compaction error, and lists
// again.
func Raise(ctx context.Context, table kv.Table, to kv.Revision) error {
	raised := false
	err := table.Update(ctx, nil, func(tx kv.Tx) error {
		raised = false
		if tx.Head().Revision >= to {
			return nil
		}
		res, err := tx.Range(kv.RangeRequest{Span: kv.Prefix(nil), Limit: 1}, false)
		if err != nil {
			return err
		}
		if len(res.KVs) > 0 {
			return fmt.Errorf("the keyspace is not empty: %w", kv.ErrInvalidRequest)
		}
		raised = true
		return raise(tx, to)
	})
	if err == nil && raised {
		err = table.SetCompacted(ctx, to)
	}
	if err != nil {
		return fmt.Errorf("raise the keyspace to revision %d: %w", to, err)
	}
	return nil
}

// Recover advances a keyspace with all its keys by that many revisions, makes the last of
// them its compaction revision, and returns it. No engine may be open on the table.
//
// It is for a database that has lost acknowledged writes. Without it, lost revisions that
// clients have seen would be made a second time, for other changes. Above all of them, the
// two cannot be confused. If the table supports it (kv.Recoverer), servers that remember
// the lost state do not continue to use the keyspace.
func Recover(ctx context.Context, table kv.Table, bump kv.Revision) (to kv.Revision, err error) {
	fn := func(tx kv.Tx) error {
		to = tx.Head().Revision + bump
		return raise(tx, to)
	}
	if r, ok := table.(kv.Recoverer); ok {
		err = r.Recover(ctx, fn)
	} else if err = table.Update(ctx, nil, fn); err == nil {
		err = table.SetCompacted(ctx, to)
	}
	if err != nil {
		return 0, fmt.Errorf("raise the keyspace by %d revisions: %w", bump, err)
	}
	return to, nil
}

// raise makes revision to by putting and deleting a key. In the log, all revisions in
// between exist, without a change.
func raise(tx kv.Tx, to kv.Revision) error {
	key := []byte(raiseKey)
	put := kv.Change{KV: kv.KeyValue{Key: key, CreateRevision: to, ModRevision: to, Version: 1}}
	gone := kv.Change{KV: kv.KeyValue{Key: key, ModRevision: to}, Deleted: true, PrevRevision: to}
	if to > tx.Head().Revision+1 {
		put.KV.CreateRevision, put.KV.ModRevision = to-1, to-1
		gone.PrevRevision = to - 1
	} else {
		gone.Sub = 1
	}
	return tx.Write(to, []kv.Change{put, gone})
}
