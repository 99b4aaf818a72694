package workspaces

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"

	"github.com/atoll-dev/atoll/kv"
)

// An object of a resource in Config.Reservations takes a part of its workspace's limits. The amounts are in an entry of the keyspace
// (kv.ReservationPrefix), because the objects may be encrypted. A write of the object that needs more has the entry in its transaction, and
// so has its deletion. A write that needs less leaves the entry as it is: Config.Reservations says how much may be used, and who lowers the
// entry knows that no more is used (SetReservation).

// amountsOf returns the amounts that an object reserves.
type amountsOf = func(runtime.Object) (kv.Usage, error)

// reservation is what a write changes: the amounts before and after it. It is in the context of the write, because the client of a
// keyspace gets encrypted bytes.
type reservation struct {
	before, after kv.Usage
	known         bool
}

type reservationKey struct{}

// withReservation returns the context of a write, and the update that records the amounts.
func (s *requestStore) withReservation(ctx context.Context, update storage.UpdateFunc) (context.Context, storage.UpdateFunc) {
	if s.reserves == nil {
		return ctx, update
	}
	r := &reservation{}
	return context.WithValue(ctx, reservationKey{}, r), func(existing runtime.Object, m storage.ResponseMeta) (runtime.Object, *uint64, error) {
		before, err := s.reserves(existing) // update may change it in place
		if err != nil {
			return nil, nil, err
		}
		updated, ttl, err := update(existing, m)
		if err != nil {
			return updated, ttl, err
		}
		after, err := s.reserves(updated)
		*r = reservation{before, after, true}
		return updated, ttl, err
	}
}

// withNewReservation returns the context of the creation of an object.
func (s *requestStore) withNewReservation(ctx context.Context, obj runtime.Object) (context.Context, error) {
	if s.reserves == nil {
		return ctx, nil
	}
	after, err := s.reserves(obj)
	return context.WithValue(ctx, reservationKey{}, &reservation{after: after, known: true}), err
}

// reserving are the keys of a resource whose objects take a part of the limits.
type reserving struct {
	kubernetes.Interface
	kv clientv3.KV
}

// withReservations returns the client of the storage of a resource.
func (c *chain) withReservations(resource schema.GroupResource, client *kubernetes.Client) *kubernetes.Client {
	if c.reservations[resource] == nil {
		return client
	}
	return &kubernetes.Client{Client: client.Client, Kubernetes: reserving{client.Kubernetes, client.KV}}
}

// reservationAttempts bounds how often a write is repeated because its entry has changed.
const reservationAttempts = 20

var errReservation = errors.New("the amounts that the object reserves are not known: this is a bug, please report it")

// OptimisticPut implements kubernetes.Interface.
func (r reserving) OptimisticPut(ctx context.Context, key string, value []byte, expected int64, opts kubernetes.PutOptions) (none kubernetes.PutResponse, _ error) {
	of, _ := ctx.Value(reservationKey{}).(*reservation)
	if of == nil || !of.known {
		return none, errReservation
	}
	if expected != 0 && of.before.Max(of.after) == of.before {
		return r.Interface.OptimisticPut(ctx, key, value, expected, opts)
	}
	ctx, _ = kv.WithExemption(ctx) // a write that takes more is never exempt from the limits
	entry := kv.ReservationPrefix + path.Base(key)
	for range reservationAttempts {
		stored, at, err := r.entry(ctx, entry)
		if err != nil {
			return none, err
		}
		wanted := of.after
		if expected != 0 {
			wanted = wanted.Max(stored) // only SetReservation lowers it
		}
		out, retry, err := putCounted(ctx, r.Interface, r.kv, revisionIs(entry, at), putEntry(entry, wanted), key, value, expected, opts)
		if !retry {
			return out, err
		}
	}
	return none, fmt.Errorf("write %s: others have changed its reservation %d times: retry", key, reservationAttempts)
}

