package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/etcd"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/kv/partition"
	"github.com/atoll-dev/atoll/kv/sqlite"
)

// parts opens the parts of a keyspace in an SQLite file.
type parts struct{ db *sqlite.DB }

func (p parts) Prefixes(ctx context.Context) ([]string, error) {
	return p.db.Partitions(ctx, "test")
}

func (p parts) Open(ctx context.Context, prefix string) (partition.Engine, error) {
	name := "test"
	if prefix != "" {
		name = kv.PartitionName(name, prefix)
	}
	table, err := p.db.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	return mvcc.Open(ctx, table, p.db, mvcc.Options{})
}

func openPartitioned(t *testing.T, prefixes ...string) kv.Keyspace {
	t.Helper()
	db, err := sqlite.Open(filepath.Join(t.TempDir(), "kv.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	for _, prefix := range prefixes {
		if _, err := db.Split(t.Context(), "test", prefix, kv.SplitOptions{EmptyOnly: true}); err != nil {
			t.Fatal(err)
		}
	}
	ks, err := partition.Open(t.Context(), "test", parts{db}, partition.Options{LeaseInterval: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ks.Close() })
	return ks
}

// TestAlarmOfPartitions checks that the alarm of a keyspace holds in its partitions.
func TestAlarmOfPartitions(t *testing.T) {
	_, client := serve(t, openPartitioned(t, "/p/"), etcd.Options{})
	alarm := pb.NewMaintenanceClient(client.ActiveConnection())
	if _, err := alarm.Alarm(t.Context(), &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, Alarm: pb.AlarmType_NOSPACE}); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"/p/a", "/q/a"} {
		if _, err := client.Put(t.Context(), key, "x"); !errors.Is(err, rpctypes.ErrNoSpace) {
			t.Errorf("put %s: %v, want %v", key, err, rpctypes.ErrNoSpace)
		}
	}
	if r, err := client.AlarmDisarm(t.Context(), &clientv3.AlarmMember{}); err != nil || len(r.Alarms) != 1 {
		t.Errorf("disarm: %v, %v", r, err)
	}
	if _, err := client.Put(t.Context(), "/p/a", "x"); err != nil {
		t.Errorf("put after the alarm was disarmed: %v", err)
	}
	_, err := alarm.Alarm(t.Context(), &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, Alarm: pb.AlarmType_CORRUPT})
	if status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), "CORRUPT") {
		t.Errorf("another alarm: %v", err)
	}
}

// TestPartitions uses a keyspace with several partitions over one connection and one
// stream.
func TestPartitions(t *testing.T) {
	for name, connect := range map[string]func(t *testing.T, ks kv.Keyspace) *clientv3.Client{
		"gRPC": func(t *testing.T, ks kv.Keyspace) *clientv3.Client {
			_, client := serve(t, ks, etcd.Options{})
			return client
		},
		"in process": func(t *testing.T, ks kv.Keyspace) *clientv3.Client {
			client, err := etcd.InProcess(ks, t.Name())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { client.Close() })
			return client.Client
		},
	} {
		t.Run(name, func(t *testing.T) {
			client := connect(t, openPartitioned(t, "/p/", "/q/"))
			t.Run("progress", func(t *testing.T) { testPartitionProgress(t, client) })
			t.Run("refused", func(t *testing.T) { testPartitionRefusals(t, client) })
			t.Run("leases", func(t *testing.T) { testPartitionLeases(t, client) })
		})
	}
}

