package apply_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"

	"github.com/atoll-dev/atoll/test/programs"
)

// go test ./test/apply -run TestKilledApplies -runs 100 -changes 500 -timeout 3h
var (
	infraKills   = flag.Int("runs", 2, "how often TestKilledApplies kills the server")
	infraChanges = flag.Int("changes", 60, "how many changes an apply of that test has")
	infraSeed    = flag.Uint64("seed", 0, "the seed of that test; 0 chooses one")
)

// A killTest is a server that is killed while it applies plans of random configurations.
type killTest struct {
	*environment
	t      *testing.T
	random *rand.Rand
	client dynamic.Interface
	plans  int
}

// startKillTest starts a server whose provider takes delay for each call.
func startKillTest(t *testing.T, delay time.Duration) *killTest {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("reads processes from /proc")
	}
	seed := *infraSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-seed %d", seed)
	k := &killTest{environment: startEnvironment(t), t: t, random: rand.New(rand.NewPCG(seed, 0))}
	k.apply(t, strings.Replace(k.providerObjects("default"), fmt.Sprintf("directory: %q", k.world),
		fmt.Sprintf("directory: %q, delay: %s", k.world, delay), 1))
	k.connect()
	return k
}

// connect creates a client of the running server.
func (k *killTest) connect() {
	k.t.Helper()
	rest, err := k.server.REST()
	if err == nil {
		k.client, err = dynamic.NewForConfig(rest)
	}
	if err != nil {
		k.t.Fatal(err)
	}
}

// create creates an object of Atoll's own kinds.
func (k *killTest) create(object any, kind string) {
	k.t.Helper()
	fields, err := kruntime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		k.t.Fatal(err)
	}
	u := &unstructured.Unstructured{Object: fields}
	u.SetAPIVersion(v1alpha1.Group + "/" + v1alpha1.Version)
	u.SetKind(kind)
	u.SetNamespace("default")
	resource := map[string]string{"Plan": "plans", "Approval": "approvals", "Apply": "applies"}[kind]
	if _, err := k.client.Resource(v1alpha1.PlanResource.GroupVersion().WithResource(resource)).Namespace("default").Create(k.t.Context(), u, metav1.CreateOptions{}); err != nil {
		k.t.Fatal(err)
	}
}

func fetch[T any](ctx context.Context, k *killTest, resource, name string) (*T, error) {
	u, err := k.client.Resource(v1alpha1.PlanResource.GroupVersion().WithResource(resource)).Namespace("default").Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	out := new(T)
	return out, kruntime.DefaultUnstructuredConverter.FromUnstructured(u.Object, out)
}

