package workspaces

import (
	"context"
	"errors"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"go.etcd.io/etcd/client/v3/kubernetes"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/etcd"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/kv/partition"
	"github.com/atoll-dev/atoll/kv/sqlite"
)

// parts opens the engines of a split keyspace.
type parts struct{ db *sqlite.DB }

const splitName = "split"

func (p parts) Prefixes(ctx context.Context) ([]string, error) {
	return p.db.Partitions(ctx, splitName)
}

func (p parts) Open(ctx context.Context, prefix string) (partition.Engine, error) {
	name := splitName
	if prefix != "" {
		name = kv.PartitionName(name, prefix)
	}
	table, err := p.db.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	return mvcc.Open(ctx, table, p.db, mvcc.Options{})
}

// openReserving opens a keyspace with a limit of keys, split at prefixes, and the client of a storage whose objects reserve.
func openReserving(t *testing.T, limit int64, prefixes ...string) (*Workspace, reserving) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kv.db")
	for _, step := range []func(db *sqlite.DB) error{
		func(db *sqlite.DB) error { _, err := db.Open(t.Context(), splitName); return err },
		func(db *sqlite.DB) (err error) {
			for _, prefix := range prefixes {
				_, failed := db.Split(t.Context(), splitName, prefix, kv.SplitOptions{})
				err = errors.Join(err, failed)
			}
			return err
		},
	} {
		db, err := sqlite.Open(path)
		if err == nil {
			err = errors.Join(step(db), db.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	db, err := sqlite.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	keyspace, err := partition.Open(context.Background(), splitName, parts{db}, partition.Options{})
	if err != nil {
		t.Fatal(err)
	}
	keyspace.SetLimits(kv.Limits{Keys: &limit})
	client, err := etcd.InProcess(keyspace, t.Name())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = client.Close()
		if err := errors.Join(keyspace.Close(), db.Close()); err != nil {
			t.Error(err)
		}
	})
	return NewWorkspace("uid", client), reserving{client.Kubernetes, client.KV}
}

var reservingResource = schema.GroupResource{Group: "tenancy.atoll.dev", Resource: "workspaces"}

// change returns the context of a write.
func change(t *testing.T, before, after int64) context.Context {
	return context.WithValue(t.Context(), reservationKey{}, &reservation{before: kv.Usage{Keys: before}, after: kv.Usage{Keys: after}, known: true})
}

// TestReservations: an entry is written, raised and removed with its object, also in a keyspace that is split between them.
func TestReservations(t *testing.T) {
	for name, prefixes := range map[string][]string{"whole": nil, "split": {"/registry/"}, "split at the entries": {"/atoll/usage/"}} {
		t.Run(name, func(t *testing.T) { testReservations(t, prefixes) })
	}
}

