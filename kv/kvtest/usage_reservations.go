package kvtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/atoll-dev/atoll/kv"
)

// reserve returns the operations that put an object with an entry that reserves amounts; nil deletes both.
func reserve(name string, amounts *kv.Usage) []kv.Op {
	mark := kv.Op{Put: &kv.PutOp{Key: []byte(kv.ReservationsKey)}}
	object, entry := []byte("objects/"+name), []byte(kv.ReservationPrefix+name)
	if amounts == nil {
		return []kv.Op{mark, {Delete: &kv.DeleteOp{Span: kv.Span{Start: object}}}, {Delete: &kv.DeleteOp{Span: kv.Span{Start: entry}}}}
	}
	return []kv.Op{mark, {Put: &kv.PutOp{Key: object, Value: []byte(name)}}, {Put: &kv.PutOp{Key: entry, Value: kv.EncodeReservation(*amounts)}}}
}

// testReservations: random changes of entries, by all entry points, succeed exactly if the limits permit them. At times an entry point
// does not count.
func testReservations(t *testing.T, seed uint64, open OpenLimited) {
	entries, check := open(t)
	random := rand.New(rand.NewPCG(seed, 1))
	maxKeys, maxBytes, maxUnits := int64(60), int64(2000), int64(12)
	limits := kv.Limits{Keys: &maxKeys, Bytes: &maxBytes, Units: &maxUnits}
	objects := map[string]kv.Usage{}
	used := func() (sum kv.Usage) {
		for name, amounts := range objects {
			sum = sum.Plus(amounts).Plus(kv.Usage{Keys: 1, Bytes: int64(len("objects/") + 2*len(name))})
		}
		return sum
	}
	denied := 0
	for i := range 300 {
		e := entries[random.IntN(len(entries))]
		limited := random.IntN(10) > 0
		e.SetLimits(kv.Limits{})
		if limited {
			e.SetLimits(limits)
		}
		name, before := fmt.Sprintf("%02d", random.IntN(12)), used()
		was, existed := objects[name]
		var amounts *kv.Usage
		if random.IntN(4) > 0 {
			amounts = &kv.Usage{Keys: random.Int64N(20), Bytes: random.Int64N(700), Units: random.Int64N(4)}
			objects[name] = *amounts
		} else {
			delete(objects, name)
		}
		permitted := !limited || limits.Check(before, used()) == nil
		_, err := e.Txn(t.Context(), kv.TxnRequest{Then: reserve(name, amounts)})
		if permitted != (err == nil) || err != nil && !errors.Is(err, kv.ErrLimitExceeded) {
			t.Fatalf("step %d: %q reserves %v of %v, in use are %v: %v", i, name, amounts, limits, before, err)
		}
		if !permitted {
			denied++
			if delete(objects, name); existed {
				objects[name] = was
			}
		}
		if got, err := e.Usage(t.Context()); err != nil || got != used() {
			t.Fatalf("step %d: the usage is %+v, %v, want %+v", i, got, err, used())
		}
	}
	if denied == 0 {
		t.Error("nothing was refused")
	}
	if err := check(t.Context()); err != nil {
		t.Error(err)
	}
}

// testStoredLimits: all entry points obey lower limits from the commit that stores them on, also at once with concurrent reservations,
// and a transaction cannot change an entry behind the back of other engines.
func testStoredLimits(t *testing.T, open OpenLimited) {
	entries, check := open(t)
	for _, e := range entries {
		e.SetLimits(limitKeys(1000))
		if err := put(t.Context(), e, fmt.Sprintf("warm-%p", e)); err != nil { // it has seen a state without stored limits
			t.Fatal(err)
		}
	}
	store := func(limits string) {
		t.Helper()
		ctx, exempt := kv.WithExemption(t.Context())
		exempt(true)
		if _, err := entries[0].Txn(ctx, kv.TxnRequest{Then: []kv.Op{{Put: &kv.PutOp{Key: []byte(kv.LimitsKey), Value: []byte(limits)}}}}); err != nil {
			t.Fatal(err)
		}
	}
	const each, clients, room = 10, 12, 5
	store(fmt.Sprintf(`{"keys":%d}`, len(entries)+room*(1+each)+each)) // not enough for one more
	var created atomic.Int64
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() {
			_, err := entries[i%len(entries)].Txn(t.Context(), kv.TxnRequest{Then: reserve(fmt.Sprint(i), &kv.Usage{Keys: each})})
			if err == nil {
				created.Add(1)
			} else if !errors.Is(err, kv.ErrLimitExceeded) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if created.Load() != room {
		t.Errorf("%d objects with reservations were created, want %d", created.Load(), room)
	}
	for limits, permitted := range map[string]bool{`{"keys":0}`: false, `{"bytes":0}`: false, `broken`: false, `{"keys":100000,"generation":2}`: true} {
		store(limits)
		for _, e := range entries {
			if err := put(t.Context(), e, fmt.Sprintf("after %s %p", limits, e)); permitted != (err == nil) || err != nil && !errors.Is(err, kv.ErrLimitExceeded) {
				t.Errorf("stored limits %s: %v", limits, err)
			}
		}
	}
	entry := []byte(kv.ReservationPrefix + "1")
	mark := kv.Op{Put: &kv.PutOp{Key: []byte(kv.ReservationsKey)}}
	lease, err := entries[0].Grant(t.Context(), 0, leaseTTL)
	if err != nil {
		t.Fatal(err)
	}
	for what, ops := range map[string][]kv.Op{
		"put without the mark":      {{Put: &kv.PutOp{Key: entry, Value: []byte(`{}`)}}},
		"deletion without the mark": {{Delete: &kv.DeleteOp{Span: kv.Prefix([]byte(kv.ReservationPrefix))}}},
		"put with a lease":          {mark, {Put: &kv.PutOp{Key: entry, Value: []byte(`{}`), Lease: lease.ID}}},
	} {
		if _, err := entries[0].Txn(t.Context(), kv.TxnRequest{Then: ops}); !errors.Is(err, kv.ErrInvalidRequest) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for value, want := range map[string]kv.Usage{`{"keys":-1}`: {Keys: kv.MaxReserved, Bytes: kv.MaxReserved, Units: kv.MaxReserved}, ``: {Keys: kv.MaxReserved, Bytes: kv.MaxReserved, Units: kv.MaxReserved},
		`{"units":3}`: {Units: 3}} {
		if got := kv.Reservation([]byte(value)); got != want {
			t.Errorf("%q reserves %+v, want %+v", value, got, want)
		}
	}
	for _, e := range entries {
		if err := sameUsage(context.Background(), e); err != nil {
			t.Error(err)
		}
	}
	if err := check(t.Context()); err != nil {
		t.Error(err)
	}
}
