package etcd

import (
	"bytes"
	"fmt"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3election/v3electionpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"

	"github.com/atoll-dev/atoll/kv"
)

// This file decides which requests a client may make, from the rules alone: no connection,
// no keyspace, no clock. access_server.go asks it about every request.

// accessLevel is what a rule grants.
type accessLevel string

const (
	accessRead      accessLevel = "read"
	accessReadWrite accessLevel = "readwrite"
	accessAdmin     accessLevel = "admin"
)

// accessRule grants the clients with one common name an access to the keys under a prefix.
// An admin has access to all keys and all calls.
type accessRule struct {
	commonName string
	prefix     string
	access     accessLevel
}

// accessRules are all rules of a server. No rule takes a right away: a client has what any
// of its rules grants.
type accessRules []accessRule

// of returns the rules of one client.
func (rules accessRules) of(commonName string) (own accessRules) {
	for _, r := range rules {
		if r.commonName == commonName {
			own = append(own, r)
		}
	}
	return own
}

// operation is what a request would read and write.
type operation struct {
	reads, writes []kv.Span
	// leases are those whose keys the request reveals, deletes or keeps, or to which it
	// attaches more. The keys are part of reads and writes only after withLeaseKeys.
	leases []leaseUse
	// admin: the request concerns the whole keyspace or the server.
	admin bool
}

// leaseUse is a use of one lease.
type leaseUse struct {
	id      kv.LeaseID
	purpose leasePurpose
}

type leasePurpose int

const (
	describeLease leasePurpose = iota
	changeLease
	// attachToLease needs the right to all keys of the lease, like changing it: a foreign
	// key would take the right to the lease from its owner, who could not renew it any more.
	attachToLease
)

// withLeaseKeys adds the keys that are attached to one of the operation's leases.
func (op operation) withLeaseKeys(use leaseUse, keys [][]byte) operation {
	for _, key := range keys {
		if use.purpose != describeLease {
			op.writes = append(op.writes, kv.Span{Start: key})
		} else {
			op.reads = append(op.reads, kv.Span{Start: key})
		}
	}
	return op
}

// refusal returns the reason why a client may not do op, "" if it may. The reason is for
// the operator; clients only get "permission denied".
func (rules accessRules) refusal(commonName string, op operation) string {
	if commonName == "" {
		return "the client's certificate has no common name"
	}
	own := rules.of(commonName)
	if len(own) == 0 {
		return "no rule has this common name"
	}
	for _, r := range own {
		if r.access == accessAdmin {
			return ""
		}
	}
	if op.admin {
		return "only an admin may make this call"
	}
	for _, span := range op.writes {
		if !own.grant(span, true) {
			return "no rule grants writing " + describeSpan(span)
		}
	}
	for _, span := range op.reads {
		if !own.grant(span, false) {
			return "no rule grants reading " + describeSpan(span)
		}
	}
	return ""
}

// grant reports whether one of the rules covers a whole span.
func (rules accessRules) grant(span kv.Span, write bool) bool {
	for _, r := range rules {
		if (!write || r.access == accessReadWrite) && covers(r.prefix, span) {
			return true
		}
	}
	return false
}

// covers reports whether all keys of a span begin with a prefix. The empty prefix covers
// every span.
func covers(prefix string, span kv.Span) bool {
	if prefix == "" {
		return true
	}
	all := kv.Prefix([]byte(prefix))
	switch {
	case !bytes.HasPrefix(span.Start, all.Start):
		return false
	case span.Single() || all.ToEnd():
		return true
	default:
		return !span.ToEnd() && bytes.Compare(span.End, all.End) <= 0
	}
}

func describeSpan(s kv.Span) string {
	if s.Single() {
		return fmt.Sprintf("the key %q", shown(s.Start))
	}
	return fmt.Sprintf("the keys from %q to %q", shown(s.Start), shown(s.End))
}

// shown returns the part of a key that is logged: a client chooses it.
func shown(key []byte) []byte { return key[:min(len(key), 100)] }

