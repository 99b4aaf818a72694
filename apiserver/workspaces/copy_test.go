package workspaces

import (
	"context"
	"encoding/base64"
	"errors"
	"net/url"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/atoll-dev/atoll/apiserver/overlay"
	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/kv/transfer"
)

// keyspace opens a new keyspace for a workspace that is to become a copy.
func (s *stage) keyspace(path string, revision kv.Revision) (*mvcc.Keyspace, kv.Table) {
	s.t.Helper()
	table, err := s.db.Open(s.t.Context(), "workspace-"+path)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := transfer.Raise(s.t.Context(), table, revision); err != nil {
		s.t.Fatal(err)
	}
	keyspace, err := mvcc.Open(s.t.Context(), table, s.db, mvcc.Options{})
	if err != nil {
		s.t.Fatal(err)
	}
	return keyspace, table
}

// copyTo makes a new workspace a copy of an open one, and opens it.
func (s *stage) copyTo(from, path string) {
	s.t.Helper()
	keyspace, _ := s.keyspace(path, 1_000_000)
	if err := s.server.Copy(s.t.Context(), s.copyTarget(from, keyspace, path)); err != nil {
		s.t.Fatal(err)
	}
	if err := keyspace.Close(); err != nil {
		s.t.Fatal(err)
	}
	s.open(path)
}

func (s *stage) copyTarget(from string, keyspace kv.Keyspace, path string) CopyTarget {
	return CopyTarget{Keyspace: keyspace, UID: "uid-" + path, Owner: "owner-of-" + path, BeforeEnd: func(context.Context) error { return nil },
		Fill: func(ctx context.Context, into kv.Keyspace, span kv.Span, change CopyChange) error {
			_, err := transfer.Copy(ctx, s.keyspaces[from], into, transfer.Options{Span: span, Existing: transfer.Mirror, Change: change})
			return err
		}}
}

const secretsPath = "/api/v1/namespaces/default/secrets"

// TestCopy: a copy has the objects of its source with their UIDs, also those that every workspace begins with, and an owner of its own.
// Custom resources are served at once. Neither workspace changes the other one.
func TestCopy(t *testing.T) {
	s := newStage(t, "a")
	s.want(201, s.as(admin, "POST", "/clusters/a"+definitionsPath, definition("colour")))
	s.eventually("widgets are served", func() bool { return s.as(admin, "POST", "/clusters/a"+widgetsPath, widget("w", "red")).code == 201 })
	s.want(201, s.as(admin, "POST", "/clusters/a"+configMaps, `{"metadata":{"name":"owner"}}`))
	s.want(201, s.as(admin, "POST", "/clusters/a"+secretsPath, `{"metadata":{"name":"opaque"},"data":{"key":"c2VjcmV0"}}`))
	s.want(200, s.as(admin, "DELETE", "/clusters/a/apis/rbac.authorization.k8s.io/v1/clusterroles/view", ""))
	s.want(200, s.as(admin, "PATCH", "/clusters/a/api/v1/namespaces/default?fieldManager=test", `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"default","labels":{"of":"a"}}}`))

	s.copyTo("a", "b")
	for _, path := range []string{"/api/v1/namespaces/default", "/api/v1/namespaces/kube-system", configMaps + "/owner", secretsPath + "/opaque", widgetsPath + "/w", "/apis/rbac.authorization.k8s.io/v1/clusterroles/edit"} {
		original, copied := s.want(200, s.as(admin, "GET", "/clusters/a"+path, "")), s.want(200, s.as(admin, "GET", "/clusters/b"+path, ""))
		if original.field(t, "metadata", "uid") != copied.field(t, "metadata", "uid") || original.field(t, "metadata", "creationTimestamp") != copied.field(t, "metadata", "creationTimestamp") {
			t.Errorf("%s: %s\n%s", path, original.body, copied.body)
		}
	}
	s.want(404, s.as(admin, "GET", "/clusters/b/apis/rbac.authorization.k8s.io/v1/clusterroles/view", ""))
	if body := s.want(200, s.as(admin, "GET", "/clusters/b"+secretsPath+"/opaque", "")).body; !strings.Contains(body, "c2VjcmV0") {
		t.Error(body)
	}
	for path, owner := range map[string]string{"a": "owner-of-a", "b": "owner-of-b"} {
		for _, who := range []string{"owner-of-a", "owner-of-b"} {
			want := map[bool]int{true: 200, false: 403}[who == owner]
			s.want(want, s.as(&user.DefaultInfo{Name: who, Groups: []string{user.AllAuthenticated}}, "GET", "/clusters/"+path+configMaps, ""))
		}
	}
	s.want(200, s.as(admin, "DELETE", "/clusters/b"+configMaps+"/owner", ""))
	s.want(200, s.as(admin, "GET", "/clusters/a"+configMaps+"/owner", ""))
	used, err := s.keyspaces["b"].Usage(t.Context())
	all, errAll := s.keyspaces["b"].Range(t.Context(), kv.RangeRequest{Span: kv.Prefix(nil)})
	if err = errors.Join(err, errAll); err != nil || used.Keys != all.Count {
		t.Errorf("usage %+v of %d keys, %v", used, all.Count, err)
	}
}