// plan creates a plan and waits until it is planned.
func (k *killTest) plan(spec v1alpha1.PlanSpec) *v1alpha1.Plan {
	k.t.Helper()
	k.plans++
	name := fmt.Sprintf("plan-%d", k.plans)
	k.create(&v1alpha1.Plan{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, "Plan")
	var p *v1alpha1.Plan
	programs.Eventually(k.t, 3*time.Minute, "the plan "+name, func(ctx context.Context) (err error) {
		if p, err = fetch[v1alpha1.Plan](ctx, k, "plans", name); err != nil {
			return err
		}
		switch p.Status.Phase {
		case v1alpha1.PlanFailed:
			k.t.Fatalf("plan %s failed: %+v", name, p.Status)
		case v1alpha1.PlanPlanned:
			return nil
		}
		return fmt.Errorf("phase %q", p.Status.Phase)
	})
	return p
}

// approveAndApply approves a plan and creates its Apply.
func (k *killTest) approveAndApply(p *v1alpha1.Plan) {
	k.t.Helper()
	k.create(&v1alpha1.Approval{ObjectMeta: metav1.ObjectMeta{Name: p.Name}, Spec: v1alpha1.ApprovalSpec{Plan: p.Name, Digest: p.Status.Digest}}, "Approval")
	k.create(&v1alpha1.Apply{ObjectMeta: metav1.ObjectMeta{Name: p.Name}, Spec: v1alpha1.ApplySpec{Plan: p.Name, Digest: p.Status.Digest}}, "Apply")
}

// isEnded reports whether an apply has ended.
func isEnded(a *v1alpha1.Apply) bool {
	return slices.Contains([]v1alpha1.ApplyPhase{v1alpha1.ApplySucceeded, v1alpha1.ApplyFailed, v1alpha1.ApplyCanceled}, a.Status.Phase)
}

// waitApply waits until an apply has ended.
func (k *killTest) waitApply(p *v1alpha1.Plan) *v1alpha1.Apply {
	k.t.Helper()
	var a *v1alpha1.Apply
	programs.Eventually(k.t, 5*time.Minute, "the apply "+p.Name, func(ctx context.Context) (err error) {
		if a, err = fetch[v1alpha1.Apply](ctx, k, "applies", p.Name); err == nil && !isEnded(a) {
			err = fmt.Errorf("phase %q: %+v", a.Status.Phase, a.Status)
		}
		return err
	})
	return a
}

// waitCalls waits until the provider has logged n calls after the offset from, or fails if the apply ends before.
func (k *killTest) waitCalls(from int64, n int, p *v1alpha1.Plan) {
	k.t.Helper()
	for began := time.Now(); ; time.Sleep(time.Millisecond) {
		done, _, err := k.providerCalls(from)
		if err != nil {
			k.t.Fatal(err)
		}
		if len(done) >= n {
			return
		}
		if time.Since(began) < 10*time.Second {
			continue
		}
		if a, err := fetch[v1alpha1.Apply](k.t.Context(), k, "applies", p.Name); err != nil || isEnded(a) || time.Since(began) > 5*time.Minute {
			k.t.Fatalf("the provider made %d of %d calls: %+v, %v", len(done), n, a, err)
		}
		began = time.Now()
	}
}

// processes maps the PID of each process that this server or an earlier one started for providers to its parent.
func (k *killTest) processes() map[int]int {
	out := map[int]int{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		k.t.Fatal(err)
	}
	below := filepath.Join(k.config.Dir, "providers") + "/"
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == k.server.PID() {
			continue
		}
		links, _ := filepath.Glob(filepath.Join("/proc", entry.Name(), "fd", "*"))
		for _, link := range append(links, filepath.Join("/proc", entry.Name(), "exe")) {
			if to, _ := os.Readlink(link); strings.HasPrefix(to, below) {
				stat, _ := os.ReadFile(filepath.Join("/proc", entry.Name(), "stat"))
				_, rest, _ := strings.Cut(string(stat), ") ")
				if fields := strings.Fields(rest); len(fields) > 1 && fields[0] != "Z" {
					out[pid], _ = strconv.Atoi(fields[1])
				}
				break
			}
		}
	}
	return out
}

func (k *killTest) mustListWorld() map[string][]worldResource {
	k.t.Helper()
	is, err := k.listWorld()
	if err != nil {
		k.t.Fatal(err)
	}
	return is
}

// waitNoOrphans waits until no process of an earlier server runs.
func (k *killTest) waitNoOrphans() {
	k.t.Helper()
	programs.Eventually(k.t, 30*time.Second, "the keepers of killed servers have exited", func(context.Context) error {
		running := k.processes()
		for pid, parent := range running {
			if _, kept := running[parent]; parent != k.server.PID() && !kept {
				return fmt.Errorf("process %d, a child of %d, is running; the server is %d", pid, parent, k.server.PID())
			}
		}
		return nil
	})
}

// checkNoChanges checks that a plan with refresh has no changes.
func (k *killTest) checkNoChanges() {
	k.t.Helper()
	p := k.plan(v1alpha1.PlanSpec{Refresh: true})
	if s := p.Status.Summary; s.Create+s.Update+s.Replace+s.Delete+s.Import+s.Forget+s.Drift > 0 || len(p.Status.Problems) > 0 {
		k.t.Errorf("the final plan has changes: %+v, %+v", s, p.Status.Problems)
	}
}

// killAndRestart kills the server and starts it again.
func (k *killTest) killAndRestart() {
	k.t.Helper()
	k.server.Kill()
	k.start(k.t)
	k.connect()
}

