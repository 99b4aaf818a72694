package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"google.golang.org/grpc/metadata"

	"github.com/atoll-dev/atoll/kv/etcd"
)

func inProcess(t *testing.T) *kubernetes.Client {
	t.Helper()
	c, err := etcd.InProcess(openAtoll(t), t.Name())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// TestKubernetesInterface makes the calls of the API server's storage to etcd's own
// implementation and to the in-process one.
func TestKubernetesInterface(t *testing.T) {
	referee := startReferee(t)
	theirs := &kubernetes.Client{Client: referee}
	theirs.Kubernetes = theirs
	want := playKubernetes(t, theirs)
	got := playKubernetes(t, inProcess(t))
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("etcd -, Atoll +:\n%s", d)
	}
}

func playKubernetes(t *testing.T, c *kubernetes.Client) []string {
	ctx := t.Context()
	k := c.Kubernetes
	var log []string
	say := func(what string, v any, err error) {
		log = append(log, fmt.Sprintf("%s: %+v, error %v, compacted %v, future %v", what, v, err, err == rpctypes.ErrCompacted, errors.Is(err, rpctypes.ErrFutureRev)))
	}
	put := func(key, value string, rev int64, get bool) {
		r, err := k.OptimisticPut(ctx, key, []byte(value), rev, kubernetes.PutOptions{GetOnFailure: get})
		say("put "+key, r, err)
	}
	put("/r/a", "1", 0, false)
	put("/r/a", "2", 0, false)
	put("/r/a", "2", 0, true)
	put("/r/a", "2", 2, true)
	put("/r/missing", "1", 5, true)
	put("/r/b", "1", 0, true)
	put("/r/c", "", 0, true)
	put("/s", "1", 0, true)
	for _, key := range []string{"/r/a", "/r/missing", "/r/c"} {
		r, err := k.Get(ctx, key, kubernetes.GetOptions{})
		say("get "+key, r, err)
	}
	old, err := k.Get(ctx, "/r/a", kubernetes.GetOptions{Revision: 2})
	say("get at an old revision", old, err)
	future, err := k.Get(ctx, "/r/a", kubernetes.GetOptions{Revision: 100})
	say("get at a future revision", future, err)
	for _, opts := range []kubernetes.ListOptions{{}, {Limit: 2}, {Limit: 2, Continue: "/r/b\x00"}, {Revision: 3}, {Revision: 100}} {
		r, err := k.List(ctx, "/r/", opts)
		say("list", r, err)
	}
	n, err := k.Count(ctx, "/r/", kubernetes.CountOptions{})
	say("count", n, err)
	for _, rev := range []int64{2, 3} {
		r, err := k.OptimisticDelete(ctx, "/r/a", rev, kubernetes.DeleteOptions{GetOnFailure: true})
		say("delete", r, err)
	}
	r, err := k.OptimisticDelete(ctx, "/r/a", 3, kubernetes.DeleteOptions{GetOnFailure: true})
	say("delete again", r, err)
	leased, err := k.OptimisticPut(ctx, "/r/e", nil, 0, kubernetes.PutOptions{LeaseID: 99})
	say("put with a missing lease", leased, err)
	_, err = c.Compact(ctx, 5)
	say("compact", nil, err)
	_, err = c.Compact(ctx, 5)
	say("compact again", nil, err)
	old, err = k.Get(ctx, "/r/a", kubernetes.GetOptions{Revision: 2})
	say("get at a compacted revision", old, err)
	list, err := k.List(ctx, "/r/", kubernetes.ListOptions{Revision: 2})
	say("list at a compacted revision", list, err)
	resp, err := c.KV.Get(ctx, "/r/", clientv3.WithPrefix(), clientv3.WithLimit(1), clientv3.WithRev(100))
	say("the other interface", resp == nil, err)
	return log
}

func TestInProcessClient(t *testing.T) {
	c := inProcess(t)
	if got := c.Endpoints(); len(got) != 1 || got[0] != t.Name() {
		t.Errorf("endpoints %v: they are the keys of the API server's table of store features", got)
	}
	st, err := c.Status(t.Context(), c.Endpoints()[0])
	if err != nil || st.Version != etcd.Version || st.DbSize == 0 {
		t.Errorf("status %+v, %v", st, err)
	}
	if c.Ctx().Err() != nil {
		t.Error("the client's context ended")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Kubernetes.Get(ctx, "a", kubernetes.GetOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("get with a canceled context: %v", err)
	}
	if _, err := c.KV.Get(ctx, "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("get with a canceled context: %v", err)
	}
	c.Close()
	if c.Ctx().Err() == nil {
		t.Error("the client's context continues after Close")
	}
}

// TestInProcessProgress checks that progress reaches all watches whose contexts have the
// same metadata, and no others, as with a connection.
func TestInProcessProgress(t *testing.T) {
	c := inProcess(t)
	with := clientv3.WithRequireLeader(t.Context())
	var same []clientv3.WatchChan
	for i := range 3 {
		same = append(same, c.Watch(with, fmt.Sprintf("/%d/", i), clientv3.WithPrefix(), clientv3.WithPrevKV(), clientv3.WithProgressNotify()))
	}
	other := c.Watch(metadata.AppendToOutgoingContext(t.Context(), "other", "stream"), "/", clientv3.WithPrefix())
	r, err := c.Put(t.Context(), "/1/a", "1")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.RequestProgress(with); err != nil {
		t.Fatal(err)
	}
	for i, w := range same {
		for done := false; !done; {
			select {
			case resp := <-w:
				done = resp.IsProgressNotify() && resp.Header.Revision == r.Header.Revision
				if !done && (i != 1 || len(resp.Events) != 1) {
					t.Fatalf("watch %d got %+v", i, resp)
				}
			case <-time.After(10 * time.Second):
				t.Fatalf("no progress on watch %d", i)
			}
		}
	}
	select {
	case resp := <-other:
		if resp.IsProgressNotify() {
			t.Error("progress on a stream without a request")
		}
	case <-time.After(10 * time.Second):
		t.Fatal("no event on the other stream")
	}
}

func TestInProcessWatchEnds(t *testing.T) {
	c := inProcess(t)
	for range 5 {
		if _, err := c.Put(t.Context(), "a", "1"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Compact(t.Context(), 4); err != nil {
		t.Fatal(err)
	}
	resp := <-c.Watch(t.Context(), "a", clientv3.WithRev(2))
	if !resp.Canceled || resp.Err() != rpctypes.ErrCompacted || resp.CompactRevision != 4 {
		t.Errorf("watch from a compacted revision: %+v, %v", resp, resp.Err())
	}
	ctx, cancel := context.WithCancel(t.Context())
	w := c.Watch(ctx, "a")
	cancel()
	if resp, open := <-w; open {
		t.Errorf("a canceled watch sent %+v", resp)
	}
	w = c.Watch(t.Context(), "a")
	c.Close()
	for resp := range w {
		if resp.Err() == nil {
			t.Errorf("a watch sent %+v after Close", resp)
		}
	}
}
