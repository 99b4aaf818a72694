package etcd_test

import (
	"context"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3election/v3electionpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/atoll-dev/atoll/kv/etcd"
)

// TestLockService: a lock of the service and one of clientv3 exclude each other, on
// different servers.
func TestLockService(t *testing.T) {
	ks := openAtoll(t)
	_, one := serve(t, ks, etcd.Options{})
	_, two := serve(t, ks, etcd.Options{})
	service := v3lockpb.NewLockClient(one.ActiveConnection())
	held, err := service.Lock(t.Context(), &v3lockpb.LockRequest{Name: []byte("n")})
	if err != nil {
		t.Fatal(err)
	}
	session, err := concurrency.NewSession(two)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	mutex := concurrency.NewMutex(session, "n")
	if err := mutex.TryLock(t.Context()); err != concurrency.ErrLocked {
		t.Fatalf("a second client: %v", err)
	}
	if _, err := service.Unlock(t.Context(), &v3lockpb.UnlockRequest{Key: held.Key}); err != nil {
		t.Fatal(err)
	}
	if err := mutex.Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() {
		_, err := service.Lock(t.Context(), &v3lockpb.LockRequest{Name: []byte("n"), Lease: int64(session.Lease())})
		got <- err
	}()
	// The same lease already holds it, so the service returns at once.
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	if _, err := service.Lock(t.Context(), &v3lockpb.LockRequest{Name: []byte("m"), Lease: 99}); err == nil {
		t.Error("locked with a lease that does not exist")
	}
}

// TestElectionService: the next candidate leads after the first has resigned, and observers
// see both.
func TestElectionService(t *testing.T) {
	ks := openAtoll(t)
	_, one := serve(t, ks, etcd.Options{})
	_, two := serve(t, ks, etcd.Options{})
	service := v3electionpb.NewElectionClient(one.ActiveConnection())
	observer, err := v3electionpb.NewElectionClient(two.ActiveConnection()).Observe(t.Context(), &v3electionpb.LeaderRequest{Name: []byte("e")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := service.Leader(t.Context(), &v3electionpb.LeaderRequest{Name: []byte("e")}); err == nil {
		t.Error("there is a leader before any campaign")
	}
	first, err := service.Campaign(t.Context(), &v3electionpb.CampaignRequest{Name: []byte("e"), Value: []byte("first")})
	if err != nil {
		t.Fatal(err)
	}
	session, err := concurrency.NewSession(two)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	second := concurrency.NewElection(session, "e")
	elected := make(chan error, 1)
	go func() { elected <- second.Campaign(t.Context(), "second") }()
	sees := func(value string) {
		t.Helper()
		res, err := observer.Recv()
		if err != nil || string(res.Kv.Value) != value {
			t.Fatalf("observed %v, %v; want %s", res, err, value)
		}
	}
	sees("first")
	if _, err := service.Proclaim(t.Context(), &v3electionpb.ProclaimRequest{Leader: first.Leader, Value: []byte("still first")}); err != nil {
		t.Fatal(err)
	}
	sees("still first")
	if _, err := service.Resign(t.Context(), &v3electionpb.ResignRequest{Leader: first.Leader}); err != nil {
		t.Fatal(err)
	}
	if err := <-elected; err != nil {
		t.Fatal(err)
	}
	sees("second")
	leader, err := service.Leader(t.Context(), &v3electionpb.LeaderRequest{Name: []byte("e")})
	if err != nil || string(leader.Kv.Value) != "second" {
		t.Error(leader, err)
	}
}

// TestStopEndsLocks: calls that wait for other clients do not delay the server's stop.
func TestStopEndsLocks(t *testing.T) {
	server, c := serve(t, openAtoll(t), etcd.Options{})
	service := v3lockpb.NewLockClient(c.ActiveConnection())
	if _, err := service.Lock(t.Context(), &v3lockpb.LockRequest{Name: []byte("n")}); err != nil {
		t.Fatal(err)
	}
	waiting := make(chan error, 1)
	go func() {
		_, err := service.Lock(t.Context(), &v3lockpb.LockRequest{Name: []byte("n")})
		waiting <- err
	}()
	for {
		res, err := c.Get(t.Context(), "n/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			t.Fatal(err)
		}
		if res.Count == 2 {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	server.Stop(ctx)
	if ctx.Err() != nil {
		t.Error("the call was not ended")
	}
	if err := <-waiting; status.Code(err) != codes.Unavailable {
		t.Errorf("the waiting call: %v", err)
	}
}
