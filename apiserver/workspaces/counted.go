package workspaces

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// putCounted puts an object at its expected revision, in one transaction with the changes of the entries that count it. The changes were
// computed from what guard compares; retry is true if that has changed, and nothing was written.
//
// In a keyspace that was split between the object and the entries, no transaction has both. The entries are then written first: if the
// object is not written after that, too much counts, and never too little.
func putCounted(ctx context.Context, plain kubernetes.Interface, keyspace clientv3.KV, guard clientv3.Cmp, changes []clientv3.Op,
	key string, value []byte, expected int64, opts kubernetes.PutOptions) (out kubernetes.PutResponse, retry bool, err error) {
	put := clientv3.OpPut(key, string(value))
	all := append(changes[:len(changes):len(changes)], put)
	done, err := keyspace.Txn(ctx).If(revisionIs(key, expected), guard).Then(all...).Else(clientv3.OpGet(key)).Commit()
	if status.Code(err) == codes.InvalidArgument {
		first, err := keyspace.Txn(ctx).If(guard).Then(changes...).Commit()
		if err != nil || !first.Succeeded {
			return out, err == nil, err
		}
		out, err = plain.OptimisticPut(ctx, key, value, expected, opts)
		return out, false, err
	}
	if err != nil {
		return out, false, err
	}
	out = kubernetes.PutResponse{Succeeded: done.Succeeded, Revision: done.Header.Revision}
	if done.Succeeded {
		return out, false, nil
	}
	revision := int64(0)
	if found := done.Responses[0].GetResponseRange().GetKvs(); len(found) > 0 {
		if revision = found[0].ModRevision; opts.GetOnFailure {
			out.KV = found[0]
		}
	}
	return out, revision == expected, nil
}
