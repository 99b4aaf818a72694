package etcd

import (
	"context"
	"encoding/binary"
	"hash"
	"hash/crc32"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/atoll-dev/atoll/kv"
)

// hashPage is the number of keys that HashKV reads at a time.
const hashPage = 1000

// HashKV hashes the keys at a revision, so that two servers, or a copy and its original,
// can be compared. The number differs from etcd's, which hashes its own records, including
// history.
func (f *adapter) HashKV(ctx context.Context, r *pb.HashKVRequest) (*pb.HashKVResponse, error) {
	sum := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	req := kv.RangeRequest{Span: kv.Span{Start: []byte{0}, End: []byte{0}}, Revision: r.Revision, Limit: hashPage}
	var head kv.Revision
	for {
		res, err := f.page(ctx, req)
		if err != nil {
			return nil, toStatus(err)
		}
		if head == 0 {
			head = res.Revision
		}
		if req.Revision <= 0 {
			req.Revision = head
		}
		for i := range res.KVs {
			hashKV(sum, &res.KVs[i])
		}
		if !res.More || len(res.KVs) == 0 {
			break
		}
		last := res.KVs[len(res.KVs)-1].Key
		req.Start = append(append(make([]byte, 0, len(last)+1), last...), 0)
	}
	st, err := f.ks.Status(ctx)
	if err != nil {
		return nil, toStatus(err)
	}
	return &pb.HashKVResponse{
		Header: f.header(head), Hash: sum.Sum32(), CompactRevision: st.Compacted, HashRevision: req.Revision,
	}, nil
}

func hashKV(sum hash.Hash32, kv *kv.KeyValue) {
	var fixed [48]byte
	for i, n := range [6]int64{
		int64(len(kv.Key)), int64(len(kv.Value)), kv.CreateRevision, kv.ModRevision, kv.Version, kv.Lease,
	} {
		binary.BigEndian.PutUint64(fixed[8*i:], uint64(n))
	}
	sum.Write(fixed[:])
	sum.Write(kv.Key)
	sum.Write(kv.Value)
}
