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
	infraKills   = flag.Int("runs", 4, "how often the server is killed in TestKilledApplies")
	infraChanges = flag.Int("changes", 60, "how many changes an apply has there")
	infraSeed    = flag.Uint64("seed", 0, "by what chance decides there; 0 chooses one")
)

// A killing is a server that is killed while it carries out plans of a town.
type killing struct {
	*works
	t      *testing.T
	random *rand.Rand
	client dynamic.Interface
	plans  int
}

// startKilling starts one whose provider takes so long for each call.
func startKilling(t *testing.T, delay time.Duration) *killing {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("what runs is read from /proc")
	}
	seed := *infraSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-seed %d", seed)
	k := &killing{works: startWorks(t), t: t, random: rand.New(rand.NewPCG(seed, 0))}
	k.apply(t, strings.Replace(k.providerObjects("default"), fmt.Sprintf("directory: %q", k.world),
		fmt.Sprintf("directory: %q, delay: %s", k.world, delay), 1))
	k.connect()
	return k
}

// connect makes a client of the server that runs now.
func (k *killing) connect() {
	k.t.Helper()
	rest, err := k.server.REST()
	if err == nil {
		k.client, err = dynamic.NewForConfig(rest)
	}
	if err != nil {
		k.t.Fatal(err)
	}
}

// make makes an object of ours.
func (k *killing) make(object any, kind string) {
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

func fetch[T any](ctx context.Context, k *killing, resource, name string) (*T, error) {
	u, err := k.client.Resource(v1alpha1.PlanResource.GroupVersion().WithResource(resource)).Namespace("default").Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	out := new(T)
	return out, kruntime.DefaultUnstructuredConverter.FromUnstructured(u.Object, out)
}

// plan makes a plan, and waits for it.
func (k *killing) plan(spec v1alpha1.PlanSpec) *v1alpha1.Plan {
	k.t.Helper()
	k.plans++
	name := fmt.Sprintf("plan-%d", k.plans)
	k.make(&v1alpha1.Plan{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, "Plan")
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
		return fmt.Errorf("it is %q", p.Status.Phase)
	})
	return p
}

// begin approves of a plan and has it carried out.
func (k *killing) begin(p *v1alpha1.Plan) {
	k.t.Helper()
	k.make(&v1alpha1.Approval{ObjectMeta: metav1.ObjectMeta{Name: p.Name}, Spec: v1alpha1.ApprovalSpec{Plan: p.Name, Digest: p.Status.Digest}}, "Approval")
	k.make(&v1alpha1.Apply{ObjectMeta: metav1.ObjectMeta{Name: p.Name}, Spec: v1alpha1.ApplySpec{Plan: p.Name, Digest: p.Status.Digest}}, "Apply")
}

// isEnded tells whether an apply has ended.
func isEnded(a *v1alpha1.Apply) bool {
	return slices.Contains([]v1alpha1.ApplyPhase{v1alpha1.ApplySucceeded, v1alpha1.ApplyFailed, v1alpha1.ApplyCanceled}, a.Status.Phase)
}

// end waits until an apply has ended.
func (k *killing) end(p *v1alpha1.Plan) *v1alpha1.Apply {
	k.t.Helper()
	var a *v1alpha1.Apply
	programs.Eventually(k.t, 5*time.Minute, "the apply "+p.Name, func(ctx context.Context) (err error) {
		if a, err = fetch[v1alpha1.Apply](ctx, k, "applies", p.Name); err == nil && !isEnded(a) {
			err = fmt.Errorf("it is %q: %+v", a.Status.Phase, a.Status)
		}
		return err
	})
	return a
}

// awaitDeeds waits until the provider has done so much since its log was so long, or an apply has ended.
func (k *killing) awaitDeeds(from int64, n int, p *v1alpha1.Plan) {
	k.t.Helper()
	for began := time.Now(); ; time.Sleep(time.Millisecond) {
		done, _, err := k.deeds(from)
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
			k.t.Fatalf("the provider did %d of %d: %+v, %v", len(done), n, a, err)
		}
		began = time.Now()
	}
}

