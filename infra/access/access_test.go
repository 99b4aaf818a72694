package access

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/providerapi"
	infraschema "github.com/atoll-dev/atoll/infra/schema"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

type fields = map[string]any

const demo = "demo.providers.atoll.dev"

// fixture is an API server in memory, in which each user may read only what rights lists.
type fixture struct {
	t      *testing.T
	server *fakeapi.Server
	values *Values
	rights map[string]bool // "ann configmaps shop"
	reads  []string
}

type demoKinds struct{}

func (demoKinds) Kind(ref expr.Ref) (*infra.ServedKind, error) {
	if ref.Type != "demo_network" {
		return nil, infra.ErrNotServed
	}
	return &infra.ServedKind{Kind: infraschema.Kind{Group: demo, Name: infraschema.Name{Type: ref.Type, Kind: "Network", Plural: "networks"}}}, nil
}

func newFixture(t *testing.T, rights ...string) *fixture {
	t.Helper()
	crds, err := v1alpha1.CRDs()
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{t: t, rights: map[string]bool{}, server: fakeapi.New(t, append(fakeapi.CRDs(t, append(crds, referenceGrantCRD)...),
		fakeapi.BuiltIn("", "v1", "Namespace", "namespaces"), fakeapi.BuiltIn("", "v1", "ConfigMap", "configmaps"), fakeapi.BuiltIn("", "v1", "Secret", "secrets"),
		fakeapi.BuiltIn("", "v1", "Event", "events"), fakeapi.BuiltIn("events.k8s.io", "v1", "Event", "events"))...)}
	for _, right := range rights {
		f.rights[right] = true
	}
	f.server.OnRequest(func(r fakeapi.Request) *metav1.Status {
		f.reads = append(f.reads, strings.TrimSpace(r.User+" "+r.Verb+" "+r.Resource.Resource))
		if r.User != "" && !f.rights[strings.TrimSpace(fmt.Sprint(r.User, " ", r.Resource.Resource, " ", r.Namespace))] {
			return &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: "no"}
		}
		return nil
	})
	if f.values, err = NewValues(f.server.Config(), "test", demoKinds{}); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *fixture) put(kind, namespace, name string, data fields) {
	f.server.Put(fields{"apiVersion": "v1", "kind": kind, "metadata": fields{"name": name, "namespace": namespace}, "data": data})
}

func (f *fixture) grant(namespace, name string, to fields) {
	f.server.Put(fields{"apiVersion": "gateway.networking.k8s.io/v1beta1", "kind": "ReferenceGrant", "metadata": fields{"name": name, "namespace": namespace},
		"spec": fields{"from": []any{fields{"group": demo, "kind": "File", "namespace": "shop"}}, "to": []any{to}}})
}

// reader returns a File of namespace shop whose spec a user has written.
func reader(author string) infra.Reader {
	o := &infra.Object{Ref: expr.Ref{Type: "demo_file", Namespace: "shop", Name: "f"}, Group: demo, Kind: "File"}
	if author != "" {
		o.Author = fmt.Sprintf(`{"username":%q,"groups":["staff"]}`, author)
	}
	return infra.Reader{Object: o}
}

func k8s(kind, version, namespace string) expr.Ref {
	return expr.Ref{Kind: expr.Kubernetes, Type: kind, APIVersion: version, Namespace: namespace, Name: "x"}
}

func planOf(user string) *v1alpha1.Plan {
	p := &v1alpha1.Plan{}
	if user != "" {
		p.Spec.Author = &v1alpha1.Person{Username: user}
	}
	return p
}

func TestSecretsOfTheNamespace(t *testing.T) {
	f := newFixture(t)
	f.put("Secret", "shop", "s", fields{"key": []byte("hush")})
	ctx := ForPlan(t.Context(), planOf(""), nil)
	if got, err := f.values.Secret(ctx, reader("ann"), "s", "key"); err != nil || string(got) != "hush" {
		t.Errorf("got %q, %v", got, err)
	}
	f.server.Delete(corev1.SchemeGroupVersion.WithResource("secrets"), "shop", "s")
	if _, err := f.values.Secret(ctx, reader("ann"), "s", "key"); err != nil {
		t.Errorf("within one plan a Secret was read twice: %v", err)
	}
	if _, err := f.values.Secret(ctx, reader("ann"), "s", "other"); err == nil || !strings.Contains(err.Error(), `no key "other", but key`) || strings.Contains(err.Error(), "hush") {
		t.Errorf("missing key: %v", err)
	}
	if _, err := f.values.Secret(ForApply(t.Context(), planOf("")), reader("ann"), "s", "key"); err == nil || !strings.Contains(err.Error(), "not found in namespace shop") {
		t.Errorf("an apply used the value of an earlier time: %v", err)
	}
}

