package apply_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/playground/postgres"

	"github.com/atoll-dev/atoll/test/programs"
)

// resourcesFile has the twenty objects that README.md applies.
var resourcesFile = filepath.Join("..", "..", "examples", "infra", "resources.yaml")

// expect fails the test unless a command ended with this exit code, and its output contains all of these texts.
func (a answer) expect(t *testing.T, code int, wanted ...string) {
	t.Helper()
	output := a.Out + a.Errs
	if a.Code != code {
		t.Fatalf("exit code %d, want %d:\n%s", a.Code, code, output)
	}
	for _, want := range wanted {
		if !strings.Contains(output, want) {
			t.Fatalf("the output lacks %q:\n%s", want, output)
		}
	}
}

// createPlan creates a plan and returns its name.
func (w *environment) createPlan(t *testing.T, args ...string) string {
	t.Helper()
	return strings.TrimPrefix(strings.TrimSpace(w.mustAtoll(t, append([]string{"plan", "-o", "name"}, args...)...)), "plan.infra.atoll.dev/")
}

// file returns the content of a file of the demo provider.
func (w *environment) file(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(w.world, "files", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// gateway returns the attribute gateway of a network, which the provider generates.
func (w *environment) gateway(t *testing.T, network string) string {
	t.Helper()
	return w.kubectl(t, "get", "network.demo.providers.atoll.dev", network, "-o", "jsonpath={.status.attributes.gateway}")
}

// countResources returns the number of resources in the world.
func (w *environment) countResources(t *testing.T) int {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(w.world, "objects", "*", "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// TestWritePlanApply does what README.md shows of infrastructure, from the installation of a provider to the removal of
// all objects.
func TestWritePlanApply(t *testing.T) {
	t.Parallel()
	w := startEnvironment(t)
	w.kubectl(t, "apply", "-f", resourcesFile)
	if made := w.countResources(t); made != 0 {
		t.Fatalf("%d resources were created without an apply", made)
	}

	w.atoll(t, "plan", "--detailed-exitcode").expect(t, 2, "Plan: 20 to add, 0 to change, 0 to destroy.", `demo_file["front-index"] will be created`, "(known after apply)")
	plan := w.createPlan(t)
	w.atoll(t, "apply", plan).expect(t, 1, "plan "+plan+" is not approved", "atoll approve "+plan)
	w.atoll(t, "approve", plan, "--yes", "--reason", "ticket 1234").expect(t, 0, "approval.infra.atoll.dev/"+plan)
	w.atoll(t, "apply", plan).expect(t, 0, "Apply complete! Resources: 20 added, 0 changed, 0 destroyed.")
	if made := w.countResources(t); made != 20 {
		t.Fatalf("%d resources were created, want 20", made)
	}
	if got, want := w.file(t, "back-routes"), "10.2.0.0/16 by "+w.gateway(t, "back")+"\nafter front, whose gateway is "+w.gateway(t, "front")+"\n"; got != want {
		t.Fatalf("back-routes is\n%q, want\n%q", got, want)
	}
	w.atoll(t, "apply", plan).expect(t, 1, "was already applied")
	if got := w.kubectl(t, "get", "file.demo.providers.atoll.dev", "front-owner", "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`); got != "True" {
		t.Fatalf("Ready is %q", got)
	}
	w.atoll(t, "plan", "--detailed-exitcode").expect(t, 0, "No changes")
	w.atoll(t, "plan", "--refresh", "--detailed-exitcode").expect(t, 0, "No changes")

	t.Log("drift")
	ops := filepath.Join(w.world, "files", "ops-gateway")
	if err := os.WriteFile(ops, []byte("changed by hand\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.atoll(t, "drift", "--detailed-exitcode").expect(t, 2, `demo_file["ops-gateway"] has changed`, "changed by hand", "atoll apply --refresh")
	programs.Eventually(t, time.Minute, "the object has the condition Drifted", func(ctx context.Context) error {
		got, err := w.tryKubectl(ctx, "", "get", "file.demo.providers.atoll.dev", "ops-gateway", "-o", `jsonpath={.status.conditions[?(@.type=="Drifted")].status}`)
		if err == nil && got != "True" {
			return fmt.Errorf("Drifted is %q", got)
		}
		return err
	})
	w.atoll(t, "apply", "--refresh", "--auto-approve").expect(t, 0, "Apply complete! Resources: 0 added, 1 changed, 0 destroyed.")
	if got := w.file(t, "ops-gateway"); got != w.gateway(t, "ops") {
		t.Fatalf("ops-gateway is %q after the correction of its drift", got)
	}
	w.atoll(t, "drift", "--detailed-exitcode").expect(t, 0, "No changes")

	t.Log("a change that forces replacement, and what depends on it")
	before := w.file(t, "front-owner")
	w.kubectl(t, "patch", "network.demo.providers.atoll.dev", "front", "--type=merge", "-p", `{"spec":{"cidr":"10.8.0.0/16"}}`)
	w.atoll(t, "plan", "--detailed-exitcode").expect(t, 2, `demo_network["front"] must be replaced`, "# forces replacement", "1 to destroy")
	w.atoll(t, "apply", "--auto-approve").expect(t, 0, "1 added", "1 destroyed")
	id := w.kubectl(t, "get", "network.demo.providers.atoll.dev", "front", "-o", "jsonpath={.status.attributes.id}")
	if got := w.file(t, "front-owner"); got == before || !strings.Contains(got, id) {
		t.Fatalf("front-owner is %q after the network was replaced by %s", got, id)
	}

	t.Log("the server is killed while it is idle")
	w.server.Kill()
	w.start(t)
	w.atoll(t, "plan", "--refresh", "--detailed-exitcode").expect(t, 0, "No changes")

	w.destroyAll(t)
}

// destroyAll destroys all resources, deletes the objects and the provider, and checks that nothing remains.
func (w *environment) destroyAll(t *testing.T) {
	t.Helper()
	w.atoll(t, "destroy", "--auto-approve").expect(t, 0, "Apply complete!", "20 destroyed")
	files, err := os.ReadDir(filepath.Join(w.world, "files"))
	if err != nil {
		t.Fatal(err)
	}
	if made := w.countResources(t); made != 0 || len(files) != 0 {
		t.Fatalf("%d resources and %d files remain", made, len(files))
	}
	if left := w.kubectl(t, "get", "resourcestates", "-A", "-o", "name"); left != "" {
		t.Fatalf("states remain:\n%s", left)
	}
	w.kubectl(t, "delete", "-f", resourcesFile, "--timeout=60s")
	w.kubectl(t, "delete", "provider/demo", "--timeout=60s")
	programs.Eventually(t, time.Minute, "the kinds are no longer served", func(ctx context.Context) error {
		out, err := w.tryKubectl(ctx, "", "api-resources", "--api-group=demo.providers.atoll.dev", "-o", "name", "--cached=false")
		if err == nil && out != "" {
			return fmt.Errorf("still served: %s", strings.Fields(out))
		}
		return err
	})
}

// TestTwoServersApply runs two servers on one PostgreSQL. One server creates a plan, the other approves it, and the one
// that applies it is killed. The other continues, and no resource is created twice.
func TestTwoServersApply(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	db, err := postgres.Start(ctx, postgres.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Stop() })
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(rand.Text()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	first, second := newEnvironment(t, "--token-file", token), newEnvironment(t, "--token-file", token)
	first.config.Datastore, second.config.Datastore = db.URL(), db.URL()
	second.world = first.world
	first.start(t)
	first.install(t)
	first.atoll(t, "plan").expect(t, 0, "No resources of a Provider's kind found") // makes the first server the leader
	second.start(t)
	second.kubectl(t, "wait", "--for=condition=Served", "--timeout=60s", "provider/demo")

	const count, atOnce = 12, 2
	var manifest strings.Builder
	for i := range count {
		fmt.Fprintf(&manifest, "{apiVersion: demo.providers.atoll.dev/v1, kind: Slow, metadata: {name: s%d}, spec: {name: s%d, create: 1s}}\n---\n", i, i)
	}
	first.apply(t, manifest.String())
	plan := first.createPlan(t)
	second.atoll(t, "show", plan).expect(t, 0, fmt.Sprintf("%d to add", count))
	second.mustAtoll(t, "approve", plan, "--yes")
	apply := strings.TrimPrefix(strings.TrimSpace(second.mustAtoll(t, "apply", plan, "--parallelism", fmt.Sprint(atOnce), "--wait=false", "-o", "name")), "apply.infra.atoll.dev/")
	programs.Eventually(t, time.Minute, "some resources are created", func(context.Context) error {
		if made := first.countResources(t); made < 3 {
			return fmt.Errorf("%d are created", made)
		}
		return nil
	})
	first.server.Kill()
	second.atoll(t, "show", apply).expect(t, 0, "Apply "+apply+" of plan "+plan)
	programs.Eventually(t, 2*time.Minute, "the other server completes the apply", func(ctx context.Context) error {
		phase, err := second.tryKubectl(ctx, "", "get", "apply", apply, "-o", "jsonpath={.status.phase} {.status.succeeded}")
		if err == nil && !strings.HasPrefix(phase, "Failed") && !strings.HasPrefix(phase, "Succeeded") {
			return fmt.Errorf("phase %s", phase)
		}
		return err
	})
	// Only the provider knows the outcome of the calls that the killed server had begun.
	a := second.atoll(t, "show", apply)
	t.Logf("%s%s", a.Out, a.Errs)
	if made := second.countResources(t); made < count-atOnce {
		t.Fatalf("%d of %d resources are created, at most %d may be uncertain", made, count, atOnce)
	}
	second.resolveUncertain(t, atOnce)
	second.atoll(t, "apply", "--refresh", "--auto-approve").expect(t, 0)
	if made := second.countResources(t); made != count {
		t.Fatalf("%d resources are created, want %d", made, count)
	}
	second.atoll(t, "plan", "--refresh", "--detailed-exitcode").expect(t, 0, "No changes")
}

// resolveUncertain follows the advice of a plan for resources that an apply may have created, at most
// atMost: it imports those that exist, and deletes the states of the others.
func (w *environment) resolveUncertain(t *testing.T, atMost int) {
	t.Helper()
	var p v1alpha1.Plan
	name := strings.TrimSpace(w.atoll(t, "plan", "--refresh", "-o", "name").Out) // its exit code reports that some resources could not be planned
	if err := json.Unmarshal([]byte(w.kubectl(t, "get", name, "-o", "json")), &p); err != nil {
		t.Fatal(err)
	}
	if len(p.Status.Problems) > atMost {
		t.Fatalf("%d resources are uncertain, with %d in parallel: %+v", len(p.Status.Problems), atMost, p.Status.Problems)
	}
	is, err := w.listWorld()
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range p.Status.Problems {
		if !strings.Contains(problem.Message, "ended without an answer from the provider") {
			t.Fatalf("%s: %s", problem.Address, problem.Message)
		}
		kind, name, _ := strings.Cut(problem.Address, "/")
		all := is[strings.TrimSuffix(kind, ".demo.providers.atoll.dev")+"/"+name]
		switch len(all) {
		case 0:
			_, quoted, _ := strings.Cut(problem.Message, "delete ResourceState ")
			state, err := strconv.QuotedPrefix(quoted)
			if err == nil {
				state, err = strconv.Unquote(state)
			}
			if err != nil {
				t.Fatalf("%q names no state", problem.Message)
			}
			w.kubectl(t, "delete", "resourcestate", state)
		case 1:
			w.kubectl(t, "annotate", kind, name, "infra.atoll.dev/import-id="+all[0].ID)
		default:
			t.Fatalf("%s exists too often: %+v", problem.Address, all)
		}
		t.Logf("%s exists: %t", problem.Address, len(all) == 1)
	}
}