func testReservations(t *testing.T, prefixes []string) {
	w, r := openReserving(t, 100, prefixes...)
	s := &Server{}
	key := customKey(reservingResource) + "a"
	reserved := func(want int64) Reservation {
		t.Helper()
		all, err := s.Reserved(t.Context(), w, "a")
		if err != nil || all["a"].Amounts.Keys != want || (want == 0) != (len(all) == 0) {
			t.Errorf("%+v, %v, want %d", all, err, want)
		}
		return all["a"]
	}
	put := func(expected, before, after int64) (kubernetes.PutResponse, error) {
		return r.OptimisticPut(change(t, before, after), key, []byte("object"), expected, kubernetes.PutOptions{GetOnFailure: true})
	}
	if _, err := r.OptimisticPut(t.Context(), key, nil, 0, kubernetes.PutOptions{}); !errors.Is(err, errReservation) {
		t.Errorf("a write of unknown amounts: %v", err)
	}
	created, err := put(0, 0, 20)
	if err != nil || !created.Succeeded {
		t.Fatalf("%+v, %v", created, err)
	}
	reserved(20)
	if again, err := put(0, 0, 90); err != nil || again.Succeeded || again.KV == nil {
		t.Errorf("a second creation: %+v, %v", again, err)
	}
	if prefixes == nil {
		reserved(20)
		if over, err := put(created.Revision, 20, 100); !errors.Is(err, kv.ErrLimitExceeded) {
			t.Errorf("beyond the limit: %+v, %v", over, err)
		}
	}
	read, err := r.Get(t.Context(), key, kubernetes.GetOptions{})
	if err != nil || read.KV == nil {
		t.Fatal(err)
	}
	at := read.KV.ModRevision
	if stale, err := put(at-1, 20, 30); err != nil || stale.Succeeded || stale.KV.ModRevision != at {
		t.Errorf("an update of another version: %+v, %v", stale, err)
	}
	lowered, err := put(at, 20, 5)
	if err != nil || !lowered.Succeeded {
		t.Fatalf("%+v, %v", lowered, err)
	}
	was, err := s.Reserved(t.Context(), w, "a")
	if err != nil || was["a"].Amounts.Keys < 20 {
		t.Errorf("an update lowered the entry: %+v, %v", was, err)
	}
	if raised, err := put(lowered.Revision, 5, 10); err != nil || !raised.Succeeded {
		t.Errorf("%+v, %v", raised, err)
	} else {
		lowered = raised
	}
	if prefixes != nil { // no transaction has both: an entry is raised, and not lowered
		version := strconv.FormatInt(lowered.Revision, 10)
		if was, err = s.Reserved(t.Context(), w, "a"); err != nil {
			t.Fatal(err)
		}
		if done, err := s.SetReservation(t.Context(), w, reservingResource, "a", version, was["a"], kv.Usage{Keys: 1}); err != nil || done {
			t.Errorf("a lower entry in a split keyspace: %v, %v", done, err)
		}
		if done, err := s.SetReservation(t.Context(), w, reservingResource, "a", "", was["a"], kv.Usage{}); err != nil || done {
			t.Errorf("the removal of an entry in a split keyspace: %v, %v", done, err)
		}
		if done, err := s.SetReservation(t.Context(), w, reservingResource, "a", version, was["a"], kv.Usage{Keys: 95}); err != nil || !done {
			t.Errorf("a higher entry in a split keyspace: %v, %v", done, err)
		}
	} else {
		version := strconv.FormatInt(lowered.Revision, 10)
		if done, err := s.SetReservation(t.Context(), w, reservingResource, "a", "1", was["a"], kv.Usage{Keys: 10}); err != nil || done {
			t.Errorf("an entry of another version of the object is changed: %v", err)
		}
		if done, err := s.SetReservation(t.Context(), w, reservingResource, "a", "", was["a"], kv.Usage{}); err != nil || done {
			t.Errorf("the entry of an object that exists is removed: %v", err)
		}
		entry := reserved(20)
		if done, err := s.SetReservation(t.Context(), w, reservingResource, "a", version, entry, kv.Usage{Keys: 10}); err != nil || !done {
			t.Errorf("%v, %v", done, err)
		}
		if done, err := s.SetReservation(t.Context(), w, reservingResource, "a", version, entry, kv.Usage{Keys: 1}); err != nil || done {
			t.Errorf("an entry that has changed is changed: %v", err)
		}
		reserved(10)
	}
	if stale, err := r.OptimisticDelete(t.Context(), key, at, kubernetes.DeleteOptions{GetOnFailure: true}); err != nil || stale.Succeeded || stale.KV == nil {
		t.Errorf("deletion of another version: %+v, %v", stale, err)
	}
	if deleted, err := r.OptimisticDelete(t.Context(), key, lowered.Revision, kubernetes.DeleteOptions{}); err != nil || !deleted.Succeeded {
		t.Errorf("%+v, %v", deleted, err)
	}
	reserved(0)
	if prefixes != nil {
		return
	}
	// An object of an earlier version has no entry.
	old, err := r.Interface.OptimisticPut(t.Context(), key, []byte("object"), 0, kubernetes.PutOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if done, err := s.SetReservation(t.Context(), w, reservingResource, "a", strconv.FormatInt(old.Revision, 10), Reservation{}, kv.Usage{Keys: 7}); err != nil || !done {
		t.Errorf("%v, %v", done, err)
	}
	reserved(7)
}

// TestReservationsConcurrent: raises of one object and changes of its entry by the server do not lose each other: the entry is never less than
// the object needs.
func TestReservationsConcurrent(t *testing.T) {
	w, r := openReserving(t, 1000)
	s := &Server{}
	key := customKey(reservingResource) + "a"
	created, err := r.OptimisticPut(change(t, 0, 1), key, []byte("1"), 0, kubernetes.PutOptions{})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var settling sync.WaitGroup
	settling.Go(func() { // lowers the entry to the amount in the object
		for {
			select {
			case <-done:
				return
			default:
			}
			object, err := r.Get(context.Background(), key, kubernetes.GetOptions{})
			if err != nil {
				t.Error(err)
				return
			}
			was, err := s.Reserved(context.Background(), w, "a")
			if err != nil {
				t.Error(err)
				return
			}
			needs, _ := strconv.ParseInt(string(object.KV.Value), 10, 64)
			if _, err := s.SetReservation(context.Background(), w, reservingResource, "a", strconv.FormatInt(object.KV.ModRevision, 10), was["a"], kv.Usage{Keys: needs}); err != nil {
				t.Error(err)
				return
			}
		}
	})
	at, before := created.Revision, int64(1)
	for i := range int64(200) {
		after := i * 37 % 101
		put, err := r.OptimisticPut(change(t, before, after), key, []byte(strconv.FormatInt(after, 10)), at, kubernetes.PutOptions{})
		if err != nil || !put.Succeeded {
			t.Fatalf("%+v, %v", put, err)
		}
		at, before = put.Revision, after
		if all, err := s.Reserved(t.Context(), w, "a"); err != nil || all["a"].Amounts.Keys < after {
			t.Fatalf("the object needs %d, and has reserved %+v, %v", after, all, err)
		}
	}
	close(done)
	settling.Wait()
}

// TestReservationOfUpdate: the amounts of an update are those before and after it, also if the update changes the object in place. An object
// whose amounts cannot be read is not written.
func TestReservationOfUpdate(t *testing.T) {
	type object struct {
		runtime.Object
		needs int64
	}
	s := &requestStore{reserves: func(o runtime.Object) (kv.Usage, error) {
		needs := o.(*object).needs
		if needs < 0 {
			return kv.Usage{}, errors.New("unreadable")
		}
		return kv.Usage{Keys: needs}, nil
	}}
	to := int64(9)
	ctx, update := s.withReservation(t.Context(), func(existing runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
		existing.(*object).needs = to
		return existing, nil, nil
	})
	if _, _, err := update(&object{needs: 4}, storage.ResponseMeta{}); err != nil {
		t.Fatal(err)
	}
	if got := ctx.Value(reservationKey{}).(*reservation); *got != (reservation{kv.Usage{Keys: 4}, kv.Usage{Keys: 9}, true}) {
		t.Errorf("%+v", got)
	}
	to = -1
	if _, _, err := update(&object{needs: 4}, storage.ResponseMeta{}); err == nil {
		t.Error("an object with unknown amounts is written")
	}
	if _, err := s.withNewReservation(t.Context(), &object{needs: -1}); err == nil {
		t.Error("an object with unknown amounts is created")
	}
}

// TestReservationsAreNotCopied: a copy of a workspace has neither the reservations of the workspaces in the source nor its stored limits.
func TestReservationsAreNotCopied(t *testing.T) {
	for _, key := range []string{kv.LimitsKey, kv.ReservationsKey, kv.ReservationPrefix + "a", workspacesPrefix + "a"} {
		if _, keep, err := (&copyChange{secrets: "/registry/secrets/"}).apply(t.Context(), kv.KeyValue{Key: []byte(key)}); keep || err != nil {
			t.Errorf("%s is copied: %v", key, err)
		}
	}
}