// processes are those that this server and those before it have started for providers, by PID, with their parents.
func (k *killing) processes() map[int]int {
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

func (k *killing) mustLook() map[string][]made {
	k.t.Helper()
	is, err := k.look()
	if err != nil {
		k.t.Fatal(err)
	}
	return is
}

// onlyOurs waits until nothing runs that a former server has started.
func (k *killing) onlyOurs() {
	k.t.Helper()
	programs.Eventually(k.t, 30*time.Second, "keepers of killed servers end", func(context.Context) error {
		running := k.processes()
		for pid, parent := range running {
			if _, kept := running[parent]; parent != k.server.PID() && !kept {
				return fmt.Errorf("%d, a child of %d, runs; the server is %d", pid, parent, k.server.PID())
			}
		}
		return nil
	})
}

// nothingToDo holds a plan that asks the provider about everything to find nothing.
func (k *killing) nothingToDo() {
	k.t.Helper()
	p := k.plan(v1alpha1.PlanSpec{Refresh: true})
	if s := p.Status.Summary; s.Create+s.Update+s.Replace+s.Delete+s.Import+s.Forget+s.Drift > 0 || len(p.Status.Problems) > 0 {
		k.t.Errorf("there is something to do in the end: %+v, %+v", s, p.Status.Problems)
	}
}

// killed kills the server and starts it again.
func (k *killing) killed() {
	k.t.Helper()
	k.server.Kill()
	k.start(k.t)
	k.connect()
}

// stopped stops it as one should, which leaves nothing behind, and starts it again.
func (k *killing) stopped() {
	k.t.Helper()
	if err := k.server.Stop(); err != nil {
		k.t.Error(err)
	}
	if left := k.processes(); len(left) > 0 {
		k.t.Errorf("processes that a server left that was stopped: %v", left)
	}
	k.start(k.t)
	k.connect()
}

// TestKilledApplies kills the server with -9 at moments of applies that chance chooses, in the middle of calls, before them and after
// them; and in rollbacks also while objects are written back. It goes on by itself when it is started again, and in the end exactly what was
// planned was done, each once.
func TestKilledApplies(t *testing.T) {
	t.Parallel()
	k := startKilling(t, 10*time.Millisecond)
	chance := &planner{random: k.random}
	now := town{}
	before := map[string]town{} // an apply, and the town that it left
	var took time.Duration
	rollbacks := 0
	for kills, round := 0, 0; kills < *infraKills || rollbacks == 0; round++ {
		began := time.Now()
		var next town
		var spec v1alpha1.PlanSpec
		to := fmt.Sprintf("plan-%d", k.plans-1-k.random.IntN(max(1, min(3, k.plans-1))))
		// After a rollback, what an earlier apply left can be what is there now, and a rollback to that has nothing to do.
		if past := before[to]; past != nil && len(diff(now, past)) > 0 && (k.random.IntN(4) == 0 || kills >= *infraKills) {
			next, spec.Rollback = past, to
			rollbacks++
		} else {
			next = chance.next(now, *infraChanges)
			if err := k.write(t.Context(), k.client, now, next); err != nil {
				t.Fatal(err)
			}
		}
		was := k.mustLook()
		_, from, err := k.deeds(0)
		if err != nil {
			t.Fatal(err)
		}
		p := k.plan(spec)
		todo := diff(now, next)
		if len(p.Status.Problems) > 0 {
			t.Fatalf("the plan has problems: %+v", p.Status.Problems)
		}
		if spec.Rollback == "" {
			k.begin(p)
		} else {
			writtenBack := k.oneWrittenBack(now, next)
			k.begin(p)
			writtenBack()
			k.killed()
			kills++
		}
		for _, after := range k.moments(len(todo)) {
			k.awaitDeeds(from, after, p)
			time.Sleep(time.Duration(k.random.IntN(25_000)) * time.Microsecond)
			if k.random.IntN(6) == 0 {
				k.stopped()
				continue
			}
			k.killed()
			kills++
		}
		a := k.end(p)
		if a.Status.Phase != v1alpha1.ApplySucceeded || len(a.Status.Problems) > 0 {
			t.Errorf("the apply ended so: %+v", a.Status)
		}
		done, _, err := k.deeds(from)
		if err != nil {
			t.Fatal(err)
		}
		k.check(now, next, was, k.mustLook(), done)
		k.onlyOurs()
		if left, err := os.ReadDir(filepath.Join(k.config.Dir, "providers", "calls")); err != nil || len(left) != 1 {
			t.Errorf("in the journal, though all is stored: %v, %v", left, err)
		}
		if t.Failed() {
			t.Fatalf("in round %d, after %d kills", round, kills)
		}
		now, took, before[p.Name] = next, took+time.Since(began), next
		t.Logf("round %d: %d changes, %d of %d kills, %s each round; rollback to %q", round, len(todo), kills, *infraKills, (took / time.Duration(round+1)).Round(time.Millisecond),
			spec.Rollback)
	}
	k.nothingToDo()
	k.stopped()
}

// oneWrittenBack gives what waits until one of the objects that a rollback changes has been written back: any of them, so that others may
// still be to be written.
func (k *killing) oneWrittenBack(now, next town) (wait func()) {
	k.t.Helper()
	written := slices.DeleteFunc(slices.Sorted(maps.Keys(diff(now, next))), func(key string) bool {
		was, there := now[key]
		is, stays := next[key]
		return there && stays && was.cidr == is.cidr && was.label == is.label && slices.Equal(was.uses, is.uses) // what it refers to is changed
	})
	key := written[k.random.IntN(len(written))]
	plot, stays := next[key]
	if !stays {
		plot = now[key]
	}
	// state is the generation, which a deletion changes too; 0 if it is not there.
	state := func(ctx context.Context) (int64, error) {
		o, err := k.client.Resource(plot.resource()).Namespace("default").Get(ctx, plot.name, metav1.GetOptions{})
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
				err = fmt.Errorf("it is of generation %d, as before", is)
			}
			return err
		})
	}
}