// testPartitionProgress requests progress on a stream with watches of several partitions:
// each gets the revision of its own.
func testPartitionProgress(t *testing.T, client *clientv3.Client) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	put := func(key string) int64 {
		t.Helper()
		res, err := client.Put(ctx, key, "")
		if err != nil {
			t.Fatal(err)
		}
		return res.Header.Revision
	}
	// The revisions are far apart: a revision of another partition would make a watch miss
	// events, or report missed ones.
	head := map[string]int64{"/p/": put("/p/x"), "/q/": put("/q/x"), "/r/": 0}
	for i := range 50 {
		head["/r/"] = put(fmt.Sprint("/r/", i))
	}
	for range 20 {
		head["/q/"] = put("/q/x")
	}
	// Kubernetes reads a resource's current revision this way.
	for prefix, at := range head {
		if res, err := client.Get(ctx, strings.TrimSuffix(prefix, "/"), clientv3.WithLimit(1)); err != nil || res.Header.Revision != at {
			t.Fatalf("%s is at %d, its naming key returns %+v, %v", prefix, at, res, err)
		}
	}
	watches := map[string]clientv3.WatchChan{}
	for prefix, at := range head {
		watches[prefix] = client.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithCreatedNotify())
		if r := <-watches[prefix]; !r.Created || r.Header.Revision != at {
			t.Fatalf("watch of %s was created at %d, its partition is at %d", prefix, r.Header.Revision, at)
		}
	}
	for range 3 {
		if err := client.RequestProgress(ctx); err != nil {
			t.Fatal(err)
		}
		for prefix, at := range head {
			r := <-watches[prefix]
			if !r.IsProgressNotify() || r.Header.Revision != at {
				t.Fatalf("progress of %s: %d, its partition is at %d (%+v)", prefix, r.Header.Revision, at, r)
			}
		}
		for prefix := range head {
			head[prefix] = put(prefix + "again")
			r := <-watches[prefix]
			if len(r.Events) != 1 || r.Header.Revision != head[prefix] {
				t.Fatalf("watch of %s gets %+v, want the put at %d", prefix, r, head[prefix])
			}
		}
	}
	// Watches of one partition are answered together.
	other := client.Watch(clientv3.WithRequireLeader(ctx), "/p/", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	<-other
	if err := client.RequestProgress(clientv3.WithRequireLeader(ctx)); err != nil {
		t.Fatal(err)
	}
	if r := <-other; !r.IsProgressNotify() || r.Header.Revision != head["/p/"] {
		t.Errorf("progress of a stream of one partition: %+v, want %d", r, head["/p/"])
	}
}

// testPartitionRefusals makes calls that no single partition can answer.
func testPartitionRefusals(t *testing.T, client *clientv3.Client) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	goesOn := client.Watch(ctx, "/p/", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	<-goesOn
	over := client.Watch(ctx, "/", clientv3.WithPrefix())
	if r := <-over; !r.Canceled || r.Err() == nil || !strings.Contains(r.Err().Error(), "one partition at a time") {
		t.Errorf("watch over several partitions: %+v, %v", r, r.Err())
	}
	if _, err := client.Put(ctx, "/p/after", ""); err != nil {
		t.Fatal(err)
	}
	if r := <-goesOn; len(r.Events) != 1 {
		t.Errorf("the other watch of the stream gets %+v", r)
	}
	for what, call := range map[string]func() error{
		"txn": func() error {
			_, err := client.Txn(ctx).Then(clientv3.OpPut("/p/1", ""), clientv3.OpPut("/q/1", "")).Commit()
			return err
		},
		"delete":            func() error { _, err := client.Delete(ctx, "/", clientv3.WithPrefix()); return err },
		"range at revision": func() error { _, err := client.Get(ctx, "/", clientv3.WithPrefix(), clientv3.WithRev(3)); return err },
	} {
		err := call()
		if status.Code(err) != codes.InvalidArgument && !strings.Contains(fmt.Sprint(err), "partition") {
			t.Errorf("%s over several partitions: %v", what, err)
		}
	}
	all, err := client.Get(ctx, "/", clientv3.WithPrefix())
	if err != nil || all.Count != int64(len(all.Kvs)) || all.Count < 50 {
		t.Errorf("list of all: %d of %d, %v", len(all.Kvs), all.Count, err)
	}
}

func testPartitionLeases(t *testing.T, client *clientv3.Client) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	lease, err := client.Grant(ctx, 3600)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"/p/leased", "/q/leased", "/r/leased"} {
		if _, err := client.Put(ctx, key, "", clientv3.WithLease(lease.ID)); err != nil {
			t.Fatal(err)
		}
	}
	ttl, err := client.TimeToLive(ctx, lease.ID, clientv3.WithAttachedKeys())
	if err != nil || len(ttl.Keys) != 3 || ttl.GrantedTTL != 3600 {
		t.Errorf("time to live: %+v, %v", ttl, err)
	}
	if _, err := client.Revoke(ctx, lease.ID); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"/p/leased", "/q/leased", "/r/leased"} {
		if res, err := client.Get(ctx, key); err != nil || res.Count != 0 {
			t.Errorf("%s after the lease was revoked: %+v, %v", key, res, err)
		}
	}
}