// stopAndRestart stops the server gracefully, which must leave no processes, and starts it again.
func (k *killTest) stopAndRestart() {
	k.t.Helper()
	if err := k.server.Stop(); err != nil {
		k.t.Error(err)
	}
	if left := k.processes(); len(left) > 0 {
		k.t.Errorf("a stopped server left processes: %v", left)
	}
	k.start(k.t)
	k.connect()
}

// TestKilledApplies kills the server with SIGKILL at random moments of applies: before, during and after calls, and
// in rollbacks also while objects are written back. After a restart the apply continues by itself. In total, exactly
// the planned changes are made, each once.
func TestKilledApplies(t *testing.T) {
	t.Parallel()
	k := startKillTest(t, 10*time.Millisecond)
	chance := &generator{random: k.random}
	now := configuration{}
	before := map[string]configuration{} // the configuration that each apply left, by its name
	var took time.Duration
	rollbacks := 0
	for kills, round := 0, 0; kills < *infraKills || rollbacks == 0; round++ {
		began := time.Now()
		var next configuration
		var spec v1alpha1.PlanSpec
		to := fmt.Sprintf("plan-%d", k.plans-1-k.random.IntN(max(1, min(3, k.plans-1))))
		// After a rollback, the configuration of an earlier apply can be the current one. A rollback to it
		// has no changes.
		if past := before[to]; past != nil && len(diff(now, past)) > 0 && (k.random.IntN(4) == 0 || kills >= *infraKills) {
			next, spec.Rollback = past, to
			rollbacks++
		} else {
			next = chance.next(now, *infraChanges)
			if err := k.write(t.Context(), k.client, now, next); err != nil {
				t.Fatal(err)
			}
		}
		was := k.mustListWorld()
		_, from, err := k.providerCalls(0)
		if err != nil {
			t.Fatal(err)
		}
		p := k.plan(spec)
		todo := diff(now, next)
		if len(p.Status.Problems) > 0 {
			t.Fatalf("the plan has problems: %+v", p.Status.Problems)
		}
		if spec.Rollback == "" {
			k.approveAndApply(p)
		} else {
			writtenBack := k.oneWrittenBack(now, next)
			k.approveAndApply(p)
			writtenBack()
			k.killAndRestart()
			kills++
		}
		for _, after := range k.killPoints(len(todo)) {
			k.waitCalls(from, after, p)
			time.Sleep(time.Duration(k.random.IntN(25_000)) * time.Microsecond)
			if k.random.IntN(6) == 0 {
				k.stopAndRestart()
				continue
			}
			k.killAndRestart()
			kills++
		}
		a := k.waitApply(p)
		if a.Status.Phase != v1alpha1.ApplySucceeded || len(a.Status.Problems) > 0 {
			t.Errorf("status of the apply: %+v", a.Status)
		}
		done, _, err := k.providerCalls(from)
		if err != nil {
			t.Fatal(err)
		}
		k.check(now, next, was, k.mustListWorld(), done)
		k.waitNoOrphans()
		if left, err := os.ReadDir(filepath.Join(k.config.Dir, "providers", "calls")); err != nil || len(left) != 1 {
			t.Errorf("the journal is not empty, although all states are stored: %v, %v", left, err)
		}
		if t.Failed() {
			t.Fatalf("in round %d, after %d kills", round, kills)
		}
		now, took, before[p.Name] = next, took+time.Since(began), next
		t.Logf("round %d: %d changes, %d of %d kills, %s each round; rollback to %q", round, len(todo), kills, *infraKills, (took / time.Duration(round+1)).Round(time.Millisecond),
			spec.Rollback)
	}
	k.checkNoChanges()
	k.stopAndRestart()
}

