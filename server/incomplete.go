package server

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/atoll-dev/atoll/kv"
)

// incompleteKeyspace has a key for each keyspace that contains a part of something: a restore
// or a copy that was interrupted. A server that served it would take missing objects for
// deleted ones, and controllers would delete what belongs to them.
const incompleteKeyspace = "atoll.incomplete"

// Incomplete describes an operation that fills a keyspace.
type Incomplete struct {
	// What is being done, such as "a restore from FILE".
	What string `json:"what"`
	// Remedy is a command that finishes it.
	Remedy string `json:"remedy"`
}

// Keyspaces implements kv.Backend, without those for the datastore itself.
func (d *Datastore) Keyspaces(ctx context.Context) ([]string, error) {
	names, err := d.Backend.Keyspaces(ctx)
	own := []string{incompleteKeyspace, controlPlaneKeyspace, encryptionKeyspace}
	return slices.DeleteFunc(names, func(name string) bool { return slices.Contains(own, name) }), err
}

// BeginFilling records that a keyspace is incomplete until EndFilling. The data that is filled in makes
// another control plane.
func (d *Datastore) BeginFilling(ctx context.Context, keyspace string, what Incomplete) error {
	if keyspace == Workspace {
		if err := d.forgetControlPlane(ctx); err != nil {
			return err
		}
	}
	value, err := json.Marshal(what)
	if err != nil {
		return err
	}
	return d.markFilling(ctx, kv.Op{Put: &kv.PutOp{Key: []byte(keyspace), Value: value}})
}

// EndFilling records that a keyspace is complete.
func (d *Datastore) EndFilling(ctx context.Context, keyspace string) error {
	return d.markFilling(ctx, kv.Op{Delete: &kv.DeleteOp{Span: kv.Span{Start: []byte(keyspace)}}})
}

func (d *Datastore) markFilling(ctx context.Context, op kv.Op) error {
	return d.ownKeyspace(ctx, incompleteKeyspace, func(ks kv.Keyspace) error {
		_, err := ks.Txn(ctx, kv.TxnRequest{Then: []kv.Op{op}})
		return err
	})
}

// CheckComplete refuses a keyspace that contains only a part of something.
func (d *Datastore) CheckComplete(ctx context.Context, keyspace string) error {
	names, err := d.Backend.Keyspaces(ctx)
	if err != nil || !slices.Contains(names, incompleteKeyspace) {
		return err
	}
	table, err := d.Open(ctx, incompleteKeyspace)
	if err != nil {
		return err
	}
	found, _, err := table.Range(ctx, kv.RangeRequest{Span: kv.Span{Start: []byte(keyspace)}}, false)
	if err != nil || len(found.KVs) == 0 {
		return err
	}
	what := Incomplete{What: "an operation", Remedy: "atoll kv restore --mirror"}
	if err := json.Unmarshal(found.KVs[0].Value, &what); err != nil {
		return fmt.Errorf("datastore %s: keyspace %q is incomplete, and the record of why cannot be read: %w", d.url, keyspace, err)
	}
	return fmt.Errorf("datastore %s: keyspace %q has only a part of %s, which has not finished: a server would take the missing objects for deleted ones. "+
		"Finish it with `%s`, or use another database", d.url, keyspace, what.What, what.Remedy)
}
