package etcd

import (
	"context"
	"errors"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/atoll-dev/atoll/kv"
)

// kinds maps each kind of keyspace error to etcd's status for it. Clients compare messages,
// not only codes, so these must be etcd's own.
//
// The adapter uses the map to answer, and Remote uses it in the reverse direction.
func kinds() [][2]error {
	return [][2]error{
		{kv.ErrCompacted, rpctypes.ErrGRPCCompacted},
		{kv.ErrFutureRevision, rpctypes.ErrGRPCFutureRev},
		{kv.ErrEmptyKey, rpctypes.ErrGRPCEmptyKey},
		{kv.ErrDuplicateKey, rpctypes.ErrGRPCDuplicateKey},
		{kv.ErrKeyNotFound, rpctypes.ErrGRPCKeyNotFound},
		{kv.ErrTooManyOps, rpctypes.ErrGRPCTooManyOps},
		{kv.ErrRequestTooLarge, rpctypes.ErrGRPCRequestTooLarge},
		{kv.ErrLeaseNotFound, rpctypes.ErrGRPCLeaseNotFound},
		{kv.ErrLeaseExists, rpctypes.ErrGRPCLeaseExist},
		{kv.ErrLeaseTTLTooLarge, rpctypes.ErrGRPCLeaseTTLTooLarge},
		{kv.ErrOverloaded, rpctypes.ErrGRPCRequestTooManyRequests},
		// etcd also returns "timed out" when it does not know whether a proposal was
		// committed. Clients do not automatically repeat writes after it.
		{kv.ErrUnknownOutcome, rpctypes.ErrGRPCTimeout},
		{kv.ErrNoSpace, rpctypes.ErrGRPCNoSpace},
		{kv.ErrClosed, rpctypes.ErrGRPCStopped},
	}
}

// toStatus translates an error of a keyspace to etcd's status.
func toStatus(err error) error {
	if err == nil {
		return nil
	}
	// An unknown outcome often wraps the context's error. It takes precedence, because
	// "canceled" would mean that nothing happened. Nor is the error of a database that does
	// not answer in time the caller's own: clients would take "deadline exceeded" for a
	// limit of theirs, and repeat writes without telling why.
	if !errors.Is(err, kv.ErrUnknownOutcome) && !errors.Is(err, kv.ErrUnavailable) {
		switch {
		case errors.Is(err, context.Canceled):
			return status.FromContextError(context.Canceled).Err()
		case errors.Is(err, context.DeadlineExceeded):
			return status.FromContextError(context.DeadlineExceeded).Err()
		}
	}
	for _, k := range kinds() {
		if errors.Is(err, k[0]) {
			return k[1]
		}
	}
	switch {
	case errors.Is(err, kv.ErrLimitExceeded):
		return limitError{err}
	case errors.Is(err, kv.ErrTooManyLeases), errors.Is(err, kv.ErrAnswerTooLarge):
		return status.Error(codes.ResourceExhausted, "etcdserver: too many requests: "+err.Error())
	case errors.Is(err, kv.ErrInvalidRequest):
		return status.Error(codes.InvalidArgument, "etcdserver: "+err.Error())
	case errors.Is(err, kv.ErrDropped):
		// Clients must not retry, as they do if it is unavailable: no endpoint has it.
		return status.Error(codes.NotFound, "etcdserver: "+err.Error())
	case errors.Is(err, kv.ErrUnavailable), errors.Is(err, kv.ErrBehind):
		// Clients with several endpoints switch to another one.
		return status.Error(codes.Unavailable, "etcdserver: "+err.Error())
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.Error(codes.Unknown, err.Error())
}

// limitError has a status for clients, and for those in this process the limit. etcd knows no such error. The code is the one of a
// quota, which clients do not retry.
type limitError struct{ error }

func (e limitError) Unwrap() error { return e.error }

// GRPCStatus is called by grpc.
func (e limitError) GRPCStatus() *status.Status {
	return status.New(codes.ResourceExhausted, "etcdserver: "+e.Error())
}

// toClient translates an error of a keyspace to the error that clientv3 would have
// returned, so that callers can compare it with rpctypes.Err….
func toClient(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	return clientv3.ContextError(ctx, toStatus(err))
}
