package cliview

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// plans makes every plan ready at once, with the status and the changes.
func (s *testSession) plans(status string, changes ...change.Change) {
	s.statuses["plans"], s.changes[""] = status, changes
}

func TestPlanOutput(t *testing.T) {
	s := newTestSession(t)
	s.plans(`{"phase":"Planned","digest":"DIGEST","summary":{"create":1,"delete":1,"drift":1}}`, created("a"), deleted("old"), drifted("b"))
	todo, err := s.Plan(t.Context(), &Request{}, PlanOptions{})
	if err != nil || !todo {
		t.Fatalf("%v %v", todo, err)
	}
	want := `Objects have changed outside of Atoll since the last refresh:

  # demo_file["b"] has changed
  ~ resource "demo_file" "b" {
      ~ content = "hello" -> "bye"
        name    = "b"
    }

Planned actions are indicated with the following symbols:
  + create
  - destroy

  # demo_file["a"] will be created
  + resource "demo_file" "a" {
      + content = "hello"
      + id      = (known after apply)
      + name    = "a"
    }

  # demo_network["old"] will be destroyed
  # (because it has no object)
  - resource "demo_network" "old" {
      - cidr = "10.0.0.0/8" -> null
      - name = "old" -> null
    }

Plan: 1 to add, 0 to change, 1 to destroy.

Plan plan-1, ` + digest + `
To perform exactly these actions, run:
  atoll approve plan-1 -n shop
  atoll apply plan-1 -n shop
The plan uses the stored state. To check resources for changes outside of Atoll, run ` + "`atoll drift -n shop`" + `.
`
	if got := s.out.String(); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	if got := s.err.String(); got != "" {
		t.Errorf("standard error: %s", got)
	}
}

func TestPlanWithoutChanges(t *testing.T) {
	s := newTestSession(t)
	s.plans(`{"phase":"Planned","digest":"DIGEST","summary":{"noOp":3}}`)
	todo, err := s.Plan(t.Context(), &Request{Refresh: true}, PlanOptions{})
	if err != nil || todo {
		t.Fatalf("%v %v", todo, err)
	}
	want := "No changes. Infrastructure matches the configuration.\n\nPlan plan-1, " + digest + "\n"
	if got := s.out.String(); got != want {
		t.Errorf("got %s", got)
	}
}

func TestPlanWithoutResources(t *testing.T) {
	s := newTestSession(t)
	s.plans(`{"phase":"Planned","digest":"DIGEST","summary":{}}`)
	if todo, err := s.Plan(t.Context(), &Request{}, PlanOptions{}); err != nil || todo {
		t.Fatalf("%v %v", todo, err)
	}
	contains(t, s.out.String(), "No resources of a Provider's kind found", "in namespace shop")
}

func TestDeferredChanges(t *testing.T) {
	s := newTestSession(t)
	s.plans(`{"phase":"Planned","digest":"DIGEST","summary":{},"chunks":[{"digest":"d","changes":1,"pieces":1,"first":{"type":"demo_file","name":"a"},"last":{"type":"demo_file","name":"a"},"actions":{"deferred":1}}]}`,
		change.Change{Address: change.Address{Namespace: "shop", Type: "demo_file", Name: "a"}, Action: change.Create, Deferred: "its provider has to be configured first"})
	todo, err := s.Plan(t.Context(), &Request{}, PlanOptions{})
	if err != nil || todo {
		t.Fatalf("%v %v", todo, err)
	}
	contains(t, s.out.String(), `demo_file["a"] is deferred: its provider has to be configured first`, "Deferred: 1.")
}

func TestFailedPlan(t *testing.T) {
	s := newTestSession(t)
	s.plans(`{"phase":"Failed","conditions":[{"type":"Complete","status":"False","reason":"Cycle","message":"a → b → a"}],
		"problems":[{"address":"File.demo.providers.atoll.dev/a","field":"spec.content","message":"is no text: write one"}]}`)
	_, err := s.Plan(t.Context(), &Request{}, PlanOptions{})
	if err == nil || err.Error() != "plan plan-1 failed: a → b → a" {
		t.Error(err)
	}
	contains(t, s.err.String(), "File.demo.providers.atoll.dev/a, spec.content: is no text: write one")
}

func TestPlanWithProblems(t *testing.T) {
	s := newTestSession(t)
	s.plans(`{"phase":"Planned","digest":"DIGEST","summary":{"create":1},"problems":[{"address":"File.demo/b","message":"bad\u001b[2J"}]}`, created("a"))
	todo, err := s.Plan(t.Context(), &Request{}, PlanOptions{})
	if !todo || err == nil {
		t.Errorf("%v %v", todo, err)
	}
	contains(t, s.err.String(), "Not planned:", "File.demo/b: bad")
	if strings.Contains(s.err.String(), "\x1b") {
		t.Error("a provider's control characters reach the terminal")
	}
}

