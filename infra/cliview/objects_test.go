package cliview

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/test/fakeapi"
)

func TestGraph(t *testing.T) {
	s := newTestSession(t)
	s.put(networksAt, "main", `{"spec":{"name":"main"}}`)
	s.put(filesAt, "a", `{"spec":{"content":"${demo_network[\"main\"].gateway} ${k8s.Deployment[\"web\"].status.replicas}","depends_on":["demo_file[\"b\"]"]}}`)
	s.put(filesAt, "b", `{"spec":{"content":"${namespace[\"far\"].demo_network[\"x\"].id} ${demo_network[\"gone\"].id} ${aws_vpc[\"v\"].id}"}}`)
	s.put(filesAt, "broken", `{"spec":{"content":"${1 +"}}`)
	if err := s.Graph(t.Context(), nil, "text"); err != nil {
		t.Fatal(err)
	}
	want := `File/a
  → File/b
  → Network/main
  → k8s Deployment/web
File/b
  → far: Network/x
  → Network/gone (missing)
  → namespace["shop"].aws_vpc["v"] (no Provider serves it)
File/broken
Network/main
k8s Deployment/web
far: Network/x
Network/gone (missing)
namespace["shop"].aws_vpc["v"] (no Provider serves it)
`
	if got := s.out.String(); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	contains(t, s.err.String(), "warning: File/broken: ")

	s.out.b.Reset()
	s.put(networksAt, "main", `{"spec":{"tags":{"a":"${demo_file[\"a\"].id}"}}}`)
	if err := s.Graph(t.Context(), []string{"network/main"}, "dot"); err != nil {
		t.Fatal(err)
	}
	contains(t, s.out.String(), "digraph {", `[label="File/b"]`)
	if strings.Contains(s.out.String(), "broken") {
		t.Errorf("the graph has more than the target's dependencies:\n%s", s.out.String())
	}
	contains(t, s.err.String(), "dependency cycle: File/a → Network/main → File/a")
	if err := s.Graph(t.Context(), []string{"network/none"}, "dot"); err == nil || !strings.Contains(err.Error(), "Network.demo.providers.atoll.dev/none not found in namespace shop") {
		t.Error(err)
	}
}

func TestImportAnnotatesObject(t *testing.T) {
	s := newTestSession(t)
	s.plans(`{"phase":"Planned","digest":"DIGEST","summary":{"import":1}}`)
	s.put(networksAt, "main", `{"spec":{"name":"main"}}`)
	todo, err := s.Import(t.Context(), "network", "main", "net-1", "", PlanOptions{})
	if err != nil || !todo {
		t.Fatalf("%v %v", todo, err)
	}
	if got := s.at(networksAt, "main", "metadata", "annotations"); got != `{"infra.atoll.dev/import-id":"net-1"}` {
		t.Error(got)
	}
	if got := s.at(plansAt, "plan-2", "spec", "targets"); got != `[{"group":"demo.providers.atoll.dev","kind":"Network","name":"main"}]` {
		t.Error(got)
	}
	s.put(networksAt, "taken", `{"metadata":{"finalizers":["infra.atoll.dev/state"]}}`)
	for want, words := range map[string][3]string{
		"already has a resource": {"network", "taken", "net-1"},
		"the ID is empty":        {"network", "main", ""},
		"no Provider serves":     {"disk", "main", "d-1"},
		"use KIND NAME ID":       {`demo_network["main"]`, "net-1", "x"},
	} {
		if _, err := s.Import(t.Context(), words[0], words[1], words[2], "", PlanOptions{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", words, err)
		}
	}
}

func TestImportCreatesObject(t *testing.T) {
	s := newTestSession(t)
	s.plans(`{"phase":"Planned","digest":"DIGEST","summary":{"import":1}}`)
	if _, err := s.Import(t.Context(), "networks", "new", "net-2", "", PlanOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := s.at(networksAt, "new", "metadata", "annotations"); got != `{"infra.atoll.dev/import-id":"net-2"}` {
		t.Error(got)
	}
	contains(t, s.err.String(), "created with an empty spec")

	s.before = func(r fakeapi.Request) *metav1.Status {
		if r.Verb == "create" && r.Resource == networksAt {
			return &metav1.Status{Code: 422, Reason: metav1.StatusReasonInvalid, Message: "spec.cidr: Required value", Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{
				{Type: metav1.CauseTypeFieldValueRequired, Field: "spec.cidr", Message: "Required value"}}}}
		}
		return nil
	}
	_, err := s.Import(t.Context(), "network", "more", `net"3`, "", PlanOptions{})
	if err == nil {
		t.Fatal("no error")
	}
	contains(t, err.Error(), "spec.cidr: Required value", `
apiVersion: demo.providers.atoll.dev/v1
kind: Network
metadata:
  name: more
  namespace: shop
  annotations: {infra.atoll.dev/import-id: "net\"3"}
spec:
  cidr:   # required
`)
}