// TestCopiedTokens: no token of a workspace is valid in its copy, nor the other way around, although the accounts have the same UIDs. The
// copy has no token of the original: tokens in its Secrets are its own.
func TestCopiedTokens(t *testing.T) {
	s := newStage(t, "a")
	s.want(201, s.as(admin, "POST", "/clusters/a/api/v1/namespaces/default/serviceaccounts", `{"metadata":{"name":"robot"}}`))
	s.want(201, s.as(admin, "POST", "/clusters/a/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings",
		`{"metadata":{"name":"robot"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"view"},
		"subjects":[{"kind":"ServiceAccount","namespace":"default","name":"robot"}]}`))
	s.want(201, s.as(admin, "POST", "/clusters/a"+secretsPath, `{"metadata":{"name":"token","annotations":{"kubernetes.io/service-account.name":"robot"}},"type":"kubernetes.io/service-account-token"}`))
	s.copyTo("a", "b")

	requested := func(path string) string {
		return s.want(201, s.as(admin, "POST", "/clusters/"+path+"/api/v1/namespaces/default/serviceaccounts/robot/token", `{"spec":{}}`)).field(t, "status", "token").(string)
	}
	stored := func(path string) string {
		encoded := s.want(200, s.as(admin, "GET", "/clusters/"+path+secretsPath+"/token", "")).field(t, "data", "token").(string)
		token, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil {
			t.Fatal(err)
		}
		return string(token)
	}
	for of, token := range map[string]string{"a requested": requested("a"), "b requested": requested("b"), "a stored": stored("a"), "b stored": stored("b")} {
		for _, in := range []string{"a", "b"} {
			want := map[bool]int{true: 200, false: 401}[strings.HasPrefix(of, in)]
			if got := s.withToken(token, "GET", "/clusters/"+in+configMaps); got.code != want {
				t.Errorf("the token %s, used in %s: %d, want %d", of, in, got.code, want)
			}
		}
	}
}

// TestForeignPositionOfCopy: a continue token or resource version of the original is refused in the copy, because it could be mistaken for
// one of its own, and the other way around. An object that was read from one is not written to the other one.
func TestForeignPositionOfCopy(t *testing.T) {
	s := newStage(t, "a")
	for _, name := range []string{"m-1", "m-2", "m-3"} {
		s.want(201, s.as(admin, "POST", "/clusters/a"+configMaps, `{"metadata":{"name":"`+name+`"}}`))
	}
	before := s.want(200, s.as(admin, "GET", "/clusters/a"+configMaps+"?limit=2", ""))
	s.copyTo("a", "b")
	after := s.want(200, s.as(admin, "GET", "/clusters/b"+configMaps+"?limit=2", ""))
	for in, of := range map[string]response{"b": before, "a": after} {
		version := of.field(t, "metadata", "resourceVersion").(string)
		for _, query := range []string{"?limit=2&continue=" + url.QueryEscape(of.field(t, "metadata", "continue").(string)), "?resourceVersion=" + version + "&resourceVersionMatch=Exact"} {
			if out := s.as(admin, "GET", "/clusters/"+in+configMaps+query, ""); out.code == 200 || in == "b" && out.code != 410 {
				t.Errorf("in %s: %s: %d %s", in, query, out.code, out.body)
			}
		}
	}
	for _, way := range [][2]string{{"a", "b"}, {"b", "a"}} {
		foreign := s.want(200, s.as(admin, "GET", "/clusters/"+way[0]+configMaps+"/m-1", ""))
		s.want(409, s.as(admin, "PUT", "/clusters/"+way[1]+configMaps+"/m-1", foreign.body))
	}
}

