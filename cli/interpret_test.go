package cli_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "update the expected results of the examples in docs")

// TestInterpretExamples checks the examples in docs with the command that the docs
// recommend to users.
func TestInterpretExamples(t *testing.T) {
	files, err := filepath.Glob("../docs/interpretations/*.objects.yaml")
	if err != nil || len(files) < 3 {
		t.Fatalf("%d examples: %v", len(files), err)
	}
	for _, objects := range files {
		name := strings.TrimSuffix(objects, ".objects.yaml")
		t.Run(filepath.Base(name), func(t *testing.T) {
			args := []string{"atoll", "interpret", "-f", objects, "--interpretation", name + ".yaml"}
			expected := name + ".expected.yaml"
			if *update {
				code, out, errs := run(t, append(args, "-o", "yaml")...)
				if code != 0 {
					t.Fatal(errs)
				}
				if err := os.WriteFile(expected, []byte(out), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if code, out, errs := run(t, append(args, "--expect", expected)...); code != 0 {
				t.Errorf("%s%s(go test -update writes it)", out, errs)
			}
		})
	}
}

const secretAndService = `
apiVersion: v1
kind: Secret
metadata: {name: key, namespace: shop, uid: u}
data: {key: c2VjcmV0}
---
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Service
  metadata: {name: web, namespace: shop}
  spec: {clusterIP: 240.0.0.1, selector: {app: web}, ports: [{port: 80}]}
- apiVersion: example.org/v1
  kind: Unheard
  metadata: {name: of}
`

func TestInterpretPrintsText(t *testing.T) {
	file := filepath.Join(t.TempDir(), "app.yaml")
	if err := os.WriteFile(file, []byte(secretAndService), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, errs := run(t, "atoll", "interpret", "-f", file, "--clusters", "north")
	if code != 0 {
		t.Fatal(errs)
	}
	for _, want := range []string{
		"v1 Secret shop/key (built in)",
		"v1 Service shop/web (built in)",
		"follows   workloads of shop with pods app=web",
		"in north",
		"- spec.clusterIP",
		"example.org/v1 Unheard of (generic)",
		"runs      Duplicated",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
	if strings.Contains(out, "c2VjcmV0") {
		t.Errorf("the output contains a Secret:\n%s", out)
	}
}

func TestInterpretCompares(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	app := write("app.yaml", "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web, namespace: shop}\nspec: {replicas: 3}\n")
	code, answers, errs := run(t, "atoll", "interpret", "-f", app, "-o", "json")
	if code != 0 {
		t.Fatal(errs)
	}
	expected := write("expected.json", answers)
	if code, out, errs := run(t, "atoll", "interpret", "-f", app, "--expect", expected); code != 0 || !strings.Contains(out, "1 objects match the expected interpretation") {
		t.Errorf("%d %s%s", code, out, errs)
	}
	customization := write("customization.yaml", `
apiVersion: fleet.atoll.dev/v1alpha1
kind: ResourceInterpretation
metadata: {name: mine}
spec: {target: {apiVersion: apps/v1, kind: Deployment}, mode: Single}
`)
	code, out, errs := run(t, "atoll", "interpret", "-f", app, "--interpretation", customization, "--expect", expected)
	if code != 1 || !strings.Contains(out, "[0].mode\n  expected  Divided\n  found     Single") || !strings.Contains(errs, "values differ from") {
		t.Errorf("%d %s%s", code, out, errs)
	}
	for line, want := range map[string]string{
		"interpret":                          "-f FILE",
		"interpret -f " + dir + "/none":      "none",
		"interpret -f " + app + " -o x":      "invalid output format",
		"interpret -f " + write("a", "x: 1"): "no apiVersion or no kind",
		"interpret -f " + write("b", "apiVersion: fleet.atoll.dev/v1alpha1\nkind: ResourceInterpretation\nmetadata: {name: bad}\nspec: {target: {apiVersion: a/v1, kind: B}, health: slf}"):   "spec.health: line 1, column 1",
		"interpret -f " + write("c", "apiVersion: fleet.atoll.dev/v1alpha1\nkind: ResourceInterpretation\nmetadata: {name: bad}\nspec: {target: {apiVersion: a/v1, kind: B}, helth: 'true'}"): "helth",
	} {
		code, _, errs := run(t, append([]string{"atoll"}, strings.Fields(line)...)...)
		if code != 1 || !strings.Contains(errs, want) {
			t.Errorf("%s: %d %q, want %q", line, code, errs, want)
		}
	}
}