// TestObjects: an object is read with the rights of the spec's author, or by a grant of its namespace.
func TestObjects(t *testing.T) {
	f := newFixture(t, "ann configmaps shop", "ann configmaps other", "ann secrets other", "ann namespaces", "system configmaps shop")
	f.put("ConfigMap", "shop", "x", fields{"a": "b"})
	f.put("Secret", "shop", "x", fields{"p": []byte("hush")})
	for _, namespace := range []string{"other", "granting", "naming"} {
		f.put("ConfigMap", namespace, "x", fields{"a": namespace})
		f.put("Secret", namespace, "x", fields{"p": []byte("hush")})
	}
	f.server.Put(fields{"apiVersion": "v1", "kind": "Namespace", "metadata": fields{"name": "x"}})
	f.grant("granting", "maps", fields{"group": "", "kind": "ConfigMap"})
	f.grant("granting", "secrets", fields{"group": "", "kind": "Secret"})
	f.grant("naming", "secret", fields{"group": "", "kind": "Secret", "name": "x"})
	const toMaps, toSecrets = "to: [{group: \"\", kind: ConfigMap, name: x}]", "to: [{group: \"\", kind: Secret, name: x}]"
	for _, tt := range []struct {
		author, plan string
		ref          expr.Ref
		says         string // "" if it is read
	}{
		{"ann", "", k8s("ConfigMap", "", "shop"), ""},
		{"bob", "ann", k8s("ConfigMap", "", "shop"), "read with the rights of bob"},
		{"", "ann", k8s("ConfigMap", "", "shop"), ""},
		{"", "bob", k8s("ConfigMap", "", "shop"), "may not get configmaps in namespace shop"},
		{"", "", k8s("ConfigMap", "", "shop"), "author is not recorded"},
		{"", "atoll:infra", k8s("ConfigMap", "", "shop"), "part of the control plane"},
		{"atoll:fleet", "ann", k8s("ConfigMap", "", "shop"), "part of the control plane"},
		{"bob", "", k8s("Secret", "v1", "shop"), ""},
		// The author's right does not replace the grant, and the grant needs no right.
		{"ann", "ann", k8s("ConfigMap", "", "other"), toMaps},
		{"ann", "ann", k8s("Secret", "", "other"), toSecrets},
		{"bob", "", k8s("ConfigMap", "", "granting"), ""},
		{"bob", "", k8s("Secret", "", "granting"), toSecrets},
		{"bob", "", k8s("ConfigMap", "", "naming"), toMaps},
		{"bob", "", k8s("Secret", "", "naming"), ""},
		// The refusal does not reveal whether the object exists.
		{"ann", "", k8s("ConfigMap", "", "elsewhere"), "namespace elsewhere does not grant File." + demo + " of namespace shop a reference to ConfigMap x"},
		{"ann", "", k8s("Namespace", "", "shop"), ""},
		{"bob", "ann", k8s("Namespace", "", "shop"), "may not get namespaces in the cluster"},
		{"ann", "", k8s("Boat", "", "shop"), "no such kind"},
		{"ann", "", k8s("Event", "", "shop"), `k8s["events.k8s.io/v1"].Event or k8s["v1"].Event`},
		{"ann", "", k8s("ResourceState", "", "shop"), "cannot be referenced"},
	} {
		for _, ctx := range []func() (any, error){
			func() (any, error) {
				return f.values.Object(ForPlan(t.Context(), planOf(tt.plan), nil), reader(tt.author), tt.ref)
			},
			func() (any, error) {
				return f.values.Object(ForApply(t.Context(), planOf(tt.plan)), reader(tt.author), tt.ref)
			},
		} {
			v, err := ctx()
			if tt.says == "" && err != nil || tt.says != "" && (err == nil || !strings.Contains(err.Error(), tt.says)) {
				t.Errorf("author %q, plan of %q, %s: %v, %v", tt.author, tt.plan, tt.ref, v, err)
			}
		}
	}
	v, err := f.values.Object(ForPlan(t.Context(), planOf(""), nil), reader("bob"), k8s("Secret", "", "shop"))
	if err != nil || !v.GetAttr("data").HasMark(providerapi.Sensitive) || v.GetAttr("metadata").ContainsMarked() {
		t.Errorf("got %#v, %v", v, err)
	}
}

