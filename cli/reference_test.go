package cli_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	fleet "github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	infra "github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/cli"
)

const referencePage = "../docs/reference.md"

// TestReference compares the page of kinds and flags with the kinds and commands. With -update it writes the
// flags.
func TestReference(t *testing.T) {
	content, err := os.ReadFile(referencePage)
	if err != nil {
		t.Fatal(err)
	}
	const end = "-run TestReference -update`.\n"
	head, flags, found := strings.Cut(string(content), end)
	if !found {
		t.Fatalf("%s has no line that ends with %q", referencePage, end)
	}
	want := referenceFlags()
	if *update {
		if err := os.WriteFile(referencePage, []byte(head+end+want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if flags != want {
		t.Errorf("the flags in %s are not those of the commands (go test ./cli -run TestReference -update writes them)", referencePage)
	}
	for _, list := range []func() ([][]byte, error){fleet.CRDs, infra.CRDs} {
		crds, err := list()
		if err != nil {
			t.Fatal(err)
		}
		for _, content := range crds {
			var crd struct {
				Spec struct {
					Group string
					Names struct{ Kind string }
				}
			}
			if err := yaml.Unmarshal(content, &crd); err != nil {
				t.Fatal(err)
			}
			if !hasKind(head, crd.Spec.Names.Kind, crd.Spec.Group) {
				t.Errorf("%s lacks the kind %s of %s", referencePage, crd.Spec.Names.Kind, crd.Spec.Group)
			}
		}
	}
}

// hasKind reports whether a row of the table has a kind.
func hasKind(page, kind, group string) bool {
	for row := range strings.Lines(page) {
		cells := strings.Split(row, "|")
		if len(cells) < 3 || strings.TrimSpace(cells[2]) != group {
			continue
		}
		for _, name := range strings.Split(cells[1], ",") {
			if name, _, _ := strings.Cut(strings.TrimSpace(name), " "); name == kind {
				return true
			}
		}
	}
	return false
}

// referenceFlags returns a table of flags for each command.
func referenceFlags() string {
	var out strings.Builder
	var add func(cmd *cobra.Command)
	add = func(cmd *cobra.Command) {
		var rows strings.Builder
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Hidden || f.Name == "help" {
				return
			}
			name := "--" + f.Name
			if f.Shorthand != "" {
				name = "-" + f.Shorthand + ", " + name
			}
			value, usage := pflag.UnquoteUsage(f)
			if value != "" {
				name += " " + value
			}
			initial := ""
			if f.DefValue != "" && f.DefValue != "[]" && f.DefValue != "false" {
				initial = "`" + f.DefValue + "`"
			}
			fmt.Fprintf(&rows, "| `%s` | %s | %s |\n", name, initial, strings.ReplaceAll(usage, "|", "\\|"))
		})
		if rows.Len() > 0 && !cmd.Hidden {
			fmt.Fprintf(&out, "\n### %s\n\n%s.\n\n| flag | default | |\n| --- | --- | --- |\n%s", cmd.CommandPath(), cmd.Short, rows.String())
		}
		for _, sub := range cmd.Commands() {
			add(sub)
		}
	}
	atoll := cli.New("atoll")
	add(atoll)
	// The default is another one for users other than root.
	dataDir := "/var/lib/atoll"
	if server, _, err := atoll.Find([]string{"server"}); err == nil {
		dataDir = server.Flags().Lookup("data-dir").DefValue
	}
	return strings.ReplaceAll(out.String(), dataDir, "/var/lib/atoll")
}
