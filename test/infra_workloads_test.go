package test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/test/providers"
)

const plannedManifest = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: planned, namespace: byplan}
spec:
  replicas: 3
  selector: {matchLabels: {app: planned}}
  template:
    metadata: {labels: {app: planned}}
    spec:
      containers: [{name: web, image: nginx}]
---
apiVersion: demo.providers.atoll.dev/v1
kind: File
metadata: {name: count, namespace: byplan}
spec:
  name: count
  content: ${k8s.Deployment["planned"].status.readyReplicas} are ready
`

// In a namespace with a SyncPolicy for workloads, a workload changes in its clusters only when a plan is applied. Plans
// order workloads and infrastructure together.
func TestWorkloadsChangeByPlans(t *testing.T) {
	f := whole(t)
	t.Parallel()
	demo := providers.Build(t)
	mirror := filepath.Join(f.dir, mirrorDir)
	if err := os.CopyFS(mirror, os.DirFS(demo.Packed)); err != nil {
		t.Fatal(err)
	}
	world := providers.World(t, t.TempDir())
	f.kubectl(t, "atoll", "create", "namespace", "byplan")
	t.Cleanup(func() {
		for _, what := range [][]string{{"delete", "syncpolicy", "-n", "byplan", "--all"}, {"delete", "files", "-n", "byplan", "--all", "--wait=false"}} {
			_, _ = f.tryKubectl(context.Background(), "atoll", "", what...)
		}
		_, _ = f.run(context.Background(), "atoll", f.Kubeconfig(), "", "apply", "-n", "byplan", "--auto-approve")
		_, _ = f.tryKubectl(context.Background(), "atoll", "", "delete", "namespace", "byplan", "--wait=false")
		_, _ = f.tryKubectl(context.Background(), "atoll", "", "delete", "provider", "demo")
	})
	f.apply(t, strings.ReplaceAll(demo.Manifests("byplan", world, world), demo.Packed, mirror))
	f.apply(t, `{apiVersion: infra.atoll.dev/v1alpha1, kind: SyncPolicy, metadata: {name: manual, namespace: byplan}, spec: {mode: Manual, appliesTo: [Workloads]}}`)
	eventually(t, time.Minute, "the provider is served, and the policy followed", func(ctx context.Context) error {
		if _, err := f.tryKubectl(ctx, "atoll", "", "wait", "-n", "byplan", "--for=condition=Valid", "--timeout=5s", "syncpolicy/manual"); err != nil {
			return err
		}
		_, err := f.tryKubectl(ctx, "atoll", "", "wait", "--for=condition=Served", "--timeout=5s", "provider/demo")
		return err
	})

	// Written, and nowhere; a plan has it, beside the file that takes a value from it.
	f.apply(t, plannedManifest)
	out := f.atoll(t, "plan", "-n", "byplan")
	for _, want := range []string{`k8s["apps/v1"].Deployment["planned"] will be placed in clusters`, "(no cluster → ", `"east"`, `= "nginx"`,
		`demo_file["count"] will be created`, "(known after apply)", "1 to add, 0 to change, 0 to destroy, 1 to place in clusters"} {
		if !strings.Contains(out, want) {
			t.Errorf("plan prints no %q:\n%s", want, out)
		}
	}
	for _, m := range members {
		if out, err := f.tryKubectl(t.Context(), m, "", "get", "deployment", "-n", "byplan", "-o", "name"); err == nil && out != "" {
			t.Errorf("%s has %s before a plan was applied", m, out)
		}
	}

	// Approved and applied, it is in the clusters, and the file after it.
	var name string
	for _, line := range strings.Split(out, "\n") {
		if rest, is := strings.CutPrefix(line, "Plan plan-"); is {
			name, _, _ = strings.Cut("plan-"+rest, ",")
		}
	}
	f.atoll(t, "approve", name, "-n", "byplan", "--yes")
	if out := f.atoll(t, "apply", name, "-n", "byplan"); !strings.Contains(out, "1 added, 0 changed, 0 destroyed, 1 changed in clusters") {
		t.Errorf("apply prints:\n%s", out)
	}
	image := func(m string) string {
		out, err := f.tryKubectl(t.Context(), m, "", "get", "deployment", "planned", "-n", "byplan", "-o", "jsonpath={.spec.template.spec.containers[0].image}")
		if err != nil {
			return err.Error()
		}
		return out
	}
	for _, m := range members {
		if is := image(m); is != "nginx" {
			t.Errorf("%s has %s when the apply has ended", m, is)
		}
	}
	if made := contentsOf(t, world); !strings.Contains(made, "3 are ready") {
		t.Errorf("the files say %q", made)
	}

	// An edit waits, and the plan says what of it is another.
	f.kubectl(t, "atoll", "set", "image", "deployment/planned", "web=nginx:1.29", "-n", "byplan")
	out = f.atoll(t, "plan", "-n", "byplan")
	for _, want := range []string{`k8s["apps/v1"].Deployment["planned"] will be changed in clusters`, `"nginx" -> "nginx:1.29"`, `~ content = "3 are ready" -> (known after apply)`, "0 to add, 1 to change, 0 to destroy, 1 to place in clusters"} {
		if !strings.Contains(out, want) {
			t.Errorf("plan prints no %q:\n%s", want, out)
		}
	}
	for _, m := range members {
		if is := image(m); is != "nginx" {
			t.Errorf("%s has %s before a plan was applied", m, is)
		}
	}
	f.atoll(t, "apply", "-n", "byplan", "--auto-approve")
	for _, m := range members {
		if is := image(m); is != "nginx:1.29" {
			t.Errorf("%s has %s when the apply has ended", m, is)
		}
	}

	// Deleted, it stays until a plan of that is applied, which is one that destroys.
	f.kubectl(t, "atoll", "delete", "files", "count", "-n", "byplan", "--wait=false")
	f.atoll(t, "apply", "-n", "byplan", "--auto-approve")
	f.kubectl(t, "atoll", "delete", "deployment", "planned", "-n", "byplan", "--wait=false")
	out = f.atoll(t, "plan", "-n", "byplan")
	for _, want := range []string{`k8s["apps/v1"].Deployment["planned"] will be destroyed`, "it was deleted", "1 to destroy"} {
		if !strings.Contains(out, want) {
			t.Errorf("plan prints no %q:\n%s", want, out)
		}
	}

	// Without the policy, what waited happens.
	f.kubectl(t, "atoll", "delete", "syncpolicy", "manual", "-n", "byplan")
	eventually(t, settle, "it has left its clusters", func(ctx context.Context) error {
		for _, m := range members {
			if out, err := f.tryKubectl(ctx, m, "", "get", "deployment", "-n", "byplan", "-o", "name"); err != nil || out != "" {
				return fmt.Errorf("%s has %q, %v", m, out, err)
			}
		}
		return nil
	})
	f.apply(t, strings.Split(plannedManifest, "---")[0])
	eventually(t, settle, "an object without the policy reaches its clusters at once", func(ctx context.Context) error {
		for _, m := range members {
			if is := image(m); is != "nginx" {
				return fmt.Errorf("%s has %s", m, is)
			}
		}
		return nil
	})
}

// contentsOf is all that is in the files of a directory.
func contentsOf(t *testing.T, dir string) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		all.Write(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}
