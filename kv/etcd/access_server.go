package etcd

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/atoll-dev/atoll/kv"
)

// accessControl applies the present rules to every message of every call, before a service
// sees it. So a service that is added later is for admins only. nil permits everything.
type accessControl struct {
	ks       kv.Keyspace
	onRefuse func(commonName, method, reason string)
	current  atomic.Pointer[accessVersion]

	mu     sync.Mutex
	owners map[kv.LeaseID]string // by common names
}

// accessVersion is one state of the rules; replaced is closed when another one follows.
type accessVersion struct {
	rules    accessRules
	replaced chan struct{}
}

func newAccessControl(ks kv.Keyspace, rules accessRules, onRefuse func(commonName, method, reason string)) *accessControl {
	a := &accessControl{ks: ks, onRefuse: onRefuse, owners: map[kv.LeaseID]string{}}
	if onRefuse == nil {
		a.onRefuse = func(string, string, string) {}
	}
	a.current.Store(&accessVersion{rules, make(chan struct{})})
	return a
}

// replace puts other rules into effect, also for streams that are open.
func (a *accessControl) replace(rules accessRules) {
	close(a.current.Swap(&accessVersion{rules, make(chan struct{})}).replaced)
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.owners) // an owner may have lost the right to a key of the lease
}

// commonName returns the name in the certificate that a client proved to have.
func commonName(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return ""
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.VerifiedChains) == 0 || len(info.State.VerifiedChains[0]) == 0 {
		return ""
	}
	return info.State.VerifiedChains[0][0].Subject.CommonName
}

// check returns etcd's error if the client of a call may not do op.
func (a *accessControl) check(ctx context.Context, method string, op operation) error {
	if a == nil {
		return nil
	}
	rules, name := a.current.Load().rules, commonName(ctx)
	reason := rules.refusal(name, op)
	for _, use := range op.leases {
		if reason != "" {
			break
		}
		if use.purpose == attachToLease && a.owns(name, use.id) {
			continue
		}
		l, err := a.ks.TimeToLive(ctx, use.id, true)
		switch {
		case errors.Is(err, kv.ErrLeaseNotFound): // the call reports it
		case err != nil:
			return toStatus(err)
		default:
			reason = rules.refusal(name, op.withLeaseKeys(use, l.Keys))
		}
	}
	if reason == "" {
		return nil
	}
	a.onRefuse(name, method, reason)
	return rpctypes.ErrGRPCPermissionDenied
}

// healthMethods report only whether the server works. Load balancers have no rule.
const healthMethods = "/grpc.health.v1.Health/"

func (a *accessControl) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if !strings.HasPrefix(info.FullMethod, healthMethods) {
		if err := a.check(ctx, info.FullMethod, operationOf(req)); err != nil {
			return nil, err
		}
	}
	resp, err := next(ctx, req)
	if granted, ok := resp.(*pb.LeaseGrantResponse); ok && err == nil && a != nil {
		a.granted(commonName(ctx), granted.ID)
	}
	return resp, err
}

// maxOwners bounds the leases whose owners are remembered.
const maxOwners = 10_000

// granted remembers the client that a lease was granted to, so that its puts need not read
// the keys of the lease each time.
func (a *accessControl) granted(commonName string, id kv.LeaseID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.owners) >= maxOwners {
		clear(a.owners)
	}
	a.owners[id] = commonName
}

// owns reports whether a lease was granted to a client here. No other client can have
// attached a key that the owner has no right to.
func (a *accessControl) owns(commonName string, id kv.LeaseID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	owner, known := a.owners[id]
	return known && owner == commonName
}

func (a *accessControl) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	if a == nil || strings.HasPrefix(info.FullMethod, healthMethods) {
		return next(srv, ss)
	}
	ctx, cancel := context.WithCancelCause(ss.Context())
	defer cancel(nil)
	version := a.current.Load()
	if err := a.check(ctx, info.FullMethod, operation{}); err != nil {
		return err
	}
	go a.endWithRights(ctx, version, cancel)
	return next(srv, &checkedStream{ss, ctx, a, info.FullMethod})
}

// rightsChanged returns the error that makes clients open their watches again: those that are
// still permitted go on, and the others are refused.
func rightsChanged() error {
	return status.Error(codes.Unavailable, "etcdserver: the rights of the client have changed")
}

// endWithRights ends a stream when the rules of its client change: a watch must not outlive
// the right to it.
func (a *accessControl) endWithRights(ctx context.Context, version *accessVersion, cancel context.CancelCauseFunc) {
	name := commonName(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case <-version.replaced:
		}
		next := a.current.Load()
		if !slices.Equal(version.rules.of(name), next.rules.of(name)) {
			cancel(rightsChanged())
			return
		}
		version = next
	}
}

// checkedStream checks each message that a client sends on a stream.
type checkedStream struct {
	grpc.ServerStream
	ctx    context.Context
	access *accessControl
	method string
}

func (s *checkedStream) Context() context.Context { return s.ctx }

func (s *checkedStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	if _, ok := m.(*pb.WatchRequest); ok {
		return nil // watchStream checks it, because a refused watch must not end the others
	}
	return s.access.check(s.ctx, s.method, operationOf(m))
}