// oneWrittenBack returns a function that waits until a random object of a rollback has been written back. Others may
// not have been written yet.
func (k *killTest) oneWrittenBack(now, next configuration) (wait func()) {
	k.t.Helper()
	written := slices.DeleteFunc(slices.Sorted(maps.Keys(diff(now, next))), func(key string) bool {
		was, there := now[key]
		is, stays := next[key]
		return there && stays && was.cidr == is.cidr && was.label == is.label && slices.Equal(was.uses, is.uses) // only the ID that it refers to changes
	})
	key := written[k.random.IntN(len(written))]
	object, stays := next[key]
	if !stays {
		object = now[key]
	}
	// state returns the generation, which a deletion changes too, or 0 if the object does not exist.
	state := func(ctx context.Context) (int64, error) {
		o, err := k.client.Resource(object.resource()).Namespace("default").Get(ctx, object.name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return 0, nil
		}
		if err != nil {
			return 0, err
		}
		return o.GetGeneration(), nil
	}
	was, err := state(k.t.Context())
	if err != nil {
		k.t.Fatal(err)
	}
	return func() {
		k.t.Helper()
		programs.Eventually(k.t, time.Minute, key+" is written back", func(ctx context.Context) error {
			is, err := state(ctx)
			if err == nil && is == was {
				err = fmt.Errorf("its generation is still %d", is)
			}
			return err
		})
	}
}

// killPoints returns up to four moments at which an apply is interrupted, as counts of the provider's calls.
func (k *killTest) killPoints(todo int) []int {
	var out []int
	for range 1 + k.random.IntN(4) {
		out = append(out, k.random.IntN(todo))
	}
	slices.Sort(out)
	return out
}

// TestKilledMachine kills the server, its keepers and the providers together. Calls in flight are reported as
// uncertain, with a remedy, and are not repeated before a user has followed it.
func TestKilledMachine(t *testing.T) {
	t.Parallel()
	k := startKillTest(t, 400*time.Millisecond)
	chance := &generator{random: k.random}
	now := chance.next(configuration{}, 24)
	if err := k.write(t.Context(), k.client, nil, now); err != nil {
		t.Fatal(err)
	}
	first := k.plan(v1alpha1.PlanSpec{})
	k.approveAndApply(first)
	k.waitApply(first)
	next := chance.next(now, 40)
	if err := k.write(t.Context(), k.client, now, next); err != nil {
		t.Fatal(err)
	}
	_, from, err := k.providerCalls(0)
	if err != nil {
		t.Fatal(err)
	}
	p := k.plan(v1alpha1.PlanSpec{})
	k.approveAndApply(p)
	k.waitCalls(from, 10, p)
	// All at once, as far as possible, and during calls: between calls nothing is uncertain.
	programs.Eventually(t, time.Minute, "calls are in flight", func(context.Context) error {
		all := append(slices.Sorted(maps.Keys(k.processes())), k.server.PID())
		k.signal(all, syscall.SIGSTOP)
		if begun := k.callsInFlight(); begun < 3 {
			k.signal(all, syscall.SIGCONT)
			return fmt.Errorf("%d calls are in flight", begun)
		}
		k.signal(all, syscall.SIGKILL)
		return nil
	})
	k.killAndRestart()
	a := k.waitApply(p)
	if a.Status.Phase != v1alpha1.ApplyFailed || a.Status.Failed == 0 {
		t.Errorf("status of the apply: %+v", a.Status)
	}
	uncertain := 0
	for _, problem := range a.Status.Problems {
		if strings.Contains(problem.Message, "did not report the outcome") {
			uncertain++
			if !strings.Contains(problem.Message, "check whether ") && !strings.Contains(problem.Message, "plan in mode RefreshOnly") {
				t.Errorf("no remedy: %+v", problem)
			}
		}
	}
	if uncertain == 0 || uncertain > 10 {
		t.Errorf("%d changes are uncertain, with ten in parallel: %+v", uncertain, a.Status.Problems)
	}
	t.Logf("%d of %d problems are uncertain changes: %+v", uncertain, len(a.Status.Problems), a.Status.Problems)
	k.checkNoDuplicates(next)
	k.followAdvice(next, a.Status.Problems)
	k.checkWorld(next, k.mustListWorld())
	k.checkNoChanges()
}

// signal sends a signal to processes. Some may have exited.
func (k *killTest) signal(processes []int, signal syscall.Signal) {
	k.t.Helper()
	for _, pid := range processes {
		if err := syscall.Kill(pid, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
			k.t.Fatal(err)
		}
	}
}

