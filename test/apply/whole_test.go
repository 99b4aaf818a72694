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

// resourcesFile has the twenty objects that README.md writes.
var resourcesFile = filepath.Join("..", "..", "examples", "infra", "resources.yaml")

// expect fails the test unless a command ended with a code, and said all of what was wanted.
func (a answer) expect(t *testing.T, code int, wanted ...string) {
	t.Helper()
	said := a.Out + a.Errs
	if a.Code != code {
		t.Fatalf("exit code %d, want %d:\n%s", a.Code, code, said)
	}
	for _, want := range wanted {
		if !strings.Contains(said, want) {
			t.Fatalf("it does not say %q:\n%s", want, said)
		}
	}
}

// plans makes a plan, and gives its name.
func (w *works) plans(t *testing.T, args ...string) string {
	t.Helper()
	return strings.TrimPrefix(strings.TrimSpace(w.does(t, append([]string{"plan", "-o", "name"}, args...)...)), "plan.infra.atoll.dev/")
}

// file is what is in a file that the demo provider made.
func (w *works) file(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(w.world, "files", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// gateway is what the provider has made up for a network.
func (w *works) gateway(t *testing.T, network string) string {
	t.Helper()
	return w.kubectl(t, "get", "network.demo.providers.atoll.dev", network, "-o", "jsonpath={.status.attributes.gateway}")
}

// made counts what there is in the world.
func (w *works) made(t *testing.T) int {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(w.world, "objects", "*", "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// What README.md promises of infrastructure, from a provider in a mirror to nothing left.
func TestWritePlanApply(t *testing.T) {
	t.Parallel()
	w := startWorks(t)
	w.kubectl(t, "apply", "-f", resourcesFile)
	if made := w.made(t); made != 0 {
		t.Fatalf("%d things were made by writing objects alone", made)
	}

	w.atoll(t, "plan", "--detailed-exitcode").expect(t, 2, "Plan: 20 to add, 0 to change, 0 to destroy.", `demo_file["front-index"] will be created`, "(known after apply)")
	plan := w.plans(t)
	w.atoll(t, "apply", plan).expect(t, 1, "plan "+plan+" is not approved", "atoll approve "+plan)
	w.atoll(t, "approve", plan, "--yes", "--reason", "ticket 1234").expect(t, 0, "approval.infra.atoll.dev/"+plan)
	w.atoll(t, "apply", plan).expect(t, 0, "Apply complete! Resources: 20 added, 0 changed, 0 destroyed.")
	if made := w.made(t); made != 20 {
		t.Fatalf("%d things were made, and not 20", made)
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
	programs.Eventually(t, time.Minute, "the object says so", func(ctx context.Context) error {
		got, err := w.tryKubectl(ctx, "", "get", "file.demo.providers.atoll.dev", "ops-gateway", "-o", `jsonpath={.status.conditions[?(@.type=="Drifted")].status}`)
		if err == nil && got != "True" {
			return fmt.Errorf("Drifted is %q", got)
		}
		return err
	})
	w.atoll(t, "apply", "--refresh", "--auto-approve").expect(t, 0, "Apply complete! Resources: 0 added, 1 changed, 0 destroyed.")
	if got := w.file(t, "ops-gateway"); got != w.gateway(t, "ops") {
		t.Fatalf("ops-gateway is %q after the drift was put right", got)
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

	t.Log("a server that is killed while nothing happens")
	w.server.Kill()
	w.start(t)
	w.atoll(t, "plan", "--refresh", "--detailed-exitcode").expect(t, 0, "No changes")

	w.leavesNothing(t)
}

// leavesNothing destroys all, deletes the objects and the provider, and looks whether anything is left.
func (w *works) leavesNothing(t *testing.T) {
	t.Helper()
	w.atoll(t, "destroy", "--auto-approve").expect(t, 0, "Apply complete!", "20 destroyed")
	files, err := os.ReadDir(filepath.Join(w.world, "files"))
	if err != nil {
		t.Fatal(err)
	}
	if made := w.made(t); made != 0 || len(files) != 0 {
		t.Fatalf("%d things and %d files are left", made, len(files))
	}
	if left := w.kubectl(t, "get", "resourcestates", "-A", "-o", "name"); left != "" {
		t.Fatalf("states are left:\n%s", left)
	}
	w.kubectl(t, "delete", "-f", resourcesFile, "--timeout=60s")
	w.kubectl(t, "delete", "provider/demo", "--timeout=60s")
	programs.Eventually(t, time.Minute, "the kinds are served no more", func(ctx context.Context) error {
		out, err := w.tryKubectl(ctx, "", "api-resources", "--api-group=demo.providers.atoll.dev", "-o", "name", "--cached=false")
		if err == nil && out != "" {
			return fmt.Errorf("there is %s", strings.Fields(out))
		}
		return err
	})
}

// Two servers on one PostgreSQL: a plan is made by one, approved at the other, and the one that carries it out is
// killed in the middle. The other goes on, and nothing is made twice.
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
	first, second := newWorks(t, "--token-file", token), newWorks(t, "--token-file", token)
	first.config.Datastore, second.config.Datastore = db.URL(), db.URL()
	second.world = first.world
	first.start(t)
	first.install(t)
	first.atoll(t, "plan").expect(t, 0, "No resources of a Provider's kind found") // so it is the first that leads
	second.start(t)
	second.kubectl(t, "wait", "--for=condition=Served", "--timeout=60s", "provider/demo")

	const count, atOnce = 12, 2
	var manifest strings.Builder
	for i := range count {
		fmt.Fprintf(&manifest, "{apiVersion: demo.providers.atoll.dev/v1, kind: Slow, metadata: {name: s%d}, spec: {name: s%d, create: 1s}}\n---\n", i, i)
	}
	first.apply(t, manifest.String())
	plan := first.plans(t)
	second.atoll(t, "show", plan).expect(t, 0, fmt.Sprintf("%d to add", count))
	second.does(t, "approve", plan, "--yes")
	apply := strings.TrimPrefix(strings.TrimSpace(second.does(t, "apply", plan, "--parallelism", fmt.Sprint(atOnce), "--wait=false", "-o", "name")), "apply.infra.atoll.dev/")
	programs.Eventually(t, time.Minute, "some are made", func(context.Context) error {
		if made := first.made(t); made < 3 {
			return fmt.Errorf("%d are", made)
		}
		return nil
	})
	first.server.Kill()
	second.atoll(t, "show", apply).expect(t, 0, "Apply "+apply+" of plan "+plan)
	programs.Eventually(t, 2*time.Minute, "the other server finishes it", func(ctx context.Context) error {
		phase, err := second.tryKubectl(ctx, "", "get", "apply", apply, "-o", "jsonpath={.status.phase} {.status.succeeded}")
		if err == nil && !strings.HasPrefix(phase, "Failed") && !strings.HasPrefix(phase, "Succeeded") {
			return fmt.Errorf("it is %s", phase)
		}
		return err
	})
	// What the killed server had begun, only its provider could have told.
	a := second.atoll(t, "show", apply)
	t.Logf("%s%s", a.Out, a.Errs)
	if made := second.made(t); made < count-atOnce {
		t.Fatalf("%d of %d are made, and %d may be uncertain", made, count, atOnce)
	}
	second.lookFor(t, atOnce)
	second.atoll(t, "apply", "--refresh", "--auto-approve").expect(t, 0)
	if made := second.made(t); made != count {
		t.Fatalf("%d are made, and not %d", made, count)
	}
	second.atoll(t, "plan", "--refresh", "--detailed-exitcode").expect(t, 0, "No changes")
}

// lookFor does what a plan advises for what an apply may have created, which is no more than so many resources: it says
// which the world has, and that the others are not there.
func (w *works) lookFor(t *testing.T, atMost int) {
	t.Helper()
	var p v1alpha1.Plan
	name := strings.TrimSpace(w.atoll(t, "plan", "--refresh", "-o", "name").Out) // it says by its exit code that not all could be planned
	if err := json.Unmarshal([]byte(w.kubectl(t, "get", name, "-o", "json")), &p); err != nil {
		t.Fatal(err)
	}
	if len(p.Status.Problems) > atMost {
		t.Fatalf("%d may be created, of %d at a time: %+v", len(p.Status.Problems), atMost, p.Status.Problems)
	}
	is, err := w.look()
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
			t.Fatalf("%s is there so often: %+v", problem.Address, all)
		}
		t.Logf("%s is there: %t", problem.Address, len(all) == 1)
	}
}
