package etcd_test

import (
	"context"
	"fmt"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/atoll-dev/atoll/kv/etcd"
)

// TestOddRequests compares the answers to requests that clients hardly ever send: with
// values that no version of the API has defined, and with spans without an end and
// single keys in one transaction.
func TestOddRequests(t *testing.T) {
	referee := startReferee(t)
	_, atoll := serve(t, openAtoll(t), etcd.Options{})
	for name, call := range oddRequests() {
		t.Run(name, func(t *testing.T) {
			want, got := call(t.Context(), referee), call(t.Context(), atoll)
			if got != want {
				t.Errorf("Atoll answers %s, etcd %s", got, want)
			}
		})
	}
}

func oddRequests() map[string]func(context.Context, *clientv3.Client) string {
	put := func(key string) *pb.RequestOp {
		return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte(key), Value: []byte("v")}}}
	}
	del := func(from, to string) *pb.RequestOp {
		return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte(from), RangeEnd: []byte(to)}}}
	}
	txn := func(r *pb.TxnRequest) func(context.Context, *clientv3.Client) string {
		return func(ctx context.Context, c *clientv3.Client) string {
			if _, err := c.Delete(ctx, "", clientv3.WithFromKey()); err != nil {
				return err.Error()
			}
			for _, key := range []string{"a", "b", "c"} {
				if _, err := c.Put(ctx, key, "v"); err != nil {
					return err.Error()
				}
			}
			before, err := c.Get(ctx, "a")
			if err != nil {
				return err.Error()
			}
			res, err := pb.NewKVClient(c.ActiveConnection()).Txn(ctx, r)
			if err != nil {
				return err.Error()
			}
			out := fmt.Sprint(res.Succeeded, " after ", res.Header.Revision-before.Header.Revision)
			for _, r := range res.Responses {
				if d := r.GetResponseDeleteRange(); d != nil {
					out += fmt.Sprint(" deleted ", d.Deleted)
				}
			}
			left, err := c.Get(ctx, "", clientv3.WithFromKey(), clientv3.WithKeysOnly())
			if err != nil {
				return err.Error()
			}
			for _, e := range left.Kvs {
				out += " " + string(e.Key)
			}
			return out
		}
	}
	all := map[string]func(context.Context, *clientv3.Client) string{}
	for name, ops := range map[string][]*pb.RequestOp{
		"delete from a key on, put above":        {del("b", "\x00"), put("c")},
		"put, delete from a key on":              {put("c"), del("b", "\x00")},
		"delete from a key on, put below":        {del("b", "\x00"), put("a")},
		"delete everything, put":                 {del("\x00", "\x00"), put("a")},
		"delete a span, put inside":              {del("a", "c"), put("b")},
		"delete a span, put at its end":          {del("a", "c"), put("c")},
		"delete an empty span, put":              {del("c", "a"), put("b")},
		"delete twice":                           {del("a", "\x00"), del("b", "\x00")},
		"delete from a key on, nested put above": {del("b", "\x00"), {Request: &pb.RequestOp_RequestTxn{RequestTxn: &pb.TxnRequest{Success: []*pb.RequestOp{put("c")}}}}},
	} {
		all[name] = txn(&pb.TxnRequest{Success: ops})
	}
	for target := range pb.Compare_CompareTarget(7) {
		for result := range pb.Compare_CompareResult(6) {
			all[fmt.Sprintf("compare with target %d and result %d", target, result)] = txn(&pb.TxnRequest{
				Compare: []*pb.Compare{{Key: []byte("a"), Target: target, Result: result}},
				Success: []*pb.RequestOp{put("yes")}, Failure: []*pb.RequestOp{put("no")},
			})
		}
	}
	for action := range pb.AlarmRequest_AlarmAction(3) { // etcd ends with a panic on others
		if action == pb.AlarmRequest_ACTIVATE {
			continue // the requests after it would be refused
		}
		for alarm := range pb.AlarmType(5) {
			all[fmt.Sprintf("alarm %d, action %d", alarm, action)] = func(ctx context.Context, c *clientv3.Client) string {
				res, err := pb.NewMaintenanceClient(c.ActiveConnection()).Alarm(ctx, &pb.AlarmRequest{Action: action, Alarm: alarm})
				return fmt.Sprint(res.GetAlarms(), err)
			}
		}
	}
	for filter := range pb.WatchCreateRequest_FilterType(4) {
		all[fmt.Sprintf("watch with filter %d", filter)] = func(ctx context.Context, c *clientv3.Client) string {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			stream, err := pb.NewWatchClient(c.ActiveConnection()).Watch(ctx)
			if err != nil {
				return err.Error()
			}
			err = stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{
				Key: []byte("w"), Filters: []pb.WatchCreateRequest_FilterType{filter}}}})
			if err != nil {
				return err.Error()
			}
			out := ""
			for range 2 {
				res, err := stream.Recv()
				if err != nil {
					return out + err.Error()
				}
				out += fmt.Sprint(res.Created, res.Canceled, res.CancelReason)
				for _, e := range res.Events {
					out += fmt.Sprint(" ", e.Type)
				}
				if res.Created {
					for _, err := range []error{putKey(ctx, c, "w"), deleteKey(ctx, c, "w")} {
						if err != nil {
							return out + err.Error()
						}
					}
				}
			}
			return out
		}
	}
	return all
}

func putKey(ctx context.Context, c *clientv3.Client, key string) error {
	_, err := c.Put(ctx, key, "v")
	return err
}

func deleteKey(ctx context.Context, c *clientv3.Client, key string) error {
	_, err := c.Delete(ctx, key)
	return err
}
