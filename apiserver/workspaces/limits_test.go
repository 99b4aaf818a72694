package workspaces

import (
	"fmt"
	"strings"
	"testing"

	"github.com/atoll-dev/atoll/kv"
)

// TestLimits: a workspace beyond a limit forbids what makes it larger, names the field, and permits the rest.
func TestLimits(t *testing.T) {
	s := newStage(t, "a", "b")
	const path = "/api/v1/namespaces/default/configmaps"
	create := func(in, name string, size int) response {
		return s.as(admin, "POST", "/clusters/"+in+path, fmt.Sprintf(`{"metadata":{"name":%q},"data":{"text":%q}}`, name, strings.Repeat("x", size)))
	}
	s.want(201, create("a", "first", 10))
	s.want(201, create("a", "second", 10))
	used, err := s.keyspaces["a"].Usage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.keyspaces["a"].SetLimits(kv.Limits{Keys: &used.Keys})
	want := fmt.Sprintf(`configmaps \"third\" is forbidden: exceeded limit of workspace \"a\": objects %d, requested 1 more, limit %[1]d: delete objects or raise spec.limits.objects`, used.Keys)
	if a := s.want(403, create("a", "third", 10)); !strings.Contains(a.body, want) {
		t.Errorf("%s; want %s", a.body, want)
	}
	s.want(201, create("b", "third", 10))
	s.want(200, s.as(admin, "PATCH", "/clusters/a"+path+"/first?fieldManager=me&force=true", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"first"},"data":{"text":"a longer text"}}`))
	s.want(200, s.as(admin, "DELETE", "/clusters/a"+path+"/first", ""))
	s.want(201, create("a", "third", 10))

	if used, err = s.keyspaces["a"].Usage(t.Context()); err != nil {
		t.Fatal(err)
	}
	used.Bytes += 1000
	s.keyspaces["a"].SetLimits(kv.Limits{Bytes: &used.Bytes})
	a := s.want(403, s.as(admin, "PATCH", "/clusters/a"+path+"/third?fieldManager=me&force=true",
		fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"third"},"data":{"text":%q}}`, strings.Repeat("x", 2000))))
	if !strings.Contains(a.body, "raise spec.limits.bytes") {
		t.Error(a.body)
	}
	s.want(201, create("a", "fourth", 10))

	kept := "/clusters/a" + path + "/kept"
	s.want(201, s.as(admin, "POST", "/clusters/a"+path, `{"metadata":{"name":"kept","finalizers":["example.com/keep"]}}`))
	none := int64(0)
	s.keyspaces["a"].SetLimits(kv.Limits{Bytes: &none})
	if a := s.want(200, s.as(admin, "DELETE", kept, "")); !strings.Contains(a.body, "deletionTimestamp") {
		t.Error(a.body) // it is marked, which makes it larger
	}
	s.want(403, s.as(admin, "PATCH", kept+"?fieldManager=me&force=true", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"kept"},"data":{"text":"larger"}}`))
	s.want(200, s.as(admin, "DELETE", "/clusters/a"+path+"/fourth", ""))
}

// TestLimitOfCustomResources: they count, like their definitions.
func TestLimitOfCustomResources(t *testing.T) {
	s := newStage(t, "a")
	const definitions, widgets = "/clusters/a/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "/clusters/a/apis/example.com/v1/namespaces/default/widgets"
	s.want(201, s.as(admin, "POST", definitions, definition("colour")))
	create := func(name string) response {
		return s.as(admin, "POST", widgets, fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":%q},"spec":{"colour":"x"}}`, name))
	}
	s.eventually("widgets are served", func() bool { return create("w").code == 201 })
	used, err := s.keyspaces["a"].Usage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.keyspaces["a"].SetLimits(kv.Limits{Keys: &used.Keys})
	if a := s.want(403, create("v")); !strings.Contains(a.body, "raise spec.limits.objects") {
		t.Error(a.body)
	}
}
