package infra

import (
	"fmt"
	"strings"
	"testing"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/contract"
	"github.com/atoll-dev/atoll/infra/schema"
)

func warningsText(w warnings) string { return fmt.Sprint(w.list()) }

func TestWarnings(t *testing.T) {
	old := contract.Diagnostic{Warning: true, Summary: "Deprecated", Detail: "write copies", Attribute: cty.GetAttrPath("count")}
	var w warnings
	w.add("Thing.demo/b", contract.Diagnostics{old, old, {Summary: "an error is none"}}, schema.Mask{})
	w.add("Thing.demo/c", contract.Diagnostics{old, {Warning: true, Summary: "Slow"}}, schema.Mask{})
	w.add("Thing.demo/a", contract.Diagnostics{old}, schema.Mask{})
	w.add("Thing.demo/0", nil, schema.Mask{})
	const want = "[{Thing.demo/a spec.count Deprecated: write copies (and 2 more)} {Thing.demo/c  Slow}]"
	if got := warningsText(w); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestPlanWarnings checks that warnings are deduplicated and masked, and do not stop the plan.
func TestPlanWarnings(t *testing.T) {
	p := newPlanTest(t)
	p.env.validate = func(cty.Value) contract.Diagnostics {
		return contract.Diagnostics{{Warning: true, Summary: "Careful", Detail: "for all of you", Attribute: cty.GetAttrPath("content")}}
	}
	p.write(`b: {"content": "one"}`, `a: {"content": "two"}`)
	planned := p.want(PlanOptions{}, `create demo_thing["a"]`, `create demo_thing["b"]`)
	const want = "[{Thing.demo.providers.atoll.dev/a spec.content Careful: for all of you (and 1 more)}]"
	if got := fmt.Sprint(planned.Warnings); got != want || len(planned.Problems) > 0 {
		t.Errorf("got %s, want %s; %v", got, want, planned.Problems)
	}
}

func TestApplyWarnings(t *testing.T) {
	i := newDatastore(t)
	i.secrets["creds/password"] = "tell-nobody"
	i.writeSpecs(map[string]string{"db": `{"labels":{"name":"db"},"password":{"secretKeyRef":{"name":"creds","key":"password"}}}`})
	i.cloud.warns = contract.Diagnostics{{Warning: true, Summary: "Careful", Detail: "with tell-nobody"}}
	got := i.apply(t, i.plan(t, "one", PlanOptions{}))
	text := fmt.Sprint(got.Warnings)
	if got.Succeeded != 1 || !strings.Contains(text, "Thing.demo.providers.atoll.dev/db  Careful: with (sensitive)") || strings.Contains(text, "tell-nobody") {
		t.Errorf("%+v: got %s", got, text)
	}
}
