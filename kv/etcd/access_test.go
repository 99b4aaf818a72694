package etcd

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3election/v3electionpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"

	"github.com/atoll-dev/atoll/kv"
)

const testAccess = `
users:
- {commonName: east, prefix: /east/, access: readwrite}
- {commonName: east, prefix: /shared/, access: read}
- {commonName: reader, prefix: "", access: read}
- {commonName: admin, access: admin}
`

// TestAccess decides about requests of every kind.
func TestAccess(t *testing.T) {
	rules, err := parseAccess([]byte(testAccess))
	if err != nil {
		t.Fatal(err)
	}
	ranging := func(key, end string) *pb.RangeRequest {
		return &pb.RangeRequest{Key: []byte(key), RangeEnd: []byte(end)}
	}
	deleting := func(key, end string) *pb.DeleteRangeRequest {
		return &pb.DeleteRangeRequest{Key: []byte(key), RangeEnd: []byte(end)}
	}
	put := func(key string) *pb.PutRequest { return &pb.PutRequest{Key: []byte(key)} }
	comparing := func(key, end string) *pb.TxnRequest {
		return &pb.TxnRequest{Compare: []*pb.Compare{{Key: []byte(key), RangeEnd: []byte(end)}}}
	}
	opPut := func(key string) *pb.RequestOp {
		return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: put(key)}}
	}
	nested := func(op *pb.RequestOp) *pb.RequestOp {
		return &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: &pb.TxnRequest{Failure: []*pb.RequestOp{op}}}}
	}
	leader := func(name, key string) *v3electionpb.LeaderKey {
		return &v3electionpb.LeaderKey{Name: []byte(name), Key: []byte(key)}
	}
	const noKey, all, admins = "no rule grants", "", "only an admin"
	for i, tc := range []struct {
		client string
		req    any
		want   string // a part of the reason; "" if it is allowed
	}{
		{"east", ranging("/east/a", ""), all},
		{"east", ranging("/east/", "/east0"), all},
		{"east", ranging("/east/a", "/east/b"), all},
		{"east", ranging("/shared/", "/shared0"), all},
		{"east", ranging("/east/", "/shared0"), noKey}, // two prefixes and the keys between
		{"east", ranging("/east/", "/east1"), noKey},
		{"east", ranging("/east.", "/east0"), noKey},
		{"east", ranging("/east/", "\x00"), noKey},
		{"east", ranging("\x00", "\x00"), noKey},
		{"east", ranging("", ""), noKey},
		{"east", ranging("", "/east0"), noKey},
		{"east", ranging("/east", ""), noKey},
		{"east", ranging("/west/a", ""), noKey},
		{"east", ranging("/west/a", "/east0"), noKey}, // the end before the start
		{"east", put("/east/a"), all},
		{"east", put("/west/a"), `no rule grants writing the key "/west/a"`},
		{"east", put("/shared/a"), noKey},
		{"east", deleting("/east/", "/east0"), all},
		{"east", deleting("/shared/a", ""), noKey},
		{"east", deleting("/east/", "\x00"), noKey},
		{"east", comparing("/east/a", ""), all},
		{"east", comparing("/west/a", ""), `no rule grants reading the key "/west/a"`},
		{"east", comparing("/east/", "\x00"), noKey},
		{"east", &pb.TxnRequest{Success: []*pb.RequestOp{opPut("/east/a")}, Failure: []*pb.RequestOp{nested(opPut("/east/b"))}}, all},
		{"east", &pb.TxnRequest{Failure: []*pb.RequestOp{opPut("/west/a")}}, noKey},
		{"east", &pb.TxnRequest{Success: []*pb.RequestOp{nested(nested(opPut("/west/a")))}}, noKey},
		{"east", &pb.TxnRequest{Success: []*pb.RequestOp{{}}}, admins},
		{"east", &pb.TxnRequest{Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestPut{}}}}, admins},
		{"east", &pb.StatusRequest{}, all},
		{"east", &pb.LeaseGrantRequest{}, all},
		{"east", &pb.LeaseLeasesRequest{}, admins},
		{"east", &pb.CompactionRequest{}, admins},
		{"east", &pb.AlarmRequest{}, all},
		{"east", &pb.AlarmRequest{Action: pb.AlarmRequest_DEACTIVATE}, admins},
		{"east", &pb.AlarmRequest{Action: 7}, admins},
		{"east", &pb.DefragmentRequest{}, admins},
		{"east", &pb.HashKVRequest{}, admins},
		{"east", &pb.SnapshotRequest{}, admins},
		{"east", &pb.MemberAddRequest{}, admins},
		{"east", &pb.AuthUserListRequest{}, admins},
		{"east", "a request of a later version", admins},
		{"east", &v3lockpb.LockRequest{Name: []byte("/east/lock")}, all},
		{"east", &v3lockpb.LockRequest{Name: []byte("/east")}, all}, // its keys begin with "/east/"
		{"east", &v3lockpb.LockRequest{Name: []byte("/shared/lock")}, noKey},
		{"east", &v3lockpb.LockRequest{}, noKey},
		{"east", &v3lockpb.UnlockRequest{Key: []byte("/west/lock/1")}, noKey},
		{"east", &v3electionpb.LeaderRequest{Name: []byte("/shared/election")}, all},
		{"east", &v3electionpb.LeaderRequest{Name: []byte("/west/election")}, noKey},
		{"east", &v3electionpb.CampaignRequest{Name: []byte("/shared/election")}, noKey},
		{"east", &v3electionpb.ProclaimRequest{Leader: leader("/east/e", "/east/e/1")}, all},
		{"east", &v3electionpb.ProclaimRequest{Leader: leader("/east/e", "/west/e/1")}, noKey},
		{"east", &v3electionpb.ResignRequest{Leader: leader("/east/e", "/west/e/1")}, noKey},
		{"east", &v3electionpb.ResignRequest{}, noKey},
		{"reader", ranging("\x00", "\x00"), all},
		{"reader", put("a"), noKey},
		{"reader", &pb.CompactionRequest{}, admins},
		{"admin", deleting("\x00", "\x00"), all},
		{"admin", &pb.CompactionRequest{}, all},
		{"admin", "a request of a later version", all},
		{"stranger", &pb.StatusRequest{}, "no rule has this common name"},
		{"", &pb.StatusRequest{}, "no common name"},
	} {
		got := rules.refusal(tc.client, operationOf(tc.req))
		if (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
			t.Errorf("%d: %s, %T %v: %q, want %q", i, tc.client, tc.req, tc.req, got, tc.want)
		}
	}
}