func TestFollowPlanRetries(t *testing.T) {
	s := newTestSession(t)
	reads := 0
	s.before = func(r fakeapi.Request) *metav1.Status {
		if r.Verb == "get" && r.Resource == plansAt {
			if reads++; reads > 2 && reads < 6 {
				return &metav1.Status{Code: 503, Reason: metav1.StatusReasonServiceUnavailable, Message: "a server is going away"}
			}
		}
		return nil
	}
	s.looked = func(u *unstructured.Unstructured) {
		switch {
		case reads < 3:
			u.Object["status"] = s.status(fmt.Sprintf(`{"phase":"Planning","progress":{"done":%d,"total":10}}`, reads))
		default:
			u.Object["status"] = s.status(`{"phase":"Planned","digest":"DIGEST"}`)
		}
	}
	s.ErrIsTerminal = true
	p, err := s.CreatePlan(t.Context(), &Request{})
	if err != nil {
		t.Fatal(err)
	}
	if p, err = s.FollowPlan(t.Context(), p.Name); err != nil || p.Status.Phase != v1alpha1.PlanPlanned {
		t.Fatalf("%v %v", p, err)
	}
	contains(t, s.err.String(), "\rPlanning [==>", "2/10\x1b[K", "Atoll is not responding (a server is going away)", "Connection to Atoll restored.")
	if strings.Count(s.err.String(), "is not responding") != 1 {
		t.Errorf("the error is repeated: %s", s.err.String())
	}
}

func TestInterruptedPlanContinues(t *testing.T) {
	s := newTestSession(t)
	ctx, cancel := context.WithCancel(t.Context())
	s.looked = func(*unstructured.Unstructured) { cancel() }
	_, err := s.Plan(ctx, &Request{Name: "mine"}, PlanOptions{})
	if err == nil {
		t.Fatal("no error")
	}
	contains(t, err.Error(), "plan mine is not ready: interrupted", "`atoll show mine -n shop`")

	s.looked = nil
	ctx, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err = s.Plan(ctx, &Request{Name: "late"}, PlanOptions{}); err == nil {
		t.Fatal("no error")
	}
	contains(t, err.Error(), "plan late is not ready: --timeout exceeded")
}

