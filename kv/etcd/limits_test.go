package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/etcd"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/kv/postgres"
	playground "github.com/atoll-dev/atoll/playground/postgres"
)

// exhausted returns an error unless err is a refusal that names the flag.
func exhausted(err error, flag string) error {
	// clientv3 converts errors, but keeps their text.
	if err == nil || !strings.Contains(err.Error(), "("+flag+")") || !strings.Contains(err.Error(), "etcdserver: ") {
		return fmt.Errorf("%v, want a refusal that names %s", err, flag)
	}
	return nil
}

// TestAnswersAreBounded reads more than an answer may have, in every way.
func TestAnswersAreBounded(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T) kv.Keyspace{
		"sqlite":     func(t *testing.T) kv.Keyspace { return openAtoll(t) },
		"partitions": func(t *testing.T) kv.Keyspace { return openPartitioned(t, "/a/p/", "/a/q/") },
		"postgres": func(t *testing.T) kv.Keyspace {
			if testing.Short() {
				t.Skip("needs a PostgreSQL; not with -short")
			}
			server, err := playground.Start(t.Context(), playground.Config{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { server.Stop() })
			db, err := postgres.Open(t.Context(), server.SocketURL())
			if err != nil {
				t.Fatal(err)
			}
			ks, _ := openEngine(t, db)
			return ks
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testBoundedAnswers(t, open(t), name == "partitions")
		})
	}
}

const (
	boundedKeys  = 40
	boundedValue = 64 << 10
)

func testBoundedAnswers(t *testing.T, ks kv.Keyspace, partitioned bool) {
	_, c := serve(t, ks, etcd.Options{MaxResponseBytes: 1 << 20})
	ctx := t.Context()
	value := strings.Repeat("x", boundedValue)
	var rev int64
	for i := range boundedKeys {
		folder := ""
		if partitioned {
			folder = []string{"", "p/", "q/"}[i%3] // none of them exceeds the bound alone
		}
		r, err := c.Put(ctx, fmt.Sprintf("/a/%s%02d", folder, i), value)
		if err != nil {
			t.Fatal(err)
		}
		rev = r.Header.Revision
	}
	all := clientv3.WithPrefix()
	tooLarge := map[string][]clientv3.OpOption{"all": {all}, "a large limit": {all, clientv3.WithLimit(30)}}
	if !partitioned { // each partition is sorted alone
		tooLarge["sorted, limited"] = []clientv3.OpOption{all, clientv3.WithLimit(1), clientv3.WithSort(clientv3.SortByModRevision, clientv3.SortDescend)}
	}
	for name, opts := range tooLarge {
		if _, err := c.Get(ctx, "/a/", opts...); exhausted(err, "--max-response-bytes") != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, opts := range map[string][]clientv3.OpOption{
		"keys":  {all, clientv3.WithKeysOnly()},
		"count": {all, clientv3.WithCountOnly()},
	} {
		if r, err := c.Get(ctx, "/a/", opts...); err != nil || r.Count != boundedKeys {
			t.Errorf("%s: %v", name, err)
		}
	}
	local, err := etcd.InProcess(ks, t.Name())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { local.Close() })
	if r, err := local.KV.Get(ctx, "/a/", all); err != nil || len(r.Kvs) != boundedKeys {
		t.Errorf("the API server's own client: %v", err)
	}
	if partitioned {
		return // the requests below concern more than one partition
	}
	if _, err := c.Get(ctx, "/a/", all, clientv3.WithRev(rev-1)); exhausted(err, "--max-response-bytes") != nil {
		t.Errorf("an earlier revision: %v", err)
	}
	if _, err := c.Get(ctx, "/a/", all, clientv3.WithRev(rev-1), clientv3.WithLimit(30)); exhausted(err, "--max-response-bytes") != nil {
		t.Errorf("pages of an earlier revision: %v", err)
	}
	if r, err := c.Get(ctx, "/a/", all, clientv3.WithLimit(10)); err != nil || len(r.Kvs) != 10 {
		t.Errorf("a page: %v", err)
	}
	testBoundedTxns(t, c, rev)
	stream := &pb.RangeRequest{Key: []byte("/a/"), RangeEnd: []byte("/a0")}
	if r, err := rangeStream(ctx, c.ActiveConnection(), stream, func(*pb.RangeResponse) {}); err != nil || len(r.Kvs) != boundedKeys {
		t.Errorf("a stream of all keys: %v", err)
	}
	if _, err := pb.NewMaintenanceClient(c.ActiveConnection()).HashKV(ctx, &pb.HashKVRequest{}); err != nil {
		t.Errorf("hash: %v", err)
	}
}

