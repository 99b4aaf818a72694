package etcd

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// These functions make the checks that etcd makes before it reads any data, in etcd's
// order, so that a request with several faults gets the same error. The keyspace checks for
// duplicate keys.

func checkRange(r *pb.RangeRequest) error {
	if len(r.Key) == 0 {
		return rpctypes.ErrGRPCEmptyKey
	}
	if _, ok := pb.RangeRequest_SortOrder_name[int32(r.SortOrder)]; !ok {
		return rpctypes.ErrGRPCInvalidSortOption
	}
	if _, ok := pb.RangeRequest_SortTarget_name[int32(r.SortTarget)]; !ok {
		return rpctypes.ErrGRPCInvalidSortOption
	}
	return nil
}

func checkPut(r *pb.PutRequest) error {
	switch {
	case len(r.Key) == 0:
		return rpctypes.ErrGRPCEmptyKey
	case r.IgnoreValue && len(r.Value) != 0:
		return rpctypes.ErrGRPCValueProvided
	case r.IgnoreLease && r.Lease != 0:
		return rpctypes.ErrGRPCLeaseProvided
	}
	return nil
}

func checkDelete(r *pb.DeleteRangeRequest) error {
	if len(r.Key) == 0 {
		return rpctypes.ErrGRPCEmptyKey
	}
	return nil
}

// checkTxn takes the number of operations still allowed: an outer transaction and its
// nested ones share it.
func checkTxn(r *pb.TxnRequest, allowed int) error {
	ops := max(len(r.Compare), len(r.Success), len(r.Failure))
	if ops > allowed {
		return rpctypes.ErrGRPCTooManyOps
	}
	for _, c := range r.Compare {
		if len(c.Key) == 0 {
			return rpctypes.ErrGRPCEmptyKey
		}
	}
	for _, branch := range [2][]*pb.RequestOp{r.Success, r.Failure} {
		for _, op := range branch {
			if err := checkOp(op, allowed-ops); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkOp(op *pb.RequestOp, allowed int) error {
	if op != nil {
		switch o := op.Request.(type) {
		case *pb.RequestOp_RequestRange:
			if o.RequestRange != nil {
				return checkRange(o.RequestRange)
			}
		case *pb.RequestOp_RequestPut:
			if o.RequestPut != nil {
				return checkPut(o.RequestPut)
			}
		case *pb.RequestOp_RequestDeleteRange:
			if o.RequestDeleteRange != nil {
				return checkDelete(o.RequestDeleteRange)
			}
		case *pb.RequestOp_RequestTxn:
			if o.RequestTxn != nil {
				return checkTxn(o.RequestTxn, allowed)
			}
		}
	}
	// An empty operation: etcd returns the error for a missing key.
	return rpctypes.ErrGRPCKeyNotFound
}

// writes reports whether a transaction could change anything, on either branch.
func writes(r *pb.TxnRequest) bool {
	for _, branch := range [2][]*pb.RequestOp{r.Success, r.Failure} {
		for _, op := range branch {
			if _, read := op.Request.(*pb.RequestOp_RequestRange); !read {
				return true
			}
		}
	}
	return false
}
