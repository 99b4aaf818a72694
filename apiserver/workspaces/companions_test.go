package workspaces

import (
	"context"
	"errors"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
)

// TestCompanions: a namespace has its ServiceAccount and the ConfigMap of the certificate authority with the answer to the request
// that creates it: the first ones, one that is created, and one that is applied.
func TestCompanions(t *testing.T) {
	s := newStage(t, "a")
	const base = "/clusters/a/api/v1/namespaces"
	s.want(201, s.as(admin, "POST", base, `{"metadata":{"name":"shop"}}`))
	s.want(201, s.as(admin, "PATCH", base+"/applied?fieldManager=me", `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"applied"}}`))
	s.want(201, s.as(admin, "POST", base+"?dryRun=All", `{"metadata":{"name":"dry"}}`))
	for _, name := range []string{"default", "kube-system", "kube-public", "shop", "applied"} {
		s.want(200, s.as(admin, "GET", base+"/"+name+"/serviceaccounts/default", ""))
		if got := s.want(200, s.as(admin, "GET", base+"/"+name+"/configmaps/kube-root-ca.crt", "")).field(t, "data", "ca.crt"); got != testCA {
			t.Errorf("%s: %v", name, got)
		}
	}
	s.want(404, s.as(admin, "GET", base+"/dry/serviceaccounts/default", ""))
	// An existing namespace is neither replaced, nor are its objects.
	uid := func() any {
		return s.want(200, s.as(admin, "GET", base+"/shop/serviceaccounts/default", "")).field(t, "metadata", "uid")
	}
	before := uid()
	s.want(409, s.as(admin, "POST", base, `{"metadata":{"name":"shop"}}`))
	s.want(200, s.as(admin, "PATCH", base+"/shop?fieldManager=me", `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"shop","labels":{"a":"b"}}}`))
	if uid() != before {
		t.Error("the ServiceAccount was replaced")
	}
	s.want(201, s.as(admin, "POST", base+"/shop/serviceaccounts/default/token", `{"spec":{}}`))
}

// failing are transformers that fail for ServiceAccounts.
type failing struct{ value.Transformer }

func (failing) TransformToStorage(context.Context, []byte, value.Context) ([]byte, error) {
	return nil, errors.New("the key is missing")
}

// TestCompanionsFail: a namespace whose objects cannot be written is not created.
func TestCompanionsFail(t *testing.T) {
	s := newStage(t, "a")
	chain, err := s.server.built()
	if err != nil {
		t.Fatal(err)
	}
	chain.encoder.Transformer = func(r schema.GroupResource) value.Transformer {
		if r.Resource == "serviceaccounts" {
			return failing{}
		}
		return identity.NewEncryptCheckTransformer()
	}
	a := s.want(500, s.as(admin, "POST", "/clusters/a/api/v1/namespaces", `{"metadata":{"name":"shop"}}`))
	if !strings.Contains(a.body, "encrypt serviceaccounts default: the key is missing") {
		t.Error(a.body)
	}
	s.want(404, s.as(admin, "GET", "/clusters/a/api/v1/namespaces/shop", ""))
}
