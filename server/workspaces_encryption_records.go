package server

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/atoll-dev/atoll/kv"
)

// encryptionKeyspace has a record for each keyspace of a workspace whose objects are encrypted with the present key. It is not backed up or
// copied with the data: a restored keyspace may have objects from before.
const encryptionKeyspace = "atoll.encryption"

// encryptionRecord says how the objects of a keyspace are encrypted.
type encryptionRecord struct {
	// Form is that of all objects that were written until Revision: see apiserver.Rewriting.Form.
	Form     string      `json:"form"`
	Revision kv.Revision `json:"revision"`
	// Compact is the revision before which the history has other forms, 0 if it has none. It is known Since that time.
	Compact kv.Revision `json:"compact,omitempty"`
	Since   time.Time   `json:"since,omitzero"`
}

// encryptionRecords are the records, by the IDs of keyspaces. An ID is never used again, and a keyspace keeps it when it gets another name.
type encryptionRecords struct {
	keyspace kv.Keyspace

	mu      sync.Mutex
	all     map[int64]encryptionRecord
	seen    map[int64]bool
	unsaved map[int64]encryptionRecord
}

// recordBatch is how many records are written with one commit.
const recordBatch = 50

// load reads the records. Those of this server may be of later revisions.
func (r *encryptionRecords) load(ctx context.Context, known map[int64]encryptionRecord) error {
	r.all, r.seen, r.unsaved = map[int64]encryptionRecord{}, map[int64]bool{}, map[int64]encryptionRecord{}
	found, err := r.keyspace.Range(ctx, kv.RangeRequest{Span: kv.Prefix(nil)})
	if err != nil {
		return fmt.Errorf("read which workspaces are encrypted with the present key: %w", err)
	}
	for _, e := range found.KVs {
		var record encryptionRecord
		id, err := strconv.ParseInt(string(e.Key), 10, 64)
		if err == nil {
			err = json.Unmarshal(e.Value, &record)
		}
		if err == nil { // a record that cannot be read means that the workspace is read again
			if known[id].Form == record.Form {
				record.Revision = max(record.Revision, known[id].Revision)
			}
			r.all[id] = record
		}
	}
	return nil
}

// count returns how many records have a form.
func (r *encryptionRecords) count(form string) (n int) {
	for _, record := range r.all {
		if record.Form == form {
			n++
		}
	}
	return n
}

func (r *encryptionRecords) of(id int64) encryptionRecord {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all[id]
}

// keep keeps the record of a keyspace that exists.
func (r *encryptionRecords) keep(id int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen[id] = true
}

// set changes a record. If it has to be durable, it is written, with others.
func (r *encryptionRecords) set(ctx context.Context, id int64, record encryptionRecord, durable bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if id == 0 {
		return nil
	}
	r.all[id] = record
	if !durable {
		return nil
	}
	r.unsaved[id] = record
	if len(r.unsaved) < recordBatch {
		return nil
	}
	return r.write(ctx)
}

func (r *encryptionRecords) flush(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.write(ctx)
}

func (r *encryptionRecords) write(ctx context.Context) error {
	if len(r.unsaved) == 0 {
		return nil
	}
	var puts []kv.Op
	for id, record := range r.unsaved {
		value, err := json.Marshal(record)
		if err != nil {
			return err
		}
		puts = append(puts, kv.Op{Put: &kv.PutOp{Key: strconv.AppendInt(nil, id, 10), Value: value}})
	}
	done, err := r.keyspace.Txn(ctx, kv.TxnRequest{Then: puts})
	if err != nil {
		return fmt.Errorf("record which workspaces are encrypted with the present key: %w", err)
	}
	clear(r.unsaved)
	_, err = r.keyspace.Compact(ctx, done.Revision, true) // nothing needs the history
	return err
}

// prune writes the unsaved records, and removes the records of keyspaces that are gone.
func (r *encryptionRecords) prune(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.write(ctx); err != nil {
		return err
	}
	for id := range r.all {
		if r.seen[id] {
			continue
		}
		key := strconv.AppendInt(nil, id, 10)
		if _, err := r.keyspace.Txn(ctx, kv.TxnRequest{Then: []kv.Op{{Delete: &kv.DeleteOp{Span: kv.Span{Start: key}}}}}); err != nil {
			return fmt.Errorf("remove the record of a deleted workspace: %w", err)
		}
		delete(r.all, id)
	}
	return nil
}
