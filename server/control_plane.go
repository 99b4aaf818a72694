package server

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/google/uuid"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/apiserver"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/mvcc"
)

// controlPlaneKeyspace has the ID of the control plane whose data is in the datastore. It is not
// backed up or copied with the data, so that restored data is another control plane: its members
// must not be written to while the first one is alive.
const controlPlaneKeyspace = "atoll.control-plane"

var controlPlaneKey = []byte("id")

// ControlPlane identifies the control plane whose data is in the datastore. The first server
// creates the ID.
func (d *Datastore) ControlPlane(ctx context.Context) (out fleet.ControlPlane, err error) {
	err = d.ownKeyspace(ctx, controlPlaneKeyspace, func(ks kv.Keyspace) error {
		_, err := ks.Txn(ctx, kv.TxnRequest{
			If:   []kv.Compare{{Span: kv.Span{Start: controlPlaneKey}, Target: kv.CompareCreate, Int: 0}}, // it does not exist
			Then: []kv.Op{{Put: &kv.PutOp{Key: controlPlaneKey, Value: []byte(uuid.NewString())}}},
		})
		if err != nil {
			return err
		}
		found, err := ks.Range(ctx, kv.RangeRequest{Span: kv.Span{Start: controlPlaneKey}})
		if err != nil {
			return err
		}
		if len(found.KVs) != 1 {
			return fmt.Errorf("read the ID of the control plane in %s: %w: it was deleted at this moment", d.url, kv.ErrUnavailable)
		}
		out.ID = string(found.KVs[0].Value)
		return nil
	})
	if err != nil {
		return out, fmt.Errorf("identify the control plane: %w", err)
	}
	if db, ok := d.Backend.(kv.Identified); ok {
		instance, err := db.Instance(ctx)
		if err != nil {
			return out, err
		}
		if instance != "" {
			sum := sha256.Sum256([]byte(instance))
			out.Database = hex.EncodeToString(sum[:4])
		}
	}
	return out, nil
}

// controlPlaneService says which control plane this is to all users who have logged in: the claims of Clusters say
// the same to their readers.
func (s *Server) controlPlaneService() apiserver.Service {
	return apiserver.Service{
		Prefix:      v1alpha1.ControlPlanePath,
		Allows:      func(caller apiserver.User, _ string) bool { return caller.IsAuthenticated() },
		LongRunning: func(*http.Request) bool { return false },
		Serve: func(w http.ResponseWriter, r *http.Request, _ apiserver.User) {
			w.Header().Set("Content-Type", "application/json")
			json.NewEncoder(w).Encode(s.controlPlane.Claim())
		},
	}
}

// forgetControlPlane makes the data in the datastore another control plane's.
func (d *Datastore) forgetControlPlane(ctx context.Context) error {
	return d.ownKeyspace(ctx, controlPlaneKeyspace, func(ks kv.Keyspace) error {
		_, err := ks.Txn(ctx, kv.TxnRequest{Then: []kv.Op{{Delete: &kv.DeleteOp{Span: kv.Span{Start: controlPlaneKey}}}}})
		return err
	})
}

// ownKeyspace opens a keyspace about the datastore itself.
func (d *Datastore) ownKeyspace(ctx context.Context, name string, use func(kv.Keyspace) error) (err error) {
	table, err := d.Open(ctx, name)
	if err != nil {
		return err
	}
	ks, err := mvcc.Open(ctx, table, nil, mvcc.Options{CacheBytes: -1})
	if err != nil {
		return err
	}
	defer func() {
		if cerr := ks.Close(); err == nil {
			err = cerr
		}
	}()
	return use(ks)
}