// callsInFlight returns the number of calls that keepers are making. Keepers lock the journal entries of these calls.
func (k *killTest) callsInFlight() (n int) {
	k.t.Helper()
	files, err := filepath.Glob(filepath.Join(k.config.Dir, "providers", "calls", "[0-9a-f]*"))
	if err != nil {
		k.t.Fatal(err)
	}
	for _, path := range files {
		f, err := os.Open(path)
		if err != nil {
			continue // the call has ended
		}
		if errors.Is(syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB), syscall.EWOULDBLOCK) {
			n++
		}
		f.Close()
	}
	return n
}

// checkNoDuplicates checks that each resource exists at most once, or twice during a replacement that creates first.
func (k *killTest) checkNoDuplicates(desired configuration) {
	k.t.Helper()
	for key, all := range k.mustListWorld() {
		if len(all) > 1 && !(len(all) == 2 && desired[key].first) {
			k.t.Errorf("%s exists too often: %+v", key, all)
		}
	}
}

// removeUnknown removes the new resources of replacements, where an apply has advised that.
func (k *killTest) removeUnknown(advice []v1alpha1.Problem) {
	k.t.Helper()
	is := k.mustListWorld()
	for _, problem := range advice {
		key := strings.Replace(problem.Address, ".demo.providers.atoll.dev/", "/", 1)
		all := is[key]
		if !strings.Contains(problem.Message, "delete it there") || len(all) < 2 {
			continue
		}
		_, name, _ := strings.Cut(key, "/")
		s, err := fetch[v1alpha1.ResourceState](k.t.Context(), k, "resourcestates", "networks.demo."+name)
		if err != nil || s.Spec.Current == nil {
			k.t.Fatalf("%s has no state: %+v, %v", key, s, err)
		}
		for _, m := range all {
			if !strings.Contains(string(s.Spec.Current.Value), m.ID) {
				k.t.Logf("removed: %s, %s", key, m.ID)
				if err := os.Remove(filepath.Join(k.world, "objects", "demo_network", m.ID+".json")); err != nil {
					k.t.Fatal(err)
				}
			}
		}
	}
}

// followAdvice follows the advice of plans until there are no changes. If a resource exists whose creation
// is uncertain, it imports it; otherwise it deletes the state.
func (k *killTest) followAdvice(desired configuration, advice []v1alpha1.Problem) {
	k.t.Helper()
	states := k.client.Resource(v1alpha1.ResourceStateResource).Namespace("default")
	k.removeUnknown(advice)
	for range 5 {
		p := k.plan(v1alpha1.PlanSpec{Refresh: true})
		for _, problem := range p.Status.Problems {
			key := strings.Replace(problem.Address, ".demo.providers.atoll.dev/", "/", 1)
			if !strings.Contains(problem.Message, "ended without an answer from the provider") {
				continue
			}
			if all := k.mustListWorld()[key]; len(all) == 1 {
				object := desired[key]
				k.kubectl(k.t, "annotate", object.resource().Resource+".demo.providers.atoll.dev", object.name, "infra.atoll.dev/import-id="+all[0].ID)
				k.t.Logf("imported: %s, %s", key, all[0].ID)
				continue
			}
			_, quoted, _ := strings.Cut(problem.Message, "delete ResourceState ")
			name, err := strconv.Unquote(strings.TrimSuffix(quoted, "; then plan again"))
			if err != nil {
				k.t.Fatalf("%q names no state", problem.Message)
			}
			if err := states.Delete(k.t.Context(), name, metav1.DeleteOptions{}); err != nil {
				k.t.Fatal(err)
			}
			k.t.Logf("does not exist: %s", key)
		}
		s := p.Status.Summary
		if len(p.Status.Problems) == 0 && s.Create+s.Update+s.Replace+s.Delete+s.Import+s.Forget+s.Drift == 0 {
			return
		}
		k.approveAndApply(p)
		a := k.waitApply(p)
		k.t.Logf("%+v, %d problems: %+v %+v", s, len(p.Status.Problems), a.Status.Phase, a.Status.Problems)
	}
	k.t.Error("the plan still has changes after following the advice five times")
}