// TestAccessToLeases decides by the keys that are attached to a lease.
func TestAccessToLeases(t *testing.T) {
	rules, err := parseAccess([]byte(testAccess))
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		req     any
		keys    string
		allowed bool
	}{
		{&pb.LeaseRevokeRequest{ID: 1}, "", true},
		{&pb.LeaseRevokeRequest{ID: 1}, "/east/a /east/b", true},
		{&pb.LeaseRevokeRequest{ID: 1}, "/east/a /shared/b", false},
		{&pb.LeaseKeepAliveRequest{ID: 1}, "/west/a", false},
		{&pb.LeaseTimeToLiveRequest{ID: 1, Keys: true}, "/east/a /shared/b", true},
		{&pb.LeaseTimeToLiveRequest{ID: 1, Keys: true}, "/west/a", false},
		{&pb.PutRequest{Key: []byte("/east/a"), Lease: 1}, "/east/b", true},
		{&pb.PutRequest{Key: []byte("/east/a"), Lease: 1}, "/shared/a", false},
		{txnOf(&pb.PutRequest{Key: []byte("/east/a"), Lease: 1}, &pb.PutRequest{Key: []byte("/east/b"), Lease: 1}), "/west/a", false},
		{&v3lockpb.LockRequest{Name: []byte("/east/l"), Lease: 1}, "/west/a", false},
		{&v3electionpb.CampaignRequest{Name: []byte("/east/l"), Lease: 1}, "/east/a", true},
	} {
		op := operationOf(tc.req)
		if len(op.leases) != 1 || op.leases[0].id != 1 {
			t.Fatalf("%T: its lease is not checked", tc.req)
		}
		var keys [][]byte
		for _, key := range strings.Fields(tc.keys) {
			keys = append(keys, []byte(key))
		}
		if reason := rules.refusal("east", op.withLeaseKeys(op.leases[0], keys)); (reason == "") != tc.allowed {
			t.Errorf("%T with keys %q: %q", tc.req, tc.keys, reason)
		}
	}
}

