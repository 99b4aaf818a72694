package test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	"k8s.io/utils/ptr"
)

const (
	callers = "/apis/identity.test.atoll.dev/v1/callers"
	letters = "/apis/identity.test.atoll.dev/v1/letters"
)

// identityTypes are a group that is exposed to east and west, a group that is not exposed, and an admission
// policy in Atoll that rejects each caller with a message that names the caller.
const identityTypes = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: callers.identity.test.atoll.dev, labels: {test: identity}}
spec:
  group: identity.test.atoll.dev
  scope: Cluster
  names: {plural: callers, singular: caller, kind: Caller}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: letters.identity.test.atoll.dev, labels: {test: identity}}
spec:
  group: identity.test.atoll.dev
  scope: Cluster
  names: {plural: letters, singular: letter, kind: Letter}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: secretaries.hidden.test.atoll.dev, labels: {test: identity}}
spec:
  group: hidden.test.atoll.dev
  scope: Cluster
  names: {plural: secretaries, singular: secretary, kind: Secretary}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: identity, labels: {test: identity}}
spec:
  matchConstraints:
    resourceRules: [{apiGroups: [identity.test.atoll.dev], apiVersions: ["*"], operations: [CREATE], resources: [callers]}]
  validations:
  - expression: "false"
    messageExpression: >-
      'caller ' + request.userInfo.username + '|' + request.userInfo.groups.join(',') + '|'
      + (has(request.userInfo.uid) ? request.userInfo.uid : '') + '|'
      + (has(request.userInfo.extra) ? request.userInfo.extra.map(k, k + '=' + request.userInfo.extra[k].join('+')).join(',') : '') + '|'
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: identity, labels: {test: identity}}
spec: {policyName: identity, validationActions: [Deny]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: identity-callers, labels: {test: identity}}
rules: [{apiGroups: [identity.test.atoll.dev], resources: [callers], verbs: [create, watch]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: identity-callers, labels: {test: identity}}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: identity-callers}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: Group, name: "system:authenticated"}
- {apiGroup: rbac.authorization.k8s.io, kind: Group, name: "system:unauthenticated"}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: identity-letters, labels: {test: identity}}
rules: [{apiGroups: [identity.test.atoll.dev], resources: [letters], verbs: [get, list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: identity-letters, labels: {test: identity}}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: identity-letters}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: "east:system:serviceaccount:ops:ctl"}]
---
apiVersion: fleet.atoll.dev/v1alpha1
kind: SharedAPI
metadata: {name: identity}
spec: {groups: [identity.test.atoll.dev], clusters: [east, west]}
`

// identityOpen has a member let everybody pass: what Atoll allows is the question.
const identityOpen = `
apiVersion: v1
kind: Namespace
metadata: {name: ops, labels: {test: identity}}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: ctl, namespace: ops}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: identity-open, labels: {test: identity}}
rules: [{apiGroups: [identity.test.atoll.dev, hidden.test.atoll.dev], resources: ["*"], verbs: ["*"]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: identity-open, labels: {test: identity}}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: identity-open}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: Group, name: "system:authenticated"}
- {apiGroup: rbac.authorization.k8s.io, kind: Group, name: "system:unauthenticated"}
`

// For Atoll, every caller in a member is only a user of that member, and only a member's API server can speak
// for its users.
func TestNobodyIsMoreThanAMembersUser(t *testing.T) {
	t.Parallel()
	f := whole(t)
	f.shareNotes(t) // so that north, which does not get the group, is known
	f.apply(t, identityTypes)
	t.Cleanup(func() {
		for cluster, kinds := range map[string]string{
			"atoll": "validatingadmissionpolicy,validatingadmissionpolicybinding,clusterrole,clusterrolebinding,customresourcedefinition",
			"east":  "clusterrole,clusterrolebinding,namespace", "west": "clusterrole,clusterrolebinding,namespace",
		} {
			if _, err := f.tryKubectl(context.Background(), cluster, "", "delete", kinds, "-l", "test=identity", "--timeout=60s"); err != nil {
				t.Error(err)
			}
		}
	})
	for _, c := range []string{"east", "west"} {
		f.put(t, c, identityOpen)
	}
	f.kubectl(t, "atoll", "wait", "sharedapi/identity", "--for=condition=Ready", "--timeout=90s")
	for _, c := range []string{"east", "west"} {
		admin := f.speaker(t, c, f.rest(t, c))
		eventually(t, 60*time.Second, "Atoll tells who "+c+"'s administrator is", func(context.Context) error {
			if code, body := admin.do(t, "GET", letters); code != http.StatusForbidden {
				return fmt.Errorf("%d %s", code, body)
			}
			if code, body := admin.create(t, callers); code != http.StatusUnprocessableEntity || !strings.Contains(body, "caller ") {
				return fmt.Errorf("%d %s", code, body)
			}
			return nil
		})
	}
	eventually(t, 30*time.Second, "Atoll has opened what the group is stored in", func(ctx context.Context) error {
		_, err := f.tryKubectl(ctx, "atoll", "", "get", "letters.identity.test.atoll.dev,callers.identity.test.atoll.dev")
		return err
	})
	t.Run("through a member", f.throughMembers)
	t.Run("on the member port", f.onTheMemberPort)
	t.Run("after withdrawal", f.afterWithdrawal)
}

func (f *fixture) throughMembers(t *testing.T) {
	as := func(i rest.ImpersonationConfig) *rest.Config {
		config := f.rest(t, "east")
		config.Impersonate = i
		return config
	}
	everybody := []string{"atoll:members", "atoll:cluster:east", "system:authenticated", "east:system:authenticated"}
	anonymous := []string{"system:unauthenticated", "east:system:unauthenticated"}
	forged := []string{
		"X-Remote-User", "system:admin", "X-Remote-Group", "system:masters", "X-Remote-Uid", "0", "X-Remote-Extra-Team", "forged",
		"X-Forwarded-User", "system:admin", "Cookie", "user=system:admin",
	}
	nobody := rest.AnonymousClientConfig(f.rest(t, "east"))
	account := rest.AnonymousClientConfig(f.rest(t, "east"))
	account.BearerToken = f.tokenOf(t, "east")
	for _, c := range []struct {
		name    string
		config  *rest.Config
		headers []string
		user    string
		groups  []string
		extra   string
	}{
		{"its administrator", f.rest(t, "east"), nil, "east:admin", append(everybody, "east:system:masters"), "*"},
		{"a user with a name of another member's user", as(rest.ImpersonationConfig{UserName: "west:bob"}), nil, "east:west:bob", everybody, ""},
		{"a user with a name of one of Atoll's", as(rest.ImpersonationConfig{UserName: "atoll:server", Groups: []string{"atoll:cluster:west", "atoll:member-collectors"}}), nil,
			"east:atoll:server", append(everybody, "east:atoll:cluster:west", "east:atoll:member-collectors"), ""},
		{"a master of the member", as(rest.ImpersonationConfig{UserName: "mallory", Groups: []string{"system:masters"}}), nil, "east:mallory", append(everybody, "east:system:masters"), ""},
		{"the member's API server", as(rest.ImpersonationConfig{UserName: "system:apiserver", Groups: []string{"system:masters"}}), nil, "east:system:apiserver", append(everybody, "east:system:masters"), ""},
		{"a user with extra attributes", as(rest.ImpersonationConfig{UserName: "eve", UID: "17", Extra: map[string][]string{"team": {"a", "b"}}}), nil, "east:eve", everybody, "team=a+b"},
		{"an anonymous user", nobody, nil, "east:system:anonymous", anonymous, ""},
		{"an anonymous user with forged headers", nobody, forged, "east:system:anonymous", anonymous, ""},
		{"a service account", account, nil, "east:system:serviceaccount:ops:ctl", append(everybody, "east:system:serviceaccounts", "east:system:serviceaccounts:ops"), "*"},
		{"a service account with forged headers", account, forged, "east:system:serviceaccount:ops:ctl", append(everybody, "east:system:serviceaccounts", "east:system:serviceaccounts:ops"), "*"},
		{"a user with forged headers", as(rest.ImpersonationConfig{UserName: "eve"}), forged, "east:eve", everybody, ""},
	} {
		got, ok := f.speaker(t, "east", c.config).who(t, c.headers...)
		if !ok {
			continue
		}
		slices.Sort(c.groups)
		if got.user != c.user || !slices.Equal(got.groups, c.groups) || (got.extra != c.extra && c.extra != "*") || strings.Contains(got.extra, "forged") {
			t.Errorf("%s is %+v to Atoll", c.name, got)
		}
	}

	// Exactly what Atoll's RBAC says, of exactly this member's account.
	ctl := f.speaker(t, "east", account)
	other := rest.AnonymousClientConfig(f.rest(t, "west"))
	other.BearerToken = f.tokenOf(t, "west")
	for _, c := range []struct {
		who          *speaker
		method, path string
		code         int
		says         string
	}{
		{ctl, "GET", letters, 200, "LetterList"},
		{ctl, "GET", letters + "/none", 404, "NotFound"},
		{ctl, "POST", letters, 403, `User \"east:system:serviceaccount:ops:ctl\" cannot create resource \"letters\"`},
		{ctl, "DELETE", letters, 403, "cannot deletecollection"},
		{ctl, "GET", letters + "?watch=true", 403, "cannot watch"},
		{f.speaker(t, "west", other), "GET", letters, 403, `User \"west:system:serviceaccount:ops:ctl\" cannot list`},
		// All of the member's power is none in Atoll.
		{f.speaker(t, "east", f.rest(t, "east")), "GET", letters, 403, `User \"east:admin\" cannot list`},
		{f.speaker(t, "east", as(rest.ImpersonationConfig{UserName: "system:serviceaccount:ops:ctl"})), "GET", letters, 200, "LetterList"},
		// A group that is not exposed is not there; north does not have this one.
		{f.speaker(t, "east", f.rest(t, "east")), "GET", "/apis/hidden.test.atoll.dev/v1/secretaries", 404, ""},
		{f.speaker(t, "east", f.rest(t, "east")), "GET", "/apis/fleet.atoll.dev/v1alpha1/clusters", 404, ""},
		{f.speaker(t, "north", f.rest(t, "north")), "GET", letters, 404, ""},
	} {
		if code, body := c.who.do(t, c.method, c.path); code != c.code || !strings.Contains(body, c.says) {
			t.Errorf("%s %s: %d %s; want %d with %s", c.method, c.path, code, body, c.code, c.says)
		}
	}
}