// operationOf returns what a request reads and writes. A request that it does not know is
// for admins.
func operationOf(req any) operation {
	switch r := req.(type) {
	case *pb.StatusRequest, *pb.MemberListRequest, *pb.AuthStatusRequest, *pb.AuthenticateRequest, *pb.LeaseGrantRequest:
		return operation{}
	case *pb.RangeRequest:
		return reading(r.Key, r.RangeEnd)
	case *pb.PutRequest:
		var op operation
		op.addPut(r)
		return op
	case *pb.DeleteRangeRequest:
		return operation{writes: []kv.Span{{Start: r.Key, End: r.RangeEnd}}}
	case *pb.TxnRequest:
		var op operation
		op.addTxn(r)
		return op
	case *pb.LeaseTimeToLiveRequest:
		if r.Keys {
			return operation{leases: []leaseUse{{r.ID, describeLease}}}
		}
		return operation{}
	case *pb.LeaseRevokeRequest:
		return operation{leases: []leaseUse{{r.ID, changeLease}}}
	case *pb.LeaseKeepAliveRequest:
		return operation{leases: []leaseUse{{r.ID, changeLease}}}
	case *pb.AlarmRequest:
		return operation{admin: r.Action != pb.AlarmRequest_GET} // Status shows alarms, too
	}
	return lockOperationOf(req)
}

func reading(key, end []byte) operation {
	return operation{reads: []kv.Span{{Start: key, End: end}}}
}

func (op *operation) addPut(r *pb.PutRequest) {
	op.writes = append(op.writes, kv.Span{Start: r.Key})
	if use := (leaseUse{r.Lease, attachToLease}); r.Lease != 0 && !slices.Contains(op.leases, use) {
		op.leases = append(op.leases, use)
	}
}

// addTxn adds both branches of a transaction: which of them runs reveals its compares, and
// may change until it runs.
func (op *operation) addTxn(r *pb.TxnRequest) {
	for _, c := range r.GetCompare() {
		op.reads = append(op.reads, kv.Span{Start: c.GetKey(), End: c.GetRangeEnd()})
	}
	for _, branch := range [2][]*pb.RequestOp{r.GetSuccess(), r.GetFailure()} {
		for _, o := range branch {
			switch {
			case o.GetRequestTxn() != nil:
				op.addTxn(o.GetRequestTxn())
			case o.GetRequestRange() != nil:
				op.reads = append(op.reads, kv.Span{Start: o.GetRequestRange().Key, End: o.GetRequestRange().RangeEnd})
			case o.GetRequestPut() != nil:
				op.addPut(o.GetRequestPut())
			case o.GetRequestDeleteRange() != nil:
				op.writes = append(op.writes, kv.Span{Start: o.GetRequestDeleteRange().Key, End: o.GetRequestDeleteRange().RangeEnd})
			default:
				op.admin = true // an operation that this version does not know
			}
		}
	}
}

// lockOperationOf is operationOf for locks and elections. They keep keys under their name
// and a slash, and keep a lease alive while they work.
func lockOperationOf(req any) operation {
	under := func(name []byte) kv.Span { return kv.Prefix(append(bytes.Clone(name), '/')) }
	contend := func(name []byte, lease int64) operation {
		op := operation{writes: []kv.Span{under(name)}, reads: []kv.Span{under(name)}}
		if lease != 0 {
			op.leases = []leaseUse{{lease, changeLease}}
		}
		return op
	}
	lead := func(l *v3electionpb.LeaderKey) operation {
		op := contend(l.GetName(), l.GetLease())
		op.writes = append(op.writes, kv.Span{Start: l.GetKey()})
		return op
	}
	switch r := req.(type) {
	case *v3lockpb.LockRequest:
		return contend(r.Name, r.Lease)
	case *v3lockpb.UnlockRequest:
		return operation{writes: []kv.Span{{Start: r.Key}}}
	case *v3electionpb.CampaignRequest:
		return contend(r.Name, r.Lease)
	case *v3electionpb.ProclaimRequest:
		return lead(r.Leader)
	case *v3electionpb.ResignRequest:
		return lead(r.Leader)
	case *v3electionpb.LeaderRequest:
		return operation{reads: []kv.Span{under(r.Name)}}
	}
	return operation{admin: true}
}
