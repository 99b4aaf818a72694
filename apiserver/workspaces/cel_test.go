package workspaces

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// ten is a list in CEL. Loops over it, each in the one around it, cost as much as an author wants.
const ten = "[0,1,2,3,4,5,6,7,8,9]"

// loops is an expression that is true after 10^depth steps.
func loops(depth int) string {
	if depth == 0 {
		return "object.metadata.name != ''"
	}
	return fmt.Sprintf("%s.all(x%d, %s)", ten, depth, loops(depth-1))
}

// repeated is a list in JSON with n times the same element.
func repeated(n int, element string) string {
	return "[" + strings.TrimSuffix(strings.Repeat(element+",", n), ",") + "]"
}

// costly is a definition whose rules loop over a list within a loop over it.
func costly(group, bound string, rules int) string {
	list := repeated(rules, `{"rule":"self.all(x, self.all(y, x + y >= 0))","message":"negative"}`)
	return fmt.Sprintf(`{"metadata":{"name":"rows.%[1]s"},"spec":{"group":%[1]q,"scope":"Namespaced","names":{"plural":"rows","singular":"row","kind":"Row"},
"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"numbers":{"type":"array",%s"items":{"type":"integer"},"x-kubernetes-validations":%s}}}}}]}}`, group, bound, list)
}

func listOf(group, name string, n int) string {
	return fmt.Sprintf(`{"apiVersion":"%s/v1","kind":"Row","metadata":{"name":%q},"numbers":%s}`, group, name, repeated(n, "1"))
}

// neighbour makes requests in a workspace until it is stopped.
type neighbour struct {
	answered atomic.Int64
	stop     context.CancelFunc
	group    sync.WaitGroup
}

func (s *stage) newNeighbour(path string) *neighbour {
	ctx, stop := context.WithCancel(s.t.Context())
	n := &neighbour{stop: stop}
	s.t.Cleanup(n.end)
	n.group.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			if a := s.as(admin, "POST", "/clusters/"+path+"/api/v1/namespaces/default/configmaps", fmt.Sprintf(`{"metadata":{"name":"n%d"}}`, i)); a.code != http.StatusCreated {
				s.t.Errorf("the neighbour gets %d: %s", a.code, a.body)
				return
			}
			n.answered.Add(1)
		}
	})
	return n
}

func (n *neighbour) end() {
	n.stop()
	n.group.Wait()
}

// answers waits until the neighbour has got more answers.
func (s *stage) answers(n *neighbour, more int64) {
	s.t.Helper()
	before := n.answered.Load()
	s.eventually("the neighbour is served", func() bool { return n.answered.Load() >= before+more })
}

// TestCostOfRules: a definition whose rules could cost too much is refused, and an object whose rules cost too much. Meanwhile another
// workspace is served.
func TestCostOfRules(t *testing.T) {
	s := newStage(t, "a", "b")
	refused := s.want(422, s.as(admin, "POST", "/clusters/a"+definitionsPath, costly("unbounded.example.com", "", 1)))
	if !strings.Contains(refused.body, "estimated rule cost exceeds budget") {
		t.Error(refused.body)
	}
	s.want(201, s.as(admin, "POST", "/clusters/a"+definitionsPath, costly("example.com", `"maxItems":600,`, 16)))
	create := func(name string, n int) response {
		return s.as(admin, "POST", "/clusters/a/apis/example.com/v1/namespaces/default/rows", listOf("example.com", name, n))
	}
	s.eventually("the kind is served", func() bool { return create("short", 10).code == http.StatusCreated })
	other := s.newNeighbour("b")
	for n, why := range map[int]string{350: "running out of cost budget", 600: "call cost exceeds limit"} { // all rules together, and one alone
		if a := s.want(422, create("long", n)); !strings.Contains(a.body, why) {
			t.Errorf("%d numbers: %.300s", n, a.body)
		}
	}
	s.answers(other, 20)
	other.end()
	s.want(201, create("after", 10))
}

// policyObjects are a policy for new ConfigMaps with a label, and its binding. spec has its expressions.
func policyObjects(kind, name, spec string) map[string]string {
	return map[string]string{
		kind + "admissionpolicies": fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"failurePolicy":"Fail",%s,"matchConstraints":{"objectSelector":{"matchLabels":{"policy":%[1]q}},
"resourceRules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE"],"resources":["configmaps"]}]}}}`, name, spec),
		kind + "admissionpolicybindings": fmt.Sprintf(`{"metadata":{"name":%[1]q},"spec":{"policyName":%[1]q%s}}`, name, map[string]string{"validating": `,"validationActions":["Deny"]`}[kind]),
	}
}

// TestCostOfPolicies: the expressions of policies and of matchConditions that cost too much fail, and with them the request. Meanwhile
// another workspace is served.
func TestCostOfPolicies(t *testing.T) {
	s, h := newStage(t, "a", "b"), newHook(t)
	post := func(resource, body string) {
		t.Helper()
		s.want(201, s.as(admin, "POST", "/clusters/a"+registration+"/"+resource, body))
	}
	expression := func(depth int) string { return fmt.Sprintf(`{"expression":%q}`, loops(depth)) }
	conditions := func(n, depth int) string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf(`{"name":"c%d","expression":%q}`, i, loops(depth)))
		}
		return `"matchConditions":[` + strings.Join(all, ",") + `]`
	}
	labels := fmt.Sprintf(`Object{metadata: Object.metadata{annotations: {"by": string(%s)}}}`, loops(6))
	for _, p := range []struct{ kind, name, spec string }{
		{"validating", "one", `"validations":[` + expression(6) + `]`},
		{"validating", "all", `"validations":` + repeated(60, expression(5))},
		{"validating", "variable", fmt.Sprintf(`"variables":[{"name":"v","expression":%q}],"validations":[{"expression":"variables.v"}]`, loops(6))},
		{"validating", "condition", conditions(1, 6) + `,"validations":[{"expression":"true"}]`},
		{"validating", "conditions", conditions(60, 5) + `,"validations":[{"expression":"true"}]`},
		{"mutating", "mutation", fmt.Sprintf(`"reinvocationPolicy":"Never","mutations":[{"patchType":"ApplyConfiguration","applyConfiguration":{"expression":%q}}]`, labels)},
	} {
		for resource, body := range policyObjects(p.kind, p.name, p.spec) {
			post(resource, body)
		}
	}
	hook := h.configuration("ValidatingWebhookConfiguration", "hook", h.at("/validate"))
	post("validatingwebhookconfigurations", strings.Replace(hook, `"rules":`, conditions(60, 5)+`,"objectSelector":{"matchLabels":{"policy":"hook"}},"rules":`, 1))
	create := func(name, policy string) response {
		return s.as(admin, "POST", "/clusters/a/api/v1/namespaces/default/configmaps", fmt.Sprintf(`{"metadata":{"name":%q,"labels":{"policy":%q}}}`, name, policy))
	}
	other := s.newNeighbour("b")
	for policy, why := range map[string]string{"one": "cost", "all": "cost budget", "variable": "cost", "condition": "cost", "conditions": "cost", "mutation": "cost", "hook": "cost budget"} {
		s.eventually("the request fails by "+policy, func() bool {
			a := create("try-"+policy, policy)
			return a.code >= 400 && strings.Contains(a.body, why)
		})
	}
	s.answers(other, 20)
	other.end()
	s.want(201, create("after", "none"))
	if h.calls.Load() > 0 {
		t.Error("the webhook was called")
	}
}
