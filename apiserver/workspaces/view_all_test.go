package workspaces

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
)

const (
	ofAll    = "/clusters/exporter/apiexports/widgets/clusters/*/apis/example.com/v1/widgets"
	exported = "widgets"
)

// export binds workspaces to an export of the widgets of the first workspace, and returns the chain.
func (s *stage) export(consumers ...string) *chain {
	s.t.Helper()
	s.want(201, s.as(admin, "POST", "/clusters/exporter"+definitionsPath, definition("colour")))
	s.bind("exporter", sets.New(exported), consumers...)
	c, err := s.server.built()
	if err != nil {
		s.t.Fatal(err)
	}
	c.exports = func(context.Context, *Workspace, string) ([]schema.GroupResource, error) {
		return []schema.GroupResource{{Group: "example.com", Resource: exported}}, nil
	}
	s.eventually("widgets are served", func() bool { return s.as(admin, "GET", "/clusters/exporter"+widgetsPath, "").code == 200 })
	from := s.awake["exporter"]
	for _, path := range consumers {
		b := &s.bindings[s.awake[path]][0]
		b.Export, b.ExporterUID, b.Resources = exported, from.uid, []string{exported}
		if err := s.server.RecordConsumer(s.t.Context(), from, exported, s.awake[path], path, "binding"); err != nil {
			s.t.Fatal(err)
		}
		s.want(201, s.as(admin, "POST", "/clusters/"+path+widgetsPath, widget("w", "of "+path)))
	}
	return c
}

// TestViewUncertain: a consumer that cannot be opened fails a list over all. An answer without it would look as if its objects were deleted.
// Its entry is removed only when it is known to be gone for good.
func TestViewUncertain(t *testing.T) {
	s := newStage(t, "exporter", "a", "b")
	c := s.export("a", "b")
	has := func(want ...string) {
		t.Helper()
		body := s.want(200, s.as(admin, "GET", ofAll, "")).body
		if strings.Count(body, `"colour":"of`) != len(want) {
			t.Errorf("want %v: %s", want, body)
		}
		for _, path := range want {
			if !strings.Contains(body, fmt.Sprintf(`"colour":"of %s"`, path)) || !strings.Contains(body, fmt.Sprintf(`%q:%q`, WorkspaceAnnotation, path)) {
				t.Errorf("want %s: %s", path, body)
			}
		}
	}
	entries := func(want int) {
		t.Helper()
		if all, err := recordedConsumers(t.Context(), s.awake["exporter"], exported); err != nil || len(all) != want {
			t.Errorf("entries %v, %v", all, err)
		}
	}
	has("a", "b")
	open, fails := c.open, error(nil)
	c.open = func(ctx context.Context, path string) (context.Context, *Workspace, func(), error) {
		if path == "b" && fails != nil {
			return nil, nil, nil, fails
		}
		return open(ctx, path)
	}
	fails = errors.New("the database is away")
	unavailable := func() {
		t.Helper()
		if body := s.want(503, s.as(admin, "GET", ofAll, "")).body; strings.Contains(body, "database") || !strings.Contains(body, "retry") {
			t.Error(body)
		}
	}
	unavailable()
	fails = ErrNotFound // which may be because this server does not know it yet
	unavailable()
	entries(2)
	c.confirm = func(context.Context, string, string) error { return ErrNotFound }
	has("a")
	entries(1)
	s.bindings[s.awake["a"]][0].Deleting = true
	has()
	entries(1)
	s.want(404, s.as(admin, "GET", strings.Replace(ofAll, "*", "a", 1), ""))
	s.bindings[s.awake["a"]][0].Deleting = false
	s.bindings[s.awake["a"]][0].Export = "another"
	has()
	s.want(404, s.as(admin, "GET", strings.Replace(ofAll, "*", "a", 1), ""))
}

// TestViewAudit: the audit events of views are those of the exporter, and have the consumer.
func TestViewAudit(t *testing.T) {
	backend := &events{}
	s := newStage(t)
	config := s.server.config
	config.AuditBackend, config.AuditPolicy = backend, everything{}
	var err error
	if s.server, err = New(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	s.open("exporter")
	s.open("a")
	s.export("a")
	s.want(200, s.as(admin, "GET", ofAll, ""))
	s.want(201, s.as(admin, "POST", "/clusters/exporter/apiexports/widgets/clusters/a"+widgetsPath, widget("x", "x")))
	found := map[string]bool{}
	for _, e := range backend.complete() {
		found[fmt.Sprint(e.Verb, " ", e.RequestURI, " in ", e.Annotations[WorkspaceAnnotation], " of ", e.Annotations[ConsumerAnnotation])] = true
	}
	for _, want := range []string{"list /apis/example.com/v1/widgets in exporter of *", "create " + widgetsPath + " in exporter of a"} {
		if !found[want] {
			t.Errorf("%q is not among %v", want, found)
		}
	}
}

// TestViewUser: policies of a consumer see the exporter, and not the name of its user: an account of the consumer may have that.
func TestViewUser(t *testing.T) {
	s := newStage(t, "exporter", "a")
	s.export("a")
	for resource, body := range map[string]string{
		"validatingadmissionpolicies": `{"metadata":{"name":"exporter"},"spec":{"failurePolicy":"Fail",
"matchConstraints":{"resourceRules":[{"apiGroups":["example.com"],"apiVersions":["v1"],"operations":["CREATE"],"resources":["widgets"]}]},
"validations":[{"expression":"request.userInfo.username == 'system:apiexport:exporter/widgets' && request.userInfo.groups == ['system:authenticated']"}]}}`,
		"validatingadmissionpolicybindings": `{"metadata":{"name":"exporter"},"spec":{"policyName":"exporter","validationActions":["Deny"]}}`,
	} {
		s.want(201, s.as(admin, "POST", "/clusters/a"+registration+"/"+resource, body))
	}
	s.eventually("the policy is effective", func() bool {
		return s.as(admin, "POST", "/clusters/a"+widgetsPath+"?dryRun=All", widget("mine", "red")).code == 422
	})
	s.want(201, s.as(admin, "POST", "/clusters/exporter/apiexports/widgets/clusters/a"+widgetsPath, widget("x", "red")))
}
