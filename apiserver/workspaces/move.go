package workspaces

import (
	"context"
	"fmt"

	"github.com/atoll-dev/atoll/kv"
)

// issuerKey has the UID in the issuer of the tokens of a workspace that has moved: that of its first Workspace. So its tokens stay valid. The
// key sorts before those that a copy gets: the tokens of a workspace are not valid in its copies.
const issuerKey = "/atoll/account-issuer"

// PrepareMove writes what the keyspace of a workspace needs when it becomes that of another Workspace. It may be repeated.
func PrepareMove(ctx context.Context, keyspace kv.Keyspace, w *Workspace) error {
	// The new Workspace has a source, so it is served only if its keyspace says that it is complete.
	done := kv.Op{Put: &kv.PutOp{Key: []byte(attemptKey), Value: []byte(complete)}}
	_, err := keyspace.Txn(exempted(ctx), kv.TxnRequest{
		If:   []kv.Compare{{Span: kv.Span{Start: []byte(issuerKey)}, Target: kv.CompareCreate, Op: kv.Equal, Int: 0}},
		Then: []kv.Op{{Put: &kv.PutOp{Key: []byte(issuerKey), Value: []byte(w.issuedBy)}}, done},
		Else: []kv.Op{done},
	})
	if err != nil {
		return fmt.Errorf("prepare the move of a workspace: %w", err)
	}
	return nil
}

// readIssuer reads the issuer of the tokens of a workspace that has moved.
func (w *Workspace) readIssuer(ctx context.Context) error {
	got, err := w.client.KV.Get(ctx, issuerKey)
	if err != nil {
		return fmt.Errorf("read the issuer of its tokens: %w", err)
	}
	if len(got.Kvs) > 0 {
		w.issuedBy = string(got.Kvs[0].Value)
	}
	return nil
}
