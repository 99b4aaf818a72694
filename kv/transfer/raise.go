package transfer

import (
	"context"
	"fmt"

	"github.com/atoll-dev/atoll/kv"
)

// raiseKey is put and deleted to make a revision. It is gone at once.
const raiseKey = "atoll.dev/raise-revision"

// Raise moves a keyspace without keys on to a revision, and makes that its
// compaction revision; one that is there or beyond is left as it is. No engine
// may be open on the table.
//
// Clients of a keyspace that was restored or copied remember revisions of the
// original. If the new one began lower, they would take old state for new, and
// a watch from a remembered revision would wait for it in silence and then miss
// what came before. Beyond all of them, every such watch is told that its
// history is compacted, and lists again.
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
			return fmt.Errorf("it has keys: %w", kv.ErrInvalidRequest)
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

// Recover moves a keyspace with all its keys on by so many revisions, makes the
// last of them its compaction revision, and returns it. No engine may be open
// on the table.
//
// It is for a database that has lost what it had acknowledged. Revisions that were
// told and are lost would be made a second time, for other changes; beyond all
// of them, nobody can take the one for the other. Servers that remember what is lost
// do not go on with the keyspace, if the table can tell them (kv.Recoverer).
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

// raise makes revision to by putting and deleting a key. Readers of the log see
// all revisions in between as well, without a change in them.
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