// TestPlanCacheKeepsAuthorsApart: what the author of one spec has read is not given to another.
func TestPlanCacheKeepsAuthorsApart(t *testing.T) {
	f := newFixture(t, "ann configmaps shop")
	f.put("ConfigMap", "shop", "x", fields{"a": "b"})
	ctx := ForPlan(t.Context(), planOf("ann"), nil)
	for range 2 {
		if _, err := f.values.Object(ctx, reader("ann"), k8s("ConfigMap", "", "shop")); err != nil {
			t.Fatal(err)
		}
		if _, err := f.values.Object(ctx, reader("bob"), k8s("ConfigMap", "", "shop")); err == nil {
			t.Fatal("bob read what ann may read")
		}
	}
	if got := strings.Join(f.reads, ", "); got != "ann get configmaps, bob get configmaps" {
		t.Errorf("the API got: %s", got)
	}
}

func TestReferences(t *testing.T) {
	f := newFixture(t)
	network := func(namespace string) expr.Ref {
		return expr.Ref{Type: "demo_network", Namespace: namespace, Name: "n"}
	}
	f.grant("kind", "g", fields{"group": demo, "kind": "Network"})
	f.grant("name", "g", fields{"group": demo, "kind": "Network", "name": "n"})
	for _, tt := range []struct {
		ref       expr.Ref
		sensitive bool
		says      string
	}{
		{network("shop"), true, ""},
		{network("none"), false, "namespace none does not grant"},
		{network("kind"), false, ""},
		{network("kind"), true, "the value is sensitive, and no grant of namespace kind names Network." + demo + " n"},
		{network("name"), false, ""},
		{network("name"), true, ""},
		{expr.Ref{Type: "demo_boat", Namespace: "name", Name: "n"}, false, "no installed Provider serves"},
	} {
		err := f.values.Reference(ForPlan(t.Context(), planOf(""), nil), reader("ann"), tt.ref, tt.sensitive)
		if tt.says == "" && err != nil || tt.says != "" && (err == nil || !strings.Contains(err.Error(), tt.says)) {
			t.Errorf("%s, sensitive %t: %v", tt.ref, tt.sensitive, err)
		}
	}
	ctx := ForApply(t.Context(), planOf(""))
	if err := f.values.Reference(ctx, reader("ann"), network("name"), true); err != nil {
		t.Error(err)
	}
	f.server.Delete(ReferenceGrants(), "name", "g")
	if err := f.values.Reference(ctx, reader("ann"), network("name"), true); err == nil {
		t.Error("an apply used a grant that was withdrawn")
	}
}

// TestNoGrantsWithoutTheirType: where ReferenceGrants are not served, nothing is granted.
func TestNoGrantsWithoutTheirType(t *testing.T) {
	server := fakeapi.New(t, fakeapi.BuiltIn("", "v1", "ConfigMap", "configmaps"))
	values, err := NewValues(server.Config(), "test", demoKinds{})
	if err != nil {
		t.Fatal(err)
	}
	if err := values.Reference(t.Context(), reader("ann"), expr.Ref{Type: "demo_network", Namespace: "b", Name: "n"}, false); err == nil || !strings.Contains(err.Error(), "does not grant") {
		t.Error(err)
	}
}

var crdResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// TestInstallReferenceGrants: the CRD is installed and updated, unless a user has installed theirs.
func TestInstallReferenceGrants(t *testing.T) {
	const name = "referencegrants.gateway.networking.k8s.io"
	newServer := func() *fakeapi.Server {
		return fakeapi.New(t, append(fakeapi.CRDs(t, referenceGrantCRD), fakeapi.Kind{Group: crdResource.Group, Version: "v1", Kind: "CustomResourceDefinition", Plural: crdResource.Resource, ClusterScoped: true})...)
	}
	server := newServer()
	for range 2 {
		if err := InstallReferenceGrants(t.Context(), server.Dynamic(), "atoll"); err != nil {
			t.Fatal(err)
		}
		if crd := server.Get(crdResource, "", name); crd == nil || crd.GetLabels()[managedByLabel] != managedBy {
			t.Fatalf("installed %v", crd)
		}
	}
	server = newServer()
	server.Put(fields{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": fields{"name": name}, "spec": fields{"group": "theirs"}})
	before := server.Get(crdResource, "", name).GetResourceVersion()
	if err := InstallReferenceGrants(t.Context(), server.Dynamic(), "atoll"); err != nil {
		t.Fatal(err)
	}
	if server.Get(crdResource, "", name).GetResourceVersion() != before {
		t.Error("the CRD of a user was changed")
	}
}
