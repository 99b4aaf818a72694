package cli

import (
	"strings"
	"testing"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/scheduler"
)

// TestPolicyArgument: `atoll approve` knows policies by all names of their kinds, and everything else as a plan.
func TestPolicyArgument(t *testing.T) {
	for arg, want := range map[string]string{
		"placement/web":                  "Placement web",
		"placements/web":                 "Placement web",
		"Placement/web":                  "Placement web",
		"pl/web":                         "Placement web",
		"placements.fleet.atoll.dev/web": "Placement web",
		"placements.v1alpha1.fleet.atoll.dev/web": "Placement web",
		"clusterplacement/spread":                 "ClusterPlacement spread",
		"cpl/spread":                              "ClusterPlacement spread",
		"placements.example.com/web":              "",
		"placement/":                              "",
		"placement":                               "",
		"plan/plan-x7k2f":                         "",
		"plan-x7k2f":                              "",
	} {
		kind, name, is := policyArgument(arg)
		if got := strings.TrimSpace(kind + " " + name); is != (want != "") || is && got != want {
			t.Errorf("%s is %q (%t), want %q", arg, got, is, want)
		}
	}
}

// TestPreviewOfEditThatWaits: the preview lists the moves at once and the later ones, and the reason why the edit waits.
func TestPreviewOfEditThatWaits(t *testing.T) {
	edit := scheduler.Edit{Kind: "Placement", Namespace: "shop", Name: "web", Generation: 2, Objects: 1, Reason: v1alpha1.ReasonAwaitsApproval, Message: "it waits",
		Moves: []scheduler.Move{{Kind: "Deployment", Namespace: "shop", Name: "web", Cluster: "west", Before: "-", After: "2", Why: "Ready and schedulable"}}}
	var out strings.Builder
	if err := printPreview(&out, "table", nil, []scheduler.Edit{edit}); err != nil {
		t.Fatal(err)
	}
	const want = `Nothing would move at once.

Placement shop/web would not be in effect for all objects at once (AwaitsApproval):
it waits.

Once it is in effect for all of them:
OBJECT                CLUSTER   BEFORE   AFTER   WHY
Deployment shop/web   west      -        2       Ready and schedulable
`
	if out.String() != want {
		t.Errorf("it prints\n%s\nwant\n%s", out.String(), want)
	}
}
