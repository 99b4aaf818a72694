package overlay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// BirthKey has the time at which a workspace was created, and its UID then: a copy of it keeps both, as its objects keep their UIDs. Its
// revision is that of the base objects.
const BirthKey = "/atoll/birth"

// Birth is when a workspace was created, and what its base objects get from that.
type Birth struct {
	UID      string // of the workspace at its creation
	Created  time.Time
	Revision int64 // of its keyspace: that of its base objects
}

// New is a workspace that may have to be created.
type New struct {
	// Client is that of its keyspace.
	Client *kubernetes.Client
	UID    string
	// Begin returns the objects that only this workspace begins with.
	Begin func(context.Context) (Beginning, error)
}

// Initialize writes what a new workspace lacks, and lets its client show the base objects. Begin is called if the workspace is new, also if a
// server crashed after it created the keyspace. Initialize may be repeated after an error. Call it before the first request.
func (e *Encoder) Initialize(ctx context.Context, base *Base, w New) error {
	of, err := birthOf(ctx, w.Client)
	if err == nil && of == nil {
		var stored bool
		if stored, err = storesAll(ctx, w.Client); stored {
			return nil
		}
		if err == nil {
			of, err = e.create(ctx, w)
		}
	}
	if err != nil {
		return err
	}
	base.Install(w.Client, *of)
	return nil
}

// birthOf reads when a workspace was created; nil if it is new, or stores all objects.
func birthOf(ctx context.Context, client *kubernetes.Client) (*Birth, error) {
	got, err := client.KV.Get(ctx, BirthKey)
	if err != nil || len(got.Kvs) == 0 {
		return nil, err
	}
	at, uid, _ := strings.Cut(string(got.Kvs[0].Value), " ")
	created, err := time.Parse(time.RFC3339, at)
	if err != nil {
		return nil, fmt.Errorf("read the time of its creation: %w", err)
	}
	return &Birth{UID: uid, Created: created, Revision: got.Kvs[0].ModRevision}, nil
}

// storesAll reports whether an earlier version of Atoll has created the workspace: it wrote all objects, the namespace default as the last.
func storesAll(ctx context.Context, client *kubernetes.Client) (bool, error) {
	got, err := client.KV.Get(ctx, keyOf(Namespaces.Resource, &metav1.ObjectMeta{Name: metav1.NamespaceDefault}), clientv3.WithCountOnly())
	return err == nil && got.Count > 0, err
}

// writesAtOnce is how many writes of a new workspace one transaction makes; a keyspace permits 128.
const writesAtOnce = 100

// create writes what a new workspace stores, unless another server does so at this moment. The key of its birth is the last one, and
// nothing is written after it: if a server crashes before, create is repeated, and if two servers write, the workspace has the objects of
// one or the other.
func (e *Encoder) create(ctx context.Context, w New) (*Birth, error) {
	with, err := w.Begin(ctx)
	if err != nil {
		return nil, err
	}
	writes, err := e.writes(ctx, with)
	if err != nil {
		return nil, err
	}
	writes = append(writes, clientv3.OpPut(BirthKey, time.Now().UTC().Format(time.RFC3339)+" "+w.UID))
	for some := range slices.Chunk(writes, writesAtOnce) {
		if _, err := w.Client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(BirthKey), "=", 0)).Then(some...).Commit(); err != nil {
			return nil, err
		}
	}
	of, err := birthOf(ctx, w.Client)
	if err == nil && of == nil {
		err = errors.New("the record of its creation is missing after the write")
	}
	return of, err
}