// onTheMemberPort calls Atoll as whoever can reach the port can.
func (f *fixture) onTheMemberPort(t *testing.T) {
	pki := func(cluster, name string) tls.Certificate {
		at := filepath.Join(f.dir, "members", cluster, "pki", name)
		pair, err := tls.LoadX509KeyPair(at+".crt", at+".key")
		if err != nil {
			t.Fatal(err)
		}
		return pair
	}
	selfSigned, selfKey, err := cert.GenerateSelfSignedCertKey("front-proxy-client", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	own, err := tls.X509KeyPair(selfSigned, selfKey)
	if err != nil {
		t.Fatal(err)
	}
	// A chain with the correct authority after a leaf that this authority has not signed.
	chained := own
	chained.Certificate = append(slices.Clone(own.Certificate), pki("east", "front-proxy/ca").Certificate[0])
	east := pki("east", "front-proxy/client")
	alice := []string{"X-Remote-User", "alice", "X-Remote-Group", "system:authenticated"}
	for _, c := range []struct {
		name        string
		certificate *tls.Certificate
		headers     []string
		path        string
		code        int
		says        string
	}{
		{"no certificate", nil, alice, letters, 401, "certificate"},
		{"a token", nil, append(alice, "Authorization", "Bearer "+f.tokenOf(t, "east")), letters, 401, "certificate"},
		{"a self-signed certificate", &own, alice, letters, 401, ""},
		{"a chain that does not fit", &chained, alice, letters, 401, ""},
		{"an administrator of the member", ptr.To(pki("east", "admin")), alice, letters, 401, ""},
		{"the member's serving certificate", ptr.To(pki("east", "apiserver")), alice, letters, 401, ""},
		{"the member's front-proxy authority itself", ptr.To(pki("east", "front-proxy/ca")), alice, letters, 401, ""},
		{"an administrator of Atoll", ptr.To(f.administrator(t)), alice, letters, 401, ""},
		{"no user", &east, nil, letters, 401, "has no user name"},
		{"a blank user", &east, []string{"X-Remote-User", " "}, letters, 401, "has no user name"},
		{"two users", &east, append(alice, "X-Remote-User", "bob"), letters, 401, "is set 2 times"},
		{"north, which the group is not exposed to", ptr.To(pki("north", "front-proxy/client")), alice, letters, 403, "not exposed to cluster north"},
		{"a group that is not exposed to any member", &east, alice, "/apis/hidden.test.atoll.dev/v1/secretaries", 403, "not exposed to cluster east"},
		{"the fleet", &east, alice, "/apis/fleet.atoll.dev/v1alpha1/clusters", 403, "not exposed"},
		{"secrets", &east, append(alice, "X-Remote-Group", "system:masters"), "/api/v1/secrets", 403, "only API groups that are exposed"},
		{"metrics", &east, alice, "/metrics", 403, ""},
		{"a way around", &east, alice, letters + "/../../../../api/v1/secrets", 400, ""},
		{"an encoded way around", &east, alice, letters + "/%2e%2e/%2e%2e/%2e%2e/%2e%2e/api/v1/secrets", 400, ""},
		{"east's account by west's proxy", ptr.To(pki("west", "front-proxy/client")), []string{"X-Remote-User", "system:serviceaccount:ops:ctl"}, letters, 403, `User \"west:system:serviceaccount:ops:ctl\" cannot`},
		{"… and by the name it has in Atoll", ptr.To(pki("west", "front-proxy/client")), []string{"X-Remote-User", "east:system:serviceaccount:ops:ctl"}, letters, 403, `User \"west:east:system:serviceaccount:ops:ctl\" cannot`},
		{"east's own", &east, []string{"X-Remote-User", "system:serviceaccount:ops:ctl"}, letters, 200, "LetterList"},
		{"… who impersonates another user", &east, append(alice, "Impersonate-User", "east:system:serviceaccount:ops:ctl"), letters, 403, `User \"east:alice\" cannot`},
	} {
		s := f.onPort(t, f.memberAddress(t), c.certificate)
		if code, body := s.do(t, "GET", c.path, c.headers...); code != c.code || !strings.Contains(body, c.says) {
			t.Errorf("%s: %d %s; want %d with %q", c.name, code, body, c.code, c.says)
		}
	}

	// Headers that the member port trusts are not trusted on the main port.
	main := f.onPort(t, strings.TrimPrefix(f.rest(t, "atoll").Host, "https://"), &east)
	if code, body := main.do(t, "GET", letters, "X-Remote-User", "system:serviceaccount:ops:ctl", "X-Remote-Group", "system:masters"); code != http.StatusUnauthorized && code != http.StatusForbidden {
		t.Errorf("a member's proxy on the main port: %d %s", code, body)
	}
}

// afterWithdrawal tests that no member is served after the withdrawal.
func (f *fixture) afterWithdrawal(t *testing.T) {
	config := f.rest(t, "east")
	config.Timeout = 0
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Get(config.Host + callers + "?watch=true")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Fatal(response.Status)
	}
	f.kubectl(t, "atoll", "delete", "sharedapi", "identity", "--timeout=60s")
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, response.Body)
		ended <- err
	}()
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
		t.Error("a watch goes on")
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(f.dir, "members", "east", "pki", "front-proxy", "client.crt"), filepath.Join(f.dir, "members", "east", "pki", "front-proxy", "client.key"))
	if err != nil {
		t.Fatal(err)
	}
	direct := f.onPort(t, f.memberAddress(t), &pair)
	eventually(t, 30*time.Second, "east is refused on the member port", func(context.Context) error {
		if code, body := direct.do(t, "GET", letters, "X-Remote-User", "system:serviceaccount:ops:ctl"); code != http.StatusForbidden || !strings.Contains(body, "not exposed to cluster east") {
			return fmt.Errorf("%d %s", code, body)
		}
		return nil
	})
	if code, body := f.speaker(t, "east", f.rest(t, "east")).do(t, "GET", letters); code != http.StatusNotFound {
		t.Errorf("east still has the group: %d %s", code, body)
	}
}