// moments are when an apply is interrupted, in deeds of the provider: up to four times, while it goes on after the last time.
func (k *killing) moments(todo int) []int {
	var out []int
	for range 1 + k.random.IntN(4) {
		out = append(out, k.random.IntN(todo))
	}
	slices.Sort(out)
	return out
}

// TestKilledMachine: what was being made when the server, its keepers and the providers were killed together is shown as uncertain, with what
// to do. Nothing of it is done again before somebody has done that.
func TestKilledMachine(t *testing.T) {
	t.Parallel()
	k := startKilling(t, 400*time.Millisecond)
	chance := &planner{random: k.random}
	now := chance.next(town{}, 24)
	if err := k.write(t.Context(), k.client, nil, now); err != nil {
		t.Fatal(err)
	}
	first := k.plan(v1alpha1.PlanSpec{})
	k.begin(first)
	k.end(first)
	next := chance.next(now, 40)
	if err := k.write(t.Context(), k.client, now, next); err != nil {
		t.Fatal(err)
	}
	_, from, err := k.deeds(0)
	if err != nil {
		t.Fatal(err)
	}
	p := k.plan(v1alpha1.PlanSpec{})
	k.begin(p)
	k.awaitDeeds(from, 10, p)
	// All at once, as far as that can be, and in the middle of calls: between two of them nothing is uncertain.
	programs.Eventually(t, time.Minute, "calls are under way", func(context.Context) error {
		all := append(slices.Sorted(maps.Keys(k.processes())), k.server.PID())
		k.signal(all, syscall.SIGSTOP)
		if begun := k.underWay(); begun < 3 {
			k.signal(all, syscall.SIGCONT)
			return fmt.Errorf("%d are", begun)
		}
		k.signal(all, syscall.SIGKILL)
		return nil
	})
	k.killed()
	a := k.end(p)
	if a.Status.Phase != v1alpha1.ApplyFailed || a.Status.Failed == 0 {
		t.Errorf("the apply ended so: %+v", a.Status)
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
		t.Errorf("%d changes are uncertain, of ten that were made at a time: %+v", uncertain, a.Status.Problems)
	}
	t.Logf("%d of %d problems are of changes that are uncertain: %+v", uncertain, len(a.Status.Problems), a.Status.Problems)
	k.once(next)
	k.remedy(next, a.Status.Problems)
	k.whole(next, k.mustLook())
	k.nothingToDo()
}

// signal sends a signal to processes, of which some may have ended by themselves.
func (k *killing) signal(processes []int, signal syscall.Signal) {
	k.t.Helper()
	for _, pid := range processes {
		if err := syscall.Kill(pid, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
			k.t.Fatal(err)
		}
	}
}

// underWay is how many calls keepers are at: they hold locks on what the journal has of them.
func (k *killing) underWay() (n int) {
	k.t.Helper()
	files, err := filepath.Glob(filepath.Join(k.config.Dir, "providers", "calls", "[0-9a-f]*"))
	if err != nil {
		k.t.Fatal(err)
	}
	for _, path := range files {
		f, err := os.Open(path)
		if err != nil {
			continue // it has ended
		}
		if errors.Is(syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB), syscall.EWOULDBLOCK) {
			n++
		}
		f.Close()
	}
	return n
}

// once holds the provider to have each thing once at most, or twice while the one takes the place of the other.
func (k *killing) once(written town) {
	k.t.Helper()
	for key, all := range k.mustLook() {
		if len(all) > 1 && !(len(all) == 2 && written[key].first) {
			k.t.Errorf("%s is there so often: %+v", key, all)
		}
	}
}

// removeUnknown removes what was to take the place of another, where an apply has advised that.
func (k *killing) removeUnknown(advice []v1alpha1.Problem) {
	k.t.Helper()
	is := k.mustLook()
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

// remedy does what is advised until nothing is left to do: it looks for what may have been made, and takes it over, or says
// that it is not there.
func (k *killing) remedy(written town, advice []v1alpha1.Problem) {
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
			if all := k.mustLook()[key]; len(all) == 1 {
				plot := written[key]
				k.kubectl(k.t, "annotate", plot.resource().Resource+".demo.providers.atoll.dev", plot.name, "infra.atoll.dev/import-id="+all[0].ID)
				k.t.Logf("taken over: %s, %s", key, all[0].ID)
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
			k.t.Logf("not made: %s", key)
		}
		s := p.Status.Summary
		if len(p.Status.Problems) == 0 && s.Create+s.Update+s.Replace+s.Delete+s.Import+s.Forget+s.Drift == 0 {
			return
		}
		k.begin(p)
		a := k.end(p)
		k.t.Logf("%+v, %d problems: %+v %+v", s, len(p.Status.Problems), a.Status.Phase, a.Status.Problems)
	}
	k.t.Error("what is advised leads to no end")
}
