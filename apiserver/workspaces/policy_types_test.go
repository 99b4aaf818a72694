package workspaces

import (
	"fmt"
	"strings"
	"testing"
)

const validatingPolicies = registration + "/validatingadmissionpolicies"

func validatingPolicy(name, group, resource, expression, more string) string {
	return fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"matchConstraints":{"resourceRules":[{"apiGroups":[%q],"apiVersions":["v1"],"operations":["CREATE"],"resources":[%q]}]},
"validations":[{"expression":%q}%s]}}`, name, group, resource, expression, more)
}

// TestPolicyTypes: the controllers check the types in the expressions of policies, for built-in and for custom kinds, once for each change. Another workspace
// does not change.
func TestPolicyTypes(t *testing.T) {
	s := newStage(t, "a", "b")
	marks := &marked{}
	s.awake["a"].OnDue(marks.mark)
	s.create("a", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition("colour"))
	s.eventually("widgets are served", func() bool {
		return s.as(admin, "GET", "/clusters/a/apis/example.com/v1/widgets", "").code == 200
	})
	s.finish("a")
	marks.count()
	for _, path := range []string{"a", "b"} {
		s.create(path, validatingPolicies, validatingPolicy("wrong", "apps", "deployments", "object.spec.replicas > '3'", ""))
	}
	if marks.count() == 0 {
		t.Error("a new policy leaves nothing")
	}
	s.create("a", validatingPolicies, validatingPolicy("right", "apps", "deployments", "object.spec.replicas > 3", ""))
	s.create("a", validatingPolicies, validatingPolicy("custom", "example.com", "widgets", "object.spec.colour == 'red'", `,{"expression":"object.spec.size == 1"}`))
	s.finish("a")
	if n := marks.count(); n > 2 { // the two policies: what the controllers write leaves nothing
		t.Errorf("marked %d times", n)
	}
	status := func(path, name string) string {
		t.Helper()
		return fmt.Sprint(s.want(200, s.as(admin, "GET", "/clusters/"+path+validatingPolicies+"/"+name, "")).field(t, "status"))
	}
	for name, want := range map[string]string{
		"wrong": "no matching overload for '_>_' applied to '(int, string)'", "right": "map[observedGeneration:1 typeChecking:map[]]", "custom": "undefined field 'size'",
	} {
		if got := status("a", name); !strings.Contains(got, want) || !strings.Contains(got, "observedGeneration:1") {
			t.Errorf("%s: %s", name, got)
		}
	}
	if got := status("a", "custom"); !strings.Contains(got, "spec.validations[1].expression") || strings.Contains(got, "spec.validations[0]") {
		t.Error(got)
	}
	if got := status("b", "wrong"); strings.Contains(got, "typeChecking") {
		t.Errorf("the controllers of a wrote to b: %s", got)
	}

	s.want(200, s.merge("/clusters/a"+validatingPolicies+"/wrong", `{"spec":{"validations":[{"expression":"object.spec.replicas > 3"}]}}`))
	if marks.count() == 0 {
		t.Error("a changed policy leaves nothing")
	}
	s.finish("a")
	if got := status("a", "wrong"); got != "map[observedGeneration:2 typeChecking:map[]]" {
		t.Error(got)
	}
}
