package infra

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/change"
)

const manifests = `
kind: Network
metadata: {name: main}
spec: {name: main, cidr: 10.0.0.0/16}
---
kind: Server
metadata: {name: web}
spec:
  name: web
  zone: a
  network_id: ${demo_network["main"].id}
---
kind: File
metadata: {name: notes}
spec:
  name: notes
  content: 'web is in ${demo_server["web"].zone}, by ${demo_server.web.network_id}'
---
kind: Secret
metadata: {name: key}
spec:
  name: key
  secret: {secretKeyRef: {name: credentials, key: token}}
`

// TestResourceLifecycle plans and creates resources, corrects drift, replaces a resource and destroys
// all in reverse order. No plan contains a secret.
func TestResourceLifecycle(t *testing.T) {
	world := t.TempDir()
	w := newHarness(t, providerOf(t, "demo", map[string]cty.Value{"directory": cty.StringVal(world), "refuse_in_use": cty.True}))
	w.secrets["credentials/token"] = "top-secret"
	w.applyObjects(manifests)
	ctx := t.Context()

	first := w.plan(ctx, change.Normal)
	want(t, first.text, "Plan: 4 to add, 0 to change, 0 to destroy.", "(known after apply)", "(sensitive value)")
	w.applyPlan(ctx, first)
	content, err := os.ReadFile(w.attribute("File", "notes", "path"))
	if err != nil {
		t.Fatal(err)
	}
	if got, is := string(content), "web is in a, by "+w.attribute("Network", "main", "id"); got != is {
		t.Errorf("the file contains %q, want %q", got, is)
	}

	again := w.plan(ctx, change.Normal)
	if !again.contents.Counts.Empty() {
		t.Errorf("the second plan has changes:\n%s", again.text)
	}
	if again.contents.Digest == first.contents.Digest {
		t.Error("two plans have the same digest")
	}

	// Someone changes the file outside of Atoll.
	if err := os.WriteFile(w.attribute("File", "notes", "path"), []byte("drifted"), 0o600); err != nil {
		t.Fatal(err)
	}
	drift := w.plan(ctx, change.Normal)
	if drift.contents.Counts.Drift != 1 || drift.contents.Counts.Update != 1 {
		t.Errorf("plan after drift:\n%s", drift.text)
	}
	w.applyPlan(ctx, drift)

	// The zone of a server cannot be changed in place. The file that refers to it follows.
	w.applyObjects(strings.Replace(manifests, "zone: a", "zone: b", 1))
	replace := w.plan(ctx, change.Normal)
	want(t, replace.text, "# forces replacement", "1 to add", "1 to destroy")
	w.applyPlan(ctx, replace)
	if again := w.plan(ctx, change.Normal); !again.contents.Counts.Empty() {
		t.Errorf("the plan after the replacement has changes:\n%s", again.text)
	}

	// Deleted objects are destroyed, each after the resources that refer to it. The provider refuses any
	// other order.
	w.delete("File", "notes")
	w.delete("Server", "web")
	w.delete("Network", "main")
	w.delete("Secret", "key")
	last := w.plan(ctx, change.Normal)
	want(t, last.text, "0 to add, 0 to change, 4 to destroy")
	w.applyPlan(ctx, last)
	if len(w.states) > 0 {
		t.Errorf("%d states remain", len(w.states))
	}
	if files, err := os.ReadDir(filepath.Join(world, "files")); err == nil && len(files) > 0 {
		t.Errorf("%d files remain", len(files))
	}
	for _, p := range []*planned{first, again, drift, replace, last} {
		if strings.Contains(p.text, "top-secret") {
			t.Error("a plan contains a secret")
		}
	}
}

func want(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("missing %q in:\n%s", part, text)
		}
	}
}

// attribute returns an attribute of a resource, as status.attributes shows it.
func (w *harness) attribute(kind, object, name string) string {
	w.t.Helper()
	s := w.states[w.ref(w.kinds[kind], object)]
	if s == nil {
		w.t.Fatalf("no state of %s %s", kind, object)
	}
	text, _ := s.kind.Attributes(s.state.Value, s.Sensitive)[name].(string)
	return text
}
