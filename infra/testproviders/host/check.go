package host

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-go/tftypes"
)

// Text returns an attribute that must be a string.
func Text(t testing.TB, v tftypes.Value, name string) string {
	t.Helper()
	var text string
	if err := json.Unmarshal([]byte(Get(v, name)), &text); err != nil {
		t.Fatalf("%s is %s, not text", name, Get(v, name))
	}
	return text
}

// Want compares a value with the expected one.
func Want(t testing.TB, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s is %s, want %s", what, got, want)
	}
}

// WantSays compares a provider's diagnostics with their expected beginnings, line by line.
func WantSays(t testing.TB, got []string, want ...string) {
	t.Helper()
	if !slices.EqualFunc(got, want, strings.HasPrefix) {
		t.Fatalf("the provider says\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

// WantSteady reads a thing and plans it with its own configuration. The plan must have no changes.
// It returns the thing as read.
func (h *Host) WantSteady(made Thing, config string) Thing {
	h.t.Helper()
	read, says := h.Read(made)
	WantSays(h.t, says)
	plan := h.Plan(read, config)
	WantSays(h.t, plan.Says)
	Want(h.t, "the plan with nothing to do", Show(plan.Planned), Show(read.State))
	return read
}
