package interpret

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestDocs checks that the table in docs/kinds.md matches the built-in table.
func TestDocs(t *testing.T) {
	const file = "../../docs/kinds.md"
	const begin, end = "<!-- table of kinds: written by go test ./fleet/interpret -run TestDocs -update -->\n", "<!-- end of the table -->"
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(page), begin)
	table, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no table between its marks", file)
	}
	want := tableOfKinds()
	if *update {
		if err := os.WriteFile(file, []byte(before+begin+want+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if table != want {
		t.Errorf("%s has\n%s\nwant\n%s(run go test -update to write it)", file, table, want)
	}
}

func tableOfKinds() string {
	var out strings.Builder
	out.WriteString("| kind | runs | needs | goes along with | left to the member | health by | status |\n| --- | --- | --- | --- | --- | --- | --- |\n")
	for _, k := range Kinds() {
		runs := "follows"
		switch {
		case k.Single:
			runs = "Single, always"
		case k.Divided && k.DefaultMode != Divided:
			runs = string(k.DefaultMode) + "; can be Divided"
		case k.Placed:
			runs = string(k.DefaultMode)
		case k.KeepsData:
			runs = "follows, keeps data"
		}
		health := k.Descriptions.Health
		if k.health == nil {
			health = "it exists"
		}
		status := k.Descriptions.Status
		if k.aggregate == nil {
			status = "none"
		}
		name := k.Kind
		if k.Group != "" {
			name += "<br>" + k.Group
		}
		fmt.Fprintf(&out, "| %s | %s | %s | %s | %s | %s | %s |\n", name, runs, or(k.Descriptions.Needs), or(goesAlong(k)), or(k.Descriptions.Left), health, status)
	}
	return out.String()
}

func or(s string) string {
	if s == "" {
		return "–"
	}
	return s
}

// TestDescriptionsMatch: a row has a description exactly where it has a function.
func TestDescriptionsMatch(t *testing.T) {
	for _, k := range Kinds() {
		for name, pair := range map[string][2]bool{
			"needs":   {k.needs != nil || k.template != nil, k.Descriptions.Needs != ""},
			"follows": {k.follows != nil, k.Descriptions.Follows != ""},
			"health":  {k.health != nil, k.Descriptions.Health != ""},
			"status":  {k.aggregate != nil, k.Descriptions.Status != ""},
		} {
			if pair[0] != pair[1] {
				t.Errorf("%s: has %s: %v, but has a description: %v", k.Kind, name, pair[0], pair[1])
			}
		}
	}
}

// goesAlong describes what a kind follows.
func goesAlong(k KindInfo) string {
	workloads := "the workloads of its namespace"
	if k.ClusterScoped {
		workloads = "all workloads"
	}
	switch {
	case !k.Configuration:
		return k.Descriptions.Follows
	case k.Descriptions.Follows == "":
		return workloads
	}
	return k.Descriptions.Follows + "; " + workloads
}
