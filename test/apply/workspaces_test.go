package apply_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/atoll-dev/atoll/test/programs"
)

// in runs kubectl in a workspace.
func (w *environment) in(ctx context.Context, workspace, stdin string, args ...string) (string, error) {
	config, err := clientcmd.BuildConfigFromFlags("", w.server.Kubeconfig)
	if err != nil {
		return "", err
	}
	if workspace != "root" {
		args = append(args, "--server="+config.Host+"/clusters/"+workspace)
	}
	return w.tryKubectl(ctx, stdin, args...)
}

// mustIn runs kubectl in a workspace, which must succeed.
func (w *environment) mustIn(t *testing.T, workspace, stdin string, args ...string) string {
	t.Helper()
	out, err := w.in(t.Context(), workspace, stdin, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// refuses runs kubectl in a workspace, which must fail with all of these texts.
func (w *environment) refuses(t *testing.T, workspace, stdin string, args []string, wanted ...string) {
	t.Helper()
	out, err := w.in(t.Context(), workspace, stdin, args...)
	if err == nil {
		t.Errorf("kubectl %s in %s was not refused: %s", strings.Join(args, " "), workspace, out)
		return
	}
	for _, want := range wanted {
		if !strings.Contains(out+err.Error(), want) {
			t.Errorf("kubectl %s in %s: the refusal lacks %q: %v", strings.Join(args, " "), workspace, want, err)
		}
	}
}

// evilProvider is the manifest of a provider that keeps its resources in their states alone: a provider of a workspace reaches no files.
func (w *environment) evilProvider(more string) string {
	p := w.mirror.Evil
	return fmt.Sprintf("apiVersion: infra.atoll.dev/v1alpha1\nkind: Provider\nmetadata: {name: evil}\nspec:\n  source: %s\n  version: %s\n  digests: [%q]\n%s",
		p.Source, p.Version, p.ZH, more)
}

func valued(name, value string) string {
	return fmt.Sprintf("{apiVersion: evil.providers.atoll.dev/v1, kind: Thing, metadata: {name: %s, namespace: default}, spec: {name: %s, value: %s}}", name, name, value)
}

// TestProvidersOfWorkspaces: workspaces and the root have Providers of the same name at once, each with its own kinds, objects, plans and states.
// A workspace runs only what the administrator of the server permits, and neither it nor its copies lose or share resources.
func TestProvidersOfWorkspaces(t *testing.T) {
	t.Parallel()
	w := newEnvironment(t, "--workspace-provider", "providers.test/atoll/evil")
	w.start(t)
	mirror := fmt.Sprintf("  origin: {filesystemMirror: {path: %q}}\n", w.mirror.Packed)
	all := []string{"root", "a", "a:inner"}
	programs.Eventually(t, time.Minute, "workspaces can be created", func(ctx context.Context) error {
		_, err := w.in(ctx, "root", "{apiVersion: tenancy.atoll.dev/v1alpha1, kind: Workspace, metadata: {name: a}}\n---\n{apiVersion: tenancy.atoll.dev/v1alpha1, kind: Workspace, metadata: {name: b}}", "apply", "-f", "-")
		return err
	})
	programs.Eventually(t, time.Minute, "a workspace in a workspace can be created", func(ctx context.Context) error {
		_, err := w.in(ctx, "a", "{apiVersion: tenancy.atoll.dev/v1alpha1, kind: Workspace, metadata: {name: inner}}", "apply", "-f", "-")
		return err
	})

	t.Log("permission")
	apply := []string{"apply", "-f", "-"}
	demo := w.mirror.Manifests("default", w.granted, w.world)
	w.refuses(t, "b", strings.SplitN(demo, "---\n", 2)[0], apply, "spec.source", "--workspace-provider", "spec.files")
	w.refuses(t, "b", w.evilProvider(mirror+"  containment: None\n"), apply, "spec.containment")
	w.refuses(t, "b", w.evilProvider("  origin: {networkMirror: {url: 'https://192.0.2.1/'}}\n"), apply, "spec.origin")
	w.refuses(t, "b", w.evilProvider("  origin: {development: {path: /bin/sh}}\n"), apply, "spec.origin")
	w.refuses(t, "b", "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: things.evil.providers.atoll.dev}, spec: {group: evil.providers.atoll.dev, scope: Namespaced, "+
		"names: {plural: things, kind: Thing}, versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]}}", apply, "those of Providers")

	w.atoll(t, "plan", "-w", "b").expect(t, 1, "the workspace has no Providers")

	t.Log("the same names at once")
	for _, workspace := range all {
		programs.Eventually(t, time.Minute, "the provider is created", func(ctx context.Context) error {
			_, err := w.in(ctx, workspace, w.evilProvider(mirror), apply...)
			return err
		})
	}
	for _, workspace := range all {
		programs.Eventually(t, time.Minute, "the provider is served in "+workspace, func(ctx context.Context) error {
			if _, err := w.in(ctx, workspace, "", "wait", "--for=condition=Served", "--timeout=20s", "provider/evil"); err != nil {
				return err
			}
			_, err := w.in(ctx, workspace, valued("same", "of-"+strings.ReplaceAll(workspace, ":", "-")), apply...)
			return err
		})
	}
	w.refuses(t, "a", "{apiVersion: evil.providers.atoll.dev/v1, kind: Thing, metadata: {name: bad}, spec: {value: x}}", apply, "spec.name")
	for _, workspace := range all {
		plan := strings.TrimPrefix(strings.TrimSpace(w.mustAtoll(t, "plan", "-w", workspace, "-o", "name")), "plan.infra.atoll.dev/")
		w.atoll(t, "show", plan, "-w", workspace).expect(t, 0, "Plan: 1 to add, 0 to change, 0 to destroy.", "of-"+strings.ReplaceAll(workspace, ":", "-"))
		w.atoll(t, "apply", plan, "-w", workspace).expect(t, 1, "is not approved")
		w.atoll(t, "approve", plan, "-w", workspace, "--yes").expect(t, 0)
		w.atoll(t, "apply", plan, "-w", workspace).expect(t, 0, "Apply complete! Resources: 1 added, 0 changed, 0 destroyed.")
		w.atoll(t, "plan", "-w", workspace, "--refresh", "--detailed-exitcode").expect(t, 0, "No changes")
	}
	ids := map[string]bool{}
	for _, workspace := range all {
		ids[w.mustIn(t, workspace, "", "get", "thing", "same", "-o", "jsonpath={.status.attributes.id}")] = true
		if states := strings.Fields(w.mustIn(t, workspace, "", "get", "resourcestates", "-A", "-o", "name")); len(states) != 1 {
			t.Errorf("%s has the states %v, want that of its own resource", workspace, states)
		}
	}
	if len(ids) != len(all) || ids[""] {
		t.Errorf("the resources have the IDs %v", ids)
	}

	t.Log("isolation")
	w.refuses(t, "b", "", []string{"get", "things.evil.providers.atoll.dev"}, "the server doesn't have a resource type")
	for _, kind := range []string{"providers", "plans", "applies", "resourcestates", "planchanges"} {
		if out := w.mustIn(t, "b", "", "get", kind+".infra.atoll.dev", "-A", "-o", "name"); out != "" {
			t.Errorf("workspace b has %s: %s", kind, out)
		}
	}
	if groups := w.mustIn(t, "a", "", "api-versions"); !strings.Contains(groups, "evil.providers.atoll.dev/v1") {
		t.Errorf("the groups of workspace a are\n%s", groups)
	}
	if out := w.mustIn(t, "a", "", "explain", "things.spec.value"); !strings.Contains(out, "FIELD: value") {
		t.Errorf("kubectl explain: %s", out)
	}

	t.Log("nothing loses its record, and nothing is changed twice")
	w.refuses(t, "root", "", []string{"delete", "workspace", "a"}, "workspace a has resources", "thing/same", "atoll destroy -w a")
	w.refuses(t, "a", "", []string{"delete", "workspace", "inner"}, "workspace a:inner has resources")
	w.mustIn(t, "a", "", "create", "namespace", "free")
	w.mustIn(t, "a", "", "delete", "namespace", "free", "--timeout=60s")
	w.refuses(t, "root", "{apiVersion: tenancy.atoll.dev/v1alpha1, kind: Workspace, metadata: {name: copied}, spec: {source: {name: a}}}", []string{"create", "-f", "-"}, "the source has Providers")

	t.Log("a server that is killed")
	w.mustIn(t, "a", valued("same", "changed"), apply...)
	w.server.Kill()
	w.start(t)
	w.atoll(t, "apply", "-w", "a", "--auto-approve").expect(t, 0, "Apply complete! Resources: 0 added, 1 changed, 0 destroyed.")
	w.atoll(t, "plan", "-w", "a:inner", "--detailed-exitcode").expect(t, 0, "No changes")
	w.atoll(t, "plan", "--detailed-exitcode").expect(t, 0, "No changes")

	t.Log("the permission is withdrawn")
	w.server.Kill()
	flags := w.config.Flags
	w.config.Flags = flags[:len(flags)-2]
	w.start(t)
	programs.Eventually(t, time.Minute, "the provider is not installed any more", func(ctx context.Context) error {
		out, err := w.in(ctx, "a", "", "get", "provider", "evil", "-o", `jsonpath={.status.conditions[?(@.type=="Installed")].reason}`)
		if err == nil && out != "NotAllowed" {
			err = fmt.Errorf("the reason is %q", out)
		}
		return err
	})
	w.mustIn(t, "a", "", "get", "thing", "same")
	w.mustIn(t, "a", valued("same", "again"), apply...)
	w.atoll(t, "plan", "-w", "a").expect(t, 1, "--workspace-provider")
	w.server.Kill()
	w.config.Flags = flags
	w.start(t)

	t.Log("the end")
	for _, workspace := range []string{"a:inner", "a"} {
		w.atoll(t, "destroy", "-w", workspace, "--auto-approve").expect(t, 0, "1 destroyed")
		w.mustIn(t, workspace, "", "delete", "things", "--all", "--timeout=60s")
	}
	w.mustIn(t, "root", "", "delete", "workspace", "a", "--timeout=60s")
	if left, err := filepath.Glob(filepath.Join(w.config.Dir, "providers", "w", "*")); err != nil || len(left) > 0 {
		t.Errorf("directories of deleted workspaces are left: %v, %v", left, err)
	}
	if _, err := os.Stat(filepath.Join(w.config.Dir, "providers", "store")); err != nil {
		t.Errorf("the packages of the root: %v", err)
	}
	w.atoll(t, "plan", "--detailed-exitcode").expect(t, 0, "No changes")
}