// testBoundedTxns checks that a transaction with a too large answer changes nothing, and
// affects no other in the same commit.
func testBoundedTxns(t *testing.T, c *clientv3.Client, rev int64) {
	ctx := t.Context()
	all, prev := clientv3.WithPrefix(), clientv3.WithPrevKV()
	ten := func(from int) clientv3.Op {
		return clientv3.OpGet(fmt.Sprintf("/a/%02d", from), clientv3.WithRange("/a0"), clientv3.WithLimit(10))
	}
	put := clientv3.OpPut("/a/99", "new")
	others := make(chan error, 1)
	stop := make(chan struct{})
	go func() {
		var err error
		for i := 0; err == nil; i++ {
			select {
			case <-stop:
				others <- nil
				return
			default:
				_, err = c.Put(ctx, "/other", fmt.Sprint(i))
			}
		}
		others <- err
	}()
	for name, ops := range map[string][]clientv3.Op{
		"ranges":               {ten(0), ten(10)},
		"nested ranges":        {ten(0), clientv3.OpTxn(nil, []clientv3.Op{ten(10)}, nil)},
		"put, range":           {put, clientv3.OpGet("/a/", all)},
		"range, delete":        {ten(0), clientv3.OpDelete("/a/2", all, prev)},
		"delete":               {clientv3.OpDelete("/a/", all, prev)},
		"delete, put, range":   {clientv3.OpDelete("/a/00"), clientv3.OpPut("/a/01", "new"), clientv3.OpGet("/a/", all)},
		"nested delete, range": {clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpDelete("/a/00")}, nil), clientv3.OpGet("/a/", all)},
	} {
		if _, err := c.Txn(ctx).Then(ops...).Commit(); exhausted(err, "--max-response-bytes") != nil {
			t.Errorf("txn of %s: %v", name, err)
		}
	}
	compare := clientv3.Compare(clientv3.Value("/a/"), "=", strings.Repeat("x", boundedValue)).WithPrefix()
	for name, ops := range map[string][]clientv3.Op{"reads": {ten(0)}, "writes": {put}} {
		if _, err := c.Txn(ctx).If(compare).Then(ops...).Commit(); exhausted(err, "--max-response-bytes") != nil {
			t.Errorf("compare of all values that %s: %v", name, err)
		}
	}
	if _, err := c.Delete(ctx, "/a/", all, prev); exhausted(err, "--max-response-bytes") != nil {
		t.Errorf("delete: %v", err)
	}
	close(stop)
	if err := <-others; err != nil {
		t.Errorf("another client's put: %v", err)
	}
	r, err := c.Get(ctx, "/a/", all, clientv3.WithKeysOnly())
	if err != nil || r.Count != boundedKeys {
		t.Fatalf("%d keys, %v", r.Count, err)
	}
	for _, kv := range r.Kvs {
		if kv.ModRevision > rev {
			t.Errorf("a refused transaction changed %s", kv.Key)
		}
	}
	watch := c.Watch(ctx, "/a/", all, clientv3.WithRev(rev+1))
	if _, err := c.Put(ctx, "/a/last", ""); err != nil {
		t.Fatal(err)
	}
	if w := <-watch; len(w.Events) != 1 || string(w.Events[0].Kv.Key) != "/a/last" {
		t.Errorf("events of refused transactions: %v", w.Events)
	}
	if _, err := c.Delete(ctx, "/a/last"); err != nil {
		t.Fatal(err)
	}
}

// TestWatchesAreBounded opens too many watches on one connection, and then on the server.
func TestWatchesAreBounded(t *testing.T) {
	t.Parallel()
	_, one := serve(t, openAtoll(t), etcd.Options{MaxWatchesPerConnection: 3, MaxWatches: 5})
	two := connect(t, one.Endpoints()[0])
	ctx := t.Context()
	watch := func(c *clientv3.Client) (context.CancelFunc, error) {
		ctx, cancel := context.WithCancel(ctx)
		w := <-c.Watch(ctx, "k", clientv3.WithCreatedNotify())
		if w.Created && w.Err() == nil {
			return cancel, nil
		}
		cancel()
		return nil, w.Err()
	}
	var cancels []context.CancelFunc
	for _, c := range []*clientv3.Client{one, one, one, two, two} {
		cancel, err := watch(c)
		if err != nil {
			t.Fatal(err)
		}
		cancels = append(cancels, cancel)
	}
	if _, err := watch(one); exhausted(err, "--max-watches-per-connection") != nil {
		t.Errorf("the fourth watch of a connection: %v", err)
	}
	if _, err := watch(two); exhausted(err, "--max-watches") != nil {
		t.Errorf("the sixth watch: %v", err)
	}
	if _, err := one.Put(ctx, "k", "v"); err != nil {
		t.Error(err)
	}
	cancels[0]()
	eventually(t, "a canceled watch makes room for another one", func(context.Context) bool {
		cancel, err := watch(two)
		if err == nil {
			defer cancel()
		}
		return err == nil
	})
	two.Close()
	three := connect(t, one.Endpoints()[0])
	for range 3 {
		eventually(t, "a closed connection makes room", func(context.Context) bool {
			_, err := watch(three)
			return err == nil
		})
	}
}

// TestLeasesAreBounded grants too many leases.
func TestLeasesAreBounded(t *testing.T) {
	t.Parallel()
	_, c := serve(t, openAtollWith(t, mvcc.Options{MaxLeases: 3}), etcd.Options{})
	var last clientv3.LeaseID
	for range 3 {
		l, err := c.Grant(t.Context(), 1000)
		if err != nil {
			t.Fatal(err)
		}
		last = l.ID
	}
	if _, err := c.Grant(t.Context(), 1000); exhausted(err, "--max-leases") != nil {
		t.Error(err)
	}
	if _, err := c.Revoke(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Grant(t.Context(), 1000); err != nil {
		t.Errorf("after one was revoked: %v", err)
	}
}

// TestConcurrentStreams opens more streams than a connection may have. Calls wait until
// another one ends.
func TestConcurrentStreams(t *testing.T) {
	t.Parallel()
	_, c := serve(t, openAtoll(t), etcd.Options{MaxConcurrentStreams: 1})
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := pb.NewWatchClient(c.ActiveConnection()).Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	create := &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{Key: []byte("k")}}}
	if err := stream.Send(create); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	short, stop := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer stop()
	if _, err := c.Put(short, "k", "v"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a second call: %v, want that it waits", err)
	}
	cancel()
	if _, err := c.Put(t.Context(), "k", "v"); err != nil {
		t.Errorf("after the stream has ended: %v", err)
	}
}