func txnOf(puts ...*pb.PutRequest) *pb.TxnRequest {
	r := &pb.TxnRequest{}
	for _, put := range puts {
		r.Success = append(r.Success, &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: put}})
	}
	return r
}

// TestCovers compares covers with its definition, on all keys of up to 3 bytes of a small
// alphabet.
func TestCovers(t *testing.T) {
	letters := []byte{0, 'a', 'b', 0xfe, 0xff}
	keys := []string{""}
	for from := 0; len(keys) < 156; from++ {
		for _, l := range letters {
			keys = append(keys, keys[from]+string(l))
		}
	}
	keys = keys[:156]
	random := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		prefix := keys[random.IntN(31)] // up to 2 bytes
		span := kv.Span{Start: []byte(keys[1+random.IntN(155)])}
		if random.IntN(2) == 0 {
			span.End = []byte(keys[1+random.IntN(155)])
		}
		outside := ""
		for _, key := range keys[1:] {
			if span.Contains([]byte(key)) && !strings.HasPrefix(key, prefix) {
				outside = key
			}
		}
		if covers(prefix, span) && outside != "" {
			t.Fatalf("%q covers %q, which contains %q", prefix, span, outside)
		}
	}
	for prefix, span := range map[string]kv.Span{"a": kv.Prefix([]byte("a")), "\xff": kv.Prefix([]byte("\xff")), "": kv.Prefix(nil)} {
		if !covers(prefix, span) {
			t.Errorf("%q does not cover all keys that begin with it", prefix)
		}
	}
}

// TestAccessFiles parses files with mistakes. The messages name the line and the field.
func TestAccessFiles(t *testing.T) {
	for content, want := range map[string]string{
		"":                                       "it is empty",
		"# nothing\n":                            "it is empty",
		"users: []":                              "at least one user",
		"users:\n":                               "at least one user",
		"[]":                                     "line 1: fields are expected",
		"clients: []":                            `line 1: unknown field "clients"`,
		"users: [a]":                             "users[0]: line 1: fields are expected",
		"users:\n- {commonName: a}":              `users[0]: line 2: access is "": use read, readwrite or admin`,
		"users:\n- access: admin\n":              "users[0]: line 2: commonName is missing",
		"users:\n- commonName: a\n  access: all": `access is "all"`,
		"users:\n- {commonName: a, access: admin}\n- {commonName: b, access: read}":                           "users[1]: line 3: prefix is missing",
		"users:\n- {commonName: a, access: admin, prefix: /a/}":                                               "users[0]: line 2: prefix is set",
		"users:\n- commonName: a\n  access: read\n  prefix: 7":                                                "users[0]: line 4: prefix has to be a text",
		"users:\n- commonName: a\n  access: read\n  prefix: [a]":                                              "users[0]: line 4: prefix has to be a text",
		"users:\n- commonName: a\n  access: read\n  prefx: /a/":                                               `users[0]: line 4: unknown field "prefx"`,
		"users:\n- {commonName: a, access: read, access: admin}":                                              "access is set twice",
		"users:\n- {commonName: a, access: read, prefix: x}\n- {commonName: a, access: readwrite, prefix: x}": `users[1]: line 3: another rule has the same commonName "a" and prefix "x"`,
		"users: [{commonName: a, access: admin}]\n---\nusers: []":                                             "more than one document",
		"users: [": "line 1",
	} {
		rules, err := parseAccess([]byte(content))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v, want an error with %q", content, rules, err, want)
		}
	}
	rules, err := parseAccess([]byte(testAccess))
	if err != nil || fmt.Sprint(rules.of("east")) != "[{east /east/ readwrite} {east /shared/ read}]" {
		t.Errorf("%v, %v", rules, err)
	}
}
