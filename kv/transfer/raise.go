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
		key := []byte(raiseKey)
		changes := []kv.Change{{KV: kv.KeyValue{Key: key, CreateRevision: to, ModRevision: to, Version: 1}}}
		if to > tx.Head().Revision+1 {
			changes[0].KV.CreateRevision, changes[0].KV.ModRevision = to-1, to-1
			changes = append(changes, kv.Change{
				KV: kv.KeyValue{Key: key, ModRevision: to}, Deleted: true, PrevRevision: to - 1,
			})
		} else {
			changes = append(changes, kv.Change{
				Sub: 1, KV: kv.KeyValue{Key: key, ModRevision: to}, Deleted: true, PrevRevision: to,
			})
		}
		return tx.Write(to, changes)
	})
	if err == nil && raised {
		err = table.SetCompacted(ctx, to)
	}
	if err != nil {
		return fmt.Errorf("raise the keyspace to revision %d: %w", to, err)
	}
	return nil
}
