package apply_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRollback restores the objects and resources of an earlier apply: it reverts changes, creates deleted
// objects again and deletes later ones. The objects are written as the user of the Apply.
func TestRollback(t *testing.T) {
	t.Parallel()
	w := sharedServer(t).namespace(t, "rollback")
	file := func(name, content string) string {
		return `{"apiVersion":"demo.providers.atoll.dev/v1","kind":"File","metadata":{"name":"` + name + `"},"spec":{"name":"` + name + `","content":` + content + `}}`
	}
	content := func(name string) string {
		text, err := os.ReadFile(filepath.Join(w.world, "files", name))
		if err != nil {
			return "none"
		}
		return string(text)
	}
	var first string
	for i, what := range []func(){
		func() {
			w.apply(t, file("a", `"one"`))
			w.apply(t, file("b", `"two"`))
			w.apply(t, file("c", `"of ${demo_file[\"a\"].content}"`))
		},
		func() {
			w.apply(t, file("a", `"changed"`))
			w.kubectl(t, "delete", "file.demo.providers.atoll.dev/b", "--wait=false")
			w.apply(t, file("d", `"later"`))
		},
		func() { w.apply(t, file("a", `"changed again"`)) },
	} {
		what()
		w.mustAtoll(t, "apply", "--auto-approve")
		if i == 0 {
			first = strings.TrimSpace(w.kubectl(t, "get", "applies", "-o", "jsonpath={.items[0].metadata.name}"))
		}
	}
	// This change is never applied.
	w.apply(t, file("c", `"never"`))
	if got := []string{content("a"), content("b"), content("c"), content("d")}; strings.Join(got, ",") != "changed again,none,of changed again,later" {
		t.Fatalf("before the rollback, the files contain %q", got)
	}
	history := w.mustAtoll(t, "rollback")
	if !strings.Contains(history, first) || strings.Count(history, "Succeeded") != 3 || !strings.Contains(history, "sha256:") {
		t.Errorf("the history is:\n%s", history)
	}

	shown := w.mustAtoll(t, "rollback", first, "--name", "back")
	for _, want := range []string{`demo_file["a"] will be updated`, `demo_file["b"] will be created`, `demo_file["d"] will be destroyed`} {
		if !strings.Contains(shown, want) {
			t.Errorf("the plan lacks %q:\n%s", want, shown)
		}
	}
	if content("a") != "changed again" || !strings.Contains(w.kubectl(t, "get", "file.demo.providers.atoll.dev/a", "-o", "yaml"), "changed again") {
		t.Error("the plan changed something")
	}
	w.mustAtoll(t, "approve", "back", "--yes")
	w.mustAtoll(t, "apply", "back")
	if got := []string{content("a"), content("b"), content("c"), content("d")}; strings.Join(got, ",") != "one,two,of one,none" {
		t.Errorf("after the rollback, the files contain %q", got)
	}
	var a struct {
		Metadata struct{ ManagedFields []struct{ Manager string } }
		Spec     map[string]any
	}
	if err := json.Unmarshal([]byte(w.kubectl(t, "get", "file.demo.providers.atoll.dev/a", "-o", "json", "--show-managed-fields")), &a); err != nil {
		t.Fatal(err)
	}
	managers := ""
	for _, m := range a.Metadata.ManagedFields {
		managers += m.Manager + " "
	}
	if a.Spec["content"] != "one" || !strings.Contains(managers, "atoll-rollback") {
		t.Errorf("the object has spec %v and managers %s", a.Spec, managers)
	}
	if names := w.kubectl(t, "get", "files.demo.providers.atoll.dev", "-o", "jsonpath={.items[*].metadata.name}"); names != "a b c" {
		t.Errorf("the objects are %s", names)
	}
	if a := w.atoll(t, "plan", "--refresh", "--detailed-exitcode"); a.Code != 0 {
		t.Errorf("after the rollback, a plan exits with %d:\n%s%s", a.Code, a.Out, a.Errs)
	}
	if a := w.atoll(t, "rollback", first, "--detailed-exitcode"); a.Code != 0 {
		t.Errorf("a second rollback to the same apply exits with %d:\n%s%s", a.Code, a.Out, a.Errs)
	}
	if a := w.atoll(t, "rollback", "none"); a.Code != 1 || !strings.Contains(a.Errs, "apply none not found") {
		t.Errorf("a rollback to a missing apply prints\n%s", a.Errs)
	}
	w.kubectl(t, "delete", "plan", "back")
	if a := w.atoll(t, "rollback", first); a.Code != 1 || !strings.Contains(a.Errs, "its plan back was deleted: choose a later Apply") {
		t.Errorf("without the plan of a later apply, a rollback prints\n%s%s", a.Out, a.Errs)
	}
}

// TestRollbackNeedsWritePermission: users with permission to plan and apply, but not to write the objects, cannot roll back.
func TestRollbackNeedsWritePermission(t *testing.T) {
	t.Parallel()
	w := sharedServer(t).namespace(t, "rights-of-rollback")
	for _, content := range []string{"one", "two"} {
		w.apply(t, `{"apiVersion":"demo.providers.atoll.dev/v1","kind":"File","metadata":{"name":"a"},"spec":{"name":"a","content":"`+content+`"}}`)
		w.mustAtoll(t, "apply", "--auto-approve")
	}
	names := strings.Fields(w.kubectl(t, "get", "applies", "--sort-by=.status.startTime", "-o", "jsonpath={.items[*].metadata.name}"))
	w.mustAtoll(t, "rollback", names[0], "--name", "back")
	w.mustAtoll(t, "approve", "back", "--yes")
	w.apply(t, `apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: applier}
rules:
- {apiGroups: [infra.atoll.dev], resources: [plans, applies], verbs: [get, list, watch, create]}
- {apiGroups: [demo.providers.atoll.dev], resources: [files], verbs: [get, list]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: applier}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: applier}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: ann}]
`)
	digest := w.kubectl(t, "get", "plan", "back", "-o", "jsonpath={.status.digest}")
	ann := w.as(t, "rights-of-rollback", "ann")
	ann.may(t, "create", "applies.infra.atoll.dev")
	if _, err := ann.tryKubectl(t.Context(), `{"apiVersion":"infra.atoll.dev/v1alpha1","kind":"Apply","metadata":{"name":"anns"},"spec":{"plan":"back","digest":"`+digest+`"}}`,
		"create", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	w.kubectl(t, "wait", "--for=jsonpath={.status.phase}=Failed", "--timeout=30s", "apply/anns")
	if why := w.kubectl(t, "get", "apply", "anns", "-o", "jsonpath={.status.conditions[0].message}"); !strings.Contains(why, "No object was restored") || !strings.Contains(why, "ann") {
		t.Errorf("message %q", why)
	}
	if text, _ := os.ReadFile(filepath.Join(w.world, "files", "a")); string(text) != "two" {
		t.Errorf("the file contains %q", text)
	}
}