// OptimisticDelete implements kubernetes.Interface: the entry is deleted with the object.
func (r reserving) OptimisticDelete(ctx context.Context, key string, expected int64, opts kubernetes.DeleteOptions) (none kubernetes.DeleteResponse, _ error) {
	entry := kv.ReservationPrefix + path.Base(key)
	done, err := r.kv.Txn(ctx).If(revisionIs(key, expected)).Then(append(deleteEntry(entry), clientv3.OpDelete(key))...).Else(clientv3.OpGet(key)).Commit()
	if status.Code(err) == codes.InvalidArgument { // a split keyspace: see putCounted
		deleted, err := r.Interface.OptimisticDelete(ctx, key, expected, opts)
		if err == nil && deleted.Succeeded {
			_, err = r.kv.Txn(ctx).Then(deleteEntry(entry)...).Commit()
		}
		return deleted, err
	}
	if err != nil {
		return none, err
	}
	out := kubernetes.DeleteResponse{Succeeded: done.Succeeded, Revision: done.Header.Revision}
	if found := done.Responses[0].GetResponseRange().GetKvs(); !done.Succeeded && opts.GetOnFailure && len(found) > 0 {
		out.KV = found[0]
	}
	return out, nil
}

// entry returns the amounts of an entry, and its revision: 0 if it does not exist.
func (r reserving) entry(ctx context.Context, key string) (kv.Usage, int64, error) {
	found, err := r.kv.Get(ctx, key)
	if err != nil || len(found.Kvs) == 0 {
		return kv.Usage{}, 0, err
	}
	return kv.Reservation(found.Kvs[0].Value), found.Kvs[0].ModRevision, nil
}

func revisionIs(key string, revision int64) clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(key), "=", revision)
}

func putEntry(entry string, amounts kv.Usage) []clientv3.Op {
	return []clientv3.Op{clientv3.OpPut(entry, string(kv.EncodeReservation(amounts))), clientv3.OpPut(kv.ReservationsKey, "")}
}

func deleteEntry(entry string) []clientv3.Op {
	return []clientv3.Op{clientv3.OpDelete(entry), clientv3.OpPut(kv.ReservationsKey, "")}
}

// Reservation is an entry of a workspace.
type Reservation struct {
	Amounts  kv.Usage
	revision int64
}

// Reserved returns the entries of a workspace, by the names of their objects: all, or that of one name.
func (s *Server) Reserved(ctx context.Context, w *Workspace, name string) (map[string]Reservation, error) {
	var options []clientv3.OpOption
	if name == "" {
		options = append(options, clientv3.WithPrefix())
	}
	found, err := w.client.KV.Get(ctx, kv.ReservationPrefix+name, options...)
	if err != nil {
		return nil, fmt.Errorf("read the reservations of a workspace: %w", err)
	}
	all := make(map[string]Reservation, len(found.Kvs))
	for _, e := range found.Kvs {
		all[strings.TrimPrefix(string(e.Key), kv.ReservationPrefix)] = Reservation{kv.Reservation(e.Value), e.ModRevision}
	}
	return all, nil
}

// SetReservation replaces an entry, beyond the limits too, unless the object or the entry has changed since they were read: then nothing
// happens, and done is false. So it is where a split keyspace has no transaction for both. resourceVersion is that of the object; if it is
// "", the object does not exist, and the entry is removed.
func (s *Server) SetReservation(ctx context.Context, w *Workspace, resource schema.GroupResource, name, resourceVersion string, was Reservation, amounts kv.Usage) (done bool, err error) {
	if resourceVersion != "" && was.revision != 0 && was.Amounts == amounts {
		return true, nil
	}
	revision := int64(0)
	entry := kv.ReservationPrefix + name
	write := deleteEntry(entry)
	if resourceVersion != "" {
		if revision, err = strconv.ParseInt(resourceVersion, 10, 64); err != nil {
			return false, fmt.Errorf("the resourceVersion of %s %s: %w", resource, name, err)
		}
		write = putEntry(entry, amounts)
	}
	result, err := w.client.KV.Txn(exempted(ctx)).If(revisionIs(customKey(resource)+name, revision), revisionIs(entry, was.revision)).Then(write...).Commit()
	if status.Code(err) == codes.InvalidArgument { // a split keyspace: see putCounted
		if resourceVersion == "" || amounts.Max(was.Amounts) != amounts {
			return false, nil // it cannot be lowered until the parts are merged: the object may need it by now
		}
		result, err = w.client.KV.Txn(exempted(ctx)).If(revisionIs(entry, was.revision)).Then(write...).Commit()
	}
	if err != nil {
		return false, fmt.Errorf("change the reservation of %s %s: %w", resource, name, err)
	}
	return result.Succeeded, nil
}