// TestCopyAttempts: an attempt that fails leaves an incomplete workspace. The next one completes it, also if the source has changed. From
// the moment that another attempt begins, the former one writes nothing.
func TestCopyAttempts(t *testing.T) {
	s := newStage(t, "a")
	for _, name := range []string{"stays", "goes"} {
		s.want(201, s.as(admin, "POST", "/clusters/a"+configMaps, `{"metadata":{"name":"`+name+`"}}`))
	}
	keyspace, table := s.keyspace("b", 1_000_000)
	state := func(want CopyState) {
		t.Helper()
		if got, err := StateOfCopy(t.Context(), table); err != nil || got != want {
			t.Errorf("state %d, %v, want %d", got, err, want)
		}
	}
	state(NotBegun)
	target := s.copyTarget("a", keyspace, "b")
	failed := errors.New("the mark cannot be written")
	target.BeforeEnd = func(context.Context) error { return failed }
	if err := s.server.Copy(t.Context(), target); !errors.Is(err, failed) {
		t.Errorf("the first attempt: %v", err)
	}
	state(Incomplete)
	s.want(200, s.as(admin, "DELETE", "/clusters/a"+configMaps+"/goes", ""))
	limit := int64(3)
	target.BeforeEnd = func(ctx context.Context) error { // another server begins
		keyspace.SetLimits(kv.Limits{Keys: &limit}) // they do not apply to the attempt itself
		_, err := beginAttempt(ctx, keyspace, "another")
		return err
	}
	if err := s.server.Copy(t.Context(), target); !errors.Is(err, errReplaced) {
		t.Errorf("the second attempt: %v", err)
	}
	state(Incomplete)
	for _, name := range []string{"beyond", "beyond-2"} {
		s.want(201, s.as(admin, "POST", "/clusters/a"+configMaps, `{"metadata":{"name":"`+name+`"}}`))
	}
	target = s.copyTarget("a", keyspace, "b")
	if err := s.server.Copy(t.Context(), target); !errors.Is(err, kv.ErrLimitExceeded) {
		t.Errorf("beyond the limit: %v", err)
	}
	keyspace.SetLimits(kv.Limits{})
	for range 2 { // the second one finds that it is complete
		if err := s.server.Copy(t.Context(), target); err != nil {
			t.Fatal(err)
		}
		state(Complete)
	}
	if _, err := (attemptKeyspace{keyspace, "another"}).Txn(t.Context(), kv.TxnRequest{Then: []kv.Op{{Put: &kv.PutOp{Key: []byte("/registry/x")}}}}); !errors.Is(err, errReplaced) {
		t.Errorf("a former attempt writes: %v", err)
	}
	if err := keyspace.Close(); err != nil {
		t.Fatal(err)
	}
	s.open("b")
	s.want(200, s.as(admin, "GET", "/clusters/b"+configMaps+"/stays", ""))
	s.want(404, s.as(admin, "GET", "/clusters/b"+configMaps+"/goes", ""))
}

// TestCopiedKeys: a copy gets all that a workspace records for itself, such as that it has policies.
func TestCopiedKeys(t *testing.T) {
	for _, key := range []string{overlay.BirthKey, ownersKey, admissionKey, overlay.ChangedPrefix} {
		if key < string(copied.Start) {
			t.Errorf("%s is not copied", key)
		}
	}
	if attemptKey >= string(copied.Start) {
		t.Errorf("%s is copied", attemptKey)
	}
}
