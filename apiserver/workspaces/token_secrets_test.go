package workspaces

import (
	"encoding/base64"
	"strings"
	"testing"
)

// TestTokenSecret: a Secret of the type service-account-token has a token of this workspace alone, which ends with the Secret.
func TestTokenSecret(t *testing.T) {
	s := newStage(t, "a", "b")
	const secrets = "/api/v1/namespaces/default/secrets"
	secret := func(account string) string {
		return `{"metadata":{"generateName":"token-","annotations":{"kubernetes.io/service-account.name":"` + account + `"}},"type":"kubernetes.io/service-account-token"}`
	}
	if out := s.want(422, s.as(admin, "POST", "/clusters/a"+secrets, secret("robot"))); !strings.Contains(out.body, "create it first") {
		t.Error(out.body)
	}
	for _, path := range []string{"/clusters/a", "/clusters/b"} {
		s.want(201, s.as(admin, "POST", path+"/api/v1/namespaces/default/serviceaccounts", `{"metadata":{"name":"robot"}}`))
		s.want(201, s.as(admin, "POST", path+"/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings",
			`{"metadata":{"name":"robot"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"view"},
			"subjects":[{"kind":"ServiceAccount","namespace":"default","name":"robot"}]}`))
	}
	created := s.want(201, s.as(admin, "POST", "/clusters/a"+secrets, secret("robot")))
	if ca := created.field(t, "data", "ca.crt"); ca != base64.StdEncoding.EncodeToString([]byte(testCA)) {
		t.Errorf("ca.crt: %v", ca)
	}
	name := created.field(t, "metadata", "name").(string)
	token, err := base64.StdEncoding.DecodeString(created.field(t, "data", "token").(string))
	if err != nil {
		t.Fatal(err)
	}
	const maps = "/api/v1/namespaces/default/configmaps"
	s.want(200, s.withToken(string(token), "GET", "/clusters/a"+maps))
	s.want(401, s.withToken(string(token), "GET", "/clusters/b"+maps))
	used := s.want(200, s.as(admin, "GET", "/clusters/a"+secrets+"/"+name, ""))
	if labels, _ := used.field(t, "metadata", "labels").(map[string]any); labels["kubernetes.io/legacy-token-last-used"] == nil {
		t.Errorf("the use of the token is not recorded: %v", labels)
	}
	s.want(200, s.as(admin, "DELETE", "/clusters/a"+secrets+"/"+name, ""))
	s.want(401, s.withToken(string(token), "GET", "/clusters/a"+maps))
}