func TestRequestSpec(t *testing.T) {
	s := newTestSession(t)
	s.plans(`{"phase":"Planned","digest":"DIGEST"}`)
	_, err := s.Plan(t.Context(), &Request{Name: "mine", Mode: v1alpha1.PlanDestroy, Selector: "tier in (a,b),old!=yes", Targets: []string{"network/main", `demo_file["a"]`},
		Exclude: []string{"datafiles.demo/x", "data.demo_file.y"}}, PlanOptions{Detached: true, Format: "name"})
	if err != nil {
		t.Fatal(err)
	}
	if s.out.String() != "plan.infra.atoll.dev/mine\n" {
		t.Error(s.out.String())
	}
	want := `{"exclude":[{"group":"demo.providers.atoll.dev","kind":"DataFile","name":"x"},{"group":"demo.providers.atoll.dev","kind":"DataFile","name":"y"}],` +
		`"mode":"Destroy","selector":{"matchExpressions":[{"key":"old","operator":"NotIn","values":["yes"]},{"key":"tier","operator":"In","values":["a","b"]}]},` +
		`"targets":[{"group":"demo.providers.atoll.dev","kind":"Network","name":"main"},{"group":"demo.providers.atoll.dev","kind":"File","name":"a"}]}`
	if got := s.at(plansAt, "mine", "spec"); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestTargets(t *testing.T) {
	s := newTestSession(t)
	s.api.Serve(fakeapi.Custom("File", resource("other.providers.atoll.dev", "files")))
	known, err := s.Session.kinds()
	if err != nil {
		t.Fatal(err)
	}
	language, err := expr.New()
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"file/a":                            "File.demo.providers.atoll.dev or File.other.providers.atoll.dev",
		"/a":                                "incomplete: use KIND/NAME",
		"file/":                             "incomplete: use KIND/NAME",
		"deployment/web":                    "no Provider serves kind deployment",
		`demo_disk["a"]`:                    "no Provider serves kind demo_disk",
		`demo_file["a"].id`:                 "invalid resource",
		`k8s.Deployment["web"]`:             "invalid resource",
		`namespace["b"].demo_file["a"]`:     "the plan is for namespace shop",
		`demo_file[`:                        "invalid resource",
		"web":                               "invalid resource",
		"file.demo.providers.atoll.dev/a":   "",
		"Files.demo/a":                      "",
		"networks/a":                        "",
		`other_file["a"]`:                   "",
		`data.demo_file["a"]`:               "",
		`namespace["shop"].demo_file["a"]`:  "",
		"file.demo.providers.atoll.devil/a": "no Provider serves",
	} {
		k, name, err := known.find("--target", text, "shop", language)
		switch {
		case want == "" && (err != nil || name != "a"):
			t.Errorf("%s: %v %s %v", text, k, name, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	if _, _, err := (kinds{}).find("--target", "a/b", "shop", language); err == nil || !strings.Contains(err.Error(), "kubectl get providers") {
		t.Error(err)
	}
}

func manifest(kind, group, namespace, name string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": group + "/v1", "kind": kind}}
	u.SetName(name)
	u.SetNamespace(namespace)
	return u
}

func TestSpeculativePlan(t *testing.T) {
	s := newTestSession(t)
	s.plans(`{"phase":"Planned","digest":"DIGEST","summary":{"create":1}}`, created("a"))
	_, err := s.Plan(t.Context(), &Request{Name: "p", Objects: []*unstructured.Unstructured{manifest("File", demo, "", "a"), manifest("Secret", "v1", "", "s")}}, PlanOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := s.at(plansAt, "p", "spec", "objects"); got != `[{"apiVersion":"demo.providers.atoll.dev/v1","kind":"File","metadata":{"name":"a","namespace":"shop"}}]` {
		t.Error(got)
	}
	contains(t, s.err.String(), "using the objects in Atoll: Secret/s")
	contains(t, s.out.String(), "cannot be applied: `kubectl apply` the files, then run `atoll apply -n shop`")

	var many []*unstructured.Unstructured
	for i := range 1001 {
		many = append(many, manifest("File", demo, "", fmt.Sprint("f", i)))
	}
	for want, objects := range map[string][]*unstructured.Unstructured{
		"the files have 1001 resources, but a speculative plan takes at most 1000": many,
		"plan one namespace at a time, with -n other":                              {manifest("File", demo, "other", "a")},
		"has no metadata.name":                          {manifest("File", demo, "", "")},
		"the files have no object of a Provider's kind": {manifest("Secret", "v1", "", "s")},
	} {
		_, err := s.CreatePlan(t.Context(), &Request{Objects: objects})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestContradictoryRequests(t *testing.T) {
	for want, r := range map[string]Request{
		"--replace and --destroy are mutually exclusive":      {Mode: v1alpha1.PlanDestroy, Replace: []string{"a/b"}},
		"--replace and --refresh-only are mutually exclusive": {Mode: v1alpha1.PlanRefreshOnly, Replace: []string{"a/b"}},
		"--selector a in": {Selector: "a in"},
		"but a plan takes at most 1000: use --selector": {Targets: make([]string, 1001)},
		"--exclude x/y: no Provider serve":              {Exclude: []string{"x/y"}},
	} {
		_, err := newTestSession(t).CreatePlan(t.Context(), &r)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestShowLargePlanInPages(t *testing.T) {
	s := newTestSession(t)
	var all []change.Change
	for i := range 1203 {
		all = append(all, created(fmt.Sprintf("f%04d", i)))
	}
	all = append(all, change.Change{Address: change.Address{Type: "demo_network", Name: "same"}, Action: change.NoOp})
	s.changes["p"] = all
	s.put(plansAt, "p", `{"status":{"phase":"Planned","digest":"`+digest+`","summary":{"create":1203,"noOp":1}}}`)
	for _, format := range []string{"json", "yaml"} {
		s.out.b.Reset()
		s.pages = 0
		if err := s.Show(t.Context(), "p", Filter{}, format); err != nil {
			t.Fatal(err)
		}
		var got struct {
			Plan    v1alpha1.Plan
			Changes []change.Change
		}
		text, err := yaml.YAMLToJSON([]byte(s.out.String()))
		if err == nil {
			err = json.Unmarshal(text, &got)
		}
		if err != nil || got.Plan.Status.Digest != digest || got.Plan.Kind != "Plan" || len(got.Changes) != 1203 || got.Changes[1202].Address.Name != "f1202" || s.pages != 2 {
			t.Errorf("%s: %v: %d changes of %s on %d pages", format, err, len(got.Changes), got.Plan.Name, s.pages)
		}
	}
	s.out.b.Reset()
	if err := s.Show(t.Context(), "plan/p", Filter{Actions: []string{"no-op"}}, "wide"); err != nil {
		t.Fatal(err)
	}
	if got, want := s.out.String(), "ACTION   RESOURCE               WHY\nno-op    demo_network[\"same\"]   \n"; got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	for _, format := range []string{"json", "yaml"} {
		s.out.b.Reset()
		if err := s.Show(t.Context(), "plans/p", Filter{Actions: []string{"delete"}}, format); err != nil {
			t.Fatal(err)
		}
		if _, err := yaml.YAMLToJSON([]byte(s.out.String())); err != nil {
			t.Errorf("%s: %v: %s", format, err, s.out.String())
		}
	}
}

func TestDriftOutput(t *testing.T) {
	s := newTestSession(t)
	s.plans(`{"phase":"Planned","digest":"DIGEST","summary":{"drift":1}}`, drifted("b"))
	found, err := s.Drift(t.Context(), &Request{Name: "d"}, PlanOptions{})
	if err != nil || !found {
		t.Fatalf("%v %v", found, err)
	}
	contains(t, s.out.String(), `demo_file["b"] has changed`, "updates the state of 1 resources", "atoll apply --refresh -n shop", "atoll approve d -n shop\n  atoll apply d -n shop")
	if got := s.at(plansAt, "d", "spec", "mode"); got != `"RefreshOnly"` {
		t.Error(got)
	}

	s.plans(`{"phase":"Planned","digest":"DIGEST","summary":{"noOp":1}}`)
	s.out.b.Reset()
	if found, err = s.Drift(t.Context(), &Request{}, PlanOptions{}); err != nil || found {
		t.Fatalf("%v %v", found, err)
	}
	contains(t, s.out.String(), "No changes")
}

func TestServerErrors(t *testing.T) {
	for want, status := range map[string]*metav1.Status{
		"this server does not serve":          {Code: 404, Reason: metav1.StatusReasonNotFound, Message: "the server could not find the requested resource", Details: &metav1.StatusDetails{Name: "p"}},
		"namespace shop not found: create it": {Code: 404, Reason: metav1.StatusReasonNotFound, Message: `namespaces "shop" not found`, Details: &metav1.StatusDetails{Kind: "namespaces", Name: "shop"}},
		"create a plan: permission denied": {Code: 403, Reason: metav1.StatusReasonForbidden, Details: &metav1.StatusDetails{},
			Message: `plans.infra.atoll.dev is forbidden: User "eve" cannot create resource "plans" in API group "infra.atoll.dev" in the namespace "shop"`},
		"choose another name":                                  {Code: 409, Reason: metav1.StatusReasonAlreadyExists, Message: `plans.infra.atoll.dev "p" already exists`},
		"authentication failed":                                {Code: 401, Reason: metav1.StatusReasonUnauthorized, Message: "Unauthorized"},
		"pass fewer files":                                     {Code: 413, Reason: metav1.StatusReasonRequestEntityTooLarge, Message: "Request entity too large"},
		"create a plan: admission: it is Sunday":               {Code: 403, Reason: metav1.StatusReasonForbidden, Message: "admission: it is Sunday"},
		"create a plan: spec.rollback: there is no such apply": {Code: 422, Reason: metav1.StatusReasonInvalid, Message: "spec.rollback: there is no such apply"},
	} {
		s := newTestSession(t)
		s.before = func(fakeapi.Request) *metav1.Status { return status }
		if _, err := s.CreatePlan(t.Context(), &Request{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	s := newTestSession(t)
	err := s.Show(t.Context(), "p", Filter{}, "")
	if err == nil || err.Error() != "plan p not found in namespace shop: choose another namespace with -n" {
		t.Error(err)
	}
	for i := range 7 {
		s.put(plansAt, fmt.Sprint("plan-", i), "{}")
	}
	err = s.Show(t.Context(), "p", Filter{}, "")
	if err == nil || !strings.Contains(err.Error(), "the latest of 7 are plan-6, plan-5, plan-4, plan-3, plan-2;") {
		t.Error(err)
	}
	if err = s.Show(t.Context(), "pod/p", Filter{}, ""); err == nil || !strings.Contains(err.Error(), "plan/NAME or apply/NAME") {
		t.Error(err)
	}
	if err = s.Show(t.Context(), "p", Filter{Actions: []string{"craete"}}, ""); err == nil || !strings.Contains(err.Error(), "create, update, replace") {
		t.Error(err)
	}
	if err := s.Show(t.Context(), "plan-1", Filter{}, ""); err != nil {
		t.Error(err)
	}
	contains(t, s.out.String(), "Plan plan-1 is not ready: Pending")
	if errors.Is(err, ErrIncomplete) {
		t.Error(err)
	}
}
