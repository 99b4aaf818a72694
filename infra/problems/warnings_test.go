package problems

import (
	"fmt"
	"testing"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/providerapi"
	"github.com/atoll-dev/atoll/infra/schema"
)

func warningsText(w Warnings) string { return fmt.Sprint(w.List()) }

func TestWarnings(t *testing.T) {
	old := providerapi.Diagnostic{Warning: true, Summary: "Deprecated", Detail: "write copies", Attribute: cty.GetAttrPath("count")}
	var w Warnings
	w.Add("Thing.demo/b", providerapi.Diagnostics{old, old, {Summary: "an error is none"}}, schema.Mask{})
	w.Add("Thing.demo/c", providerapi.Diagnostics{old, {Warning: true, Summary: "Slow"}}, schema.Mask{})
	w.Add("Thing.demo/a", providerapi.Diagnostics{old}, schema.Mask{})
	w.Add("Thing.demo/0", nil, schema.Mask{})
	const want = "[{Thing.demo/a spec.count Deprecated: write copies (and 2 more)} {Thing.demo/c  Slow}]"
	if got := warningsText(w); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
