package infra

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/plan"
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

// What is written is planned, made, seen to be so, changed where it drifted, replaced
// where it has to be, and destroyed in the reverse order; and what is secret is in no plan.
func TestPartsFitTogether(t *testing.T) {
	world := t.TempDir()
	w := newWhole(t, providerOf(t, "demo", map[string]cty.Value{"directory": cty.StringVal(world), "refuse_in_use": cty.True}))
	w.secrets["credentials/token"] = "tell-nobody"
	w.write(manifests)
	ctx := t.Context()

	first := w.plan(ctx, plan.Normal)
	want(t, first.text, "Plan: 4 to add, 0 to change, 0 to destroy.", "(known after apply)", "(sensitive value)")
	w.apply(ctx, first)
	content, err := os.ReadFile(w.attribute("File", "notes", "path"))
	if err != nil {
		t.Fatal(err)
	}
	if got, is := string(content), "web is in a, by "+w.attribute("Network", "main", "id"); got != is {
		t.Errorf("the file says %q, want %q", got, is)
	}

	again := w.plan(ctx, plan.Normal)
	if !again.contents.Counts.Empty() {
		t.Errorf("a second plan:\n%s", again.text)
	}
	if again.contents.Digest == first.contents.Digest {
		t.Error("two plans have one digest")
	}

	// Somebody changes it behind our back.
	if err := os.WriteFile(w.attribute("File", "notes", "path"), []byte("drifted"), 0o600); err != nil {
		t.Fatal(err)
	}
	drift := w.plan(ctx, plan.Normal)
	if drift.contents.Counts.Drift != 1 || drift.contents.Counts.Update != 1 {
		t.Errorf("drift:\n%s", drift.text)
	}
	w.apply(ctx, drift)

	// A zone cannot be changed, and what is made of it follows.
	w.write(strings.Replace(manifests, "zone: a", "zone: b", 1))
	replace := w.plan(ctx, plan.Normal)
	want(t, replace.text, "# forces replacement", "1 to add", "1 to destroy")
	w.apply(ctx, replace)
	if again := w.plan(ctx, plan.Normal); !again.contents.Counts.Empty() {
		t.Errorf("after the replacement:\n%s", again.text)
	}

	// What is no longer written goes, and nothing before what was made from it: the
	// provider refuses that.
	w.delete("File", "notes")
	w.delete("Server", "web")
	w.delete("Network", "main")
	w.delete("Secret", "key")
	last := w.plan(ctx, plan.Normal)
	want(t, last.text, "0 to add, 0 to change, 4 to destroy")
	w.apply(ctx, last)
	if len(w.states) > 0 {
		t.Errorf("%d states are left", len(w.states))
	}
	if files, err := os.ReadDir(filepath.Join(world, "files")); err == nil && len(files) > 0 {
		t.Errorf("%d files are left", len(files))
	}
	for _, p := range []*planned{first, again, drift, replace, last} {
		if strings.Contains(p.text, "tell-nobody") {
			t.Error("a plan tells a secret")
		}
	}
}

func want(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("it does not say %q:\n%s", part, text)
		}
	}
}

// attribute is what status.attributes shows.
func (w *whole) attribute(kind, object, name string) string {
	w.t.Helper()
	s := w.states[w.ref(w.kinds[kind], object)]
	if s == nil {
		w.t.Fatalf("there is no %s %s", kind, object)
	}
	text, _ := s.kind.Attributes(s.state.Value, s.Sensitive)[name].(string)
	return text
}
