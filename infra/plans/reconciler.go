package plans

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/apistore"
	"github.com/atoll-dev/atoll/infra/approval"
	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/placing"
)

const (
	// planningAtOnce and applyingAtOnce limit how many namespaces are planned and applied concurrently.
	// Within a namespace, each plan and apply has a limit of its own.
	planningAtOnce = 4
	applyingAtOnce = 16
	// workers reconcile namespaces concurrently, which takes milliseconds each.
	workers = 4
)

// engine plans and applies what an Inventory has.
type engine interface {
	Plan(ctx context.Context, req infra.PlanOptions, store infra.PlanStore) (*infra.PlanResult, error)
	Apply(ctx context.Context, req infra.ApplyOptions, store infra.PlanStore) (*infra.ApplyResult, error)
}

// kindLookup is the part of infra.Providers that the reconciler uses.
type kindLookup interface {
	Kind(ref expr.Ref) (*infra.ServedKind, error)
}

// inventory is the part of the engine's inventory that the reconciler reads.
type inventory interface {
	Object(ref expr.Ref) *infra.Object
	State(ref expr.Ref) *infra.State
	Unapplied(namespace string) map[expr.Ref][]byte
}

// kindNames is the part of feed.Types that the reconciler uses.
type kindNames interface {
	Groups() []string
	ByPlural(group, plural string) (*infra.ServedKind, bool)
}

// inventoryFeed is the part of feed.Feed that the reconciler uses.
type inventoryFeed interface {
	WaitCurrent(ctx context.Context) error
	Drifted(ref expr.Ref) bool
}

type reconcilerConfig struct {
	api       clients
	dynamic   dynamic.Interface
	kube      kubernetes.Interface
	engine    engine
	inventory inventory
	objects   infra.ObjectWriter
	types     kindNames
	language  *expr.Language
	clock     clock.WithTicker
	log       *slog.Logger
	metrics   *Metrics // may be nil
	// The next three are described in Config.
	journal     string
	acknowledge func(call string) error
	onLargeRun  func(retained bool) (done func())
	kinds       kindLookup
	// impersonate returns a client with the rights of another user.
	impersonate func(*v1alpha1.Person) (dynamic.Interface, error)
	workloads   *placing.Workloads
}

// reconciler handles Plans, Approvals, Applies and policies, one namespace at a time. It takes a snapshot of
// the namespace and starts the next action. Long-running work runs beside it: at most one plan and one apply
// in each namespace.
type reconciler struct {
	reconcilerConfig
	feed   inventoryFeed
	caches *caches
	events record.EventRecorder
	queue  workqueue.TypedRateLimitingInterface[string]

	running    sync.WaitGroup
	planSlots  chan struct{}
	applySlots chan struct{}

	mu         sync.Mutex
	planning   map[string]types.UID // by namespace: the plan that is being computed
	applying   map[string]*applyRun
	backoffs   map[types.UID]*backoff
	namespaces map[string]*namespaceState
	policies   map[types.UID]parsedPolicy
}

// backoff is how long a failed plan or apply waits for its next attempt.
type backoff struct {
	failures int
	pause    wait.Backoff // after the next failure
	until    time.Time
}

func newReconciler(cfg reconcilerConfig) *reconciler {
	return &reconciler{
		reconcilerConfig: cfg,
		caches:           newCaches(cfg.dynamic),
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(workqueue.NewTypedItemExponentialFailureRateLimiter[string](50*time.Millisecond, 30*time.Second),
			workqueue.TypedRateLimitingQueueConfig[string]{Name: "infra_plans", Clock: cfg.clock}),
		planSlots: make(chan struct{}, planningAtOnce), applySlots: make(chan struct{}, applyingAtOnce),
		planning: map[string]types.UID{}, applying: map[string]*applyRun{}, backoffs: map[types.UID]*backoff{},
		namespaces: map[string]*namespaceState{}, policies: map[types.UID]parsedPolicy{},
	}
}

// run reconciles until ctx ends. It returns when everything that it started has stopped.
func (r *reconciler) run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: r.kube.CoreV1().Events("")})
	r.events = broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: apistore.FieldManager})
	defer broadcaster.Shutdown()
	defer r.running.Wait()
	defer stop()

	if err := r.caches.start(ctx, &r.running, r.enqueue); err != nil {
		return err
	}
	for range workers {
		r.running.Go(func() {
			for r.processNext(ctx) {
			}
		})
	}
	<-ctx.Done()
	r.queue.ShutDown()
	return ctx.Err()
}

// enqueue queues a namespace, or all of them if a cluster-scoped object changed.
func (r *reconciler) enqueue(namespace string, all bool) {
	if !all {
		r.queue.Add(namespace)
		return
	}
	for _, n := range r.caches.namespaceNames() {
		r.queue.Add(n)
	}
}

func (r *reconciler) processNext(ctx context.Context) bool {
	namespace, shutdown := r.queue.Get()
	if shutdown {
		return false
	}
	defer r.queue.Done(namespace)
	if err := r.reconcile(ctx, namespace); err != nil && ctx.Err() == nil {
		r.metrics.failed(operationReconcile, err)
		if !apierrors.IsConflict(err) {
			r.log.Warn("reconcile failed; retrying", "namespace", namespace, "error", err)
		}
		r.queue.AddRateLimited(namespace)
		return true
	}
	r.queue.Forget(namespace)
	return true
}

// snapshot is the state of a namespace that one reconciliation decides by.
type snapshot struct {
	namespace string
	now       time.Time
	// labels are those of the namespace; terminating reports whether it is being deleted.
	labels      labels.Set
	terminating bool
	// plans and applies are sorted by age, oldest first.
	plans     []*v1alpha1.Plan
	applies   []*v1alpha1.Apply
	approvals []*v1alpha1.Approval
	// policies apply to infrastructure and workloads to workloads. Both are sorted by precedence.
	policies, workloads []*approval.Policy
	// proposals are those of the fleet's scheduler for the workloads of the namespace.
	proposals *placing.Proposals
}

func (r *reconciler) takeSnapshot(namespace string) *snapshot {
	s := &snapshot{
		namespace: namespace, now: r.clock.Now(),
		plans:     r.caches.plans.In(namespace),
		applies:   r.caches.applies.In(namespace),
		approvals: r.caches.approvals.In(namespace),
		proposals: r.workloads.Proposals(namespace),
	}
	slices.SortFunc(s.plans, func(a, b *v1alpha1.Plan) int { return byAge(&a.ObjectMeta, &b.ObjectMeta) })
	slices.SortFunc(s.applies, func(a, b *v1alpha1.Apply) int { return byAge(&a.ObjectMeta, &b.ObjectMeta) })
	s.labels, s.terminating = r.caches.namespace(namespace)
	all := approval.Rank(r.namespacePolicies(namespace), s.labels)
	s.policies, s.workloads = approval.WithSubject(all, v1alpha1.SyncInfrastructure), approval.WithSubject(all, v1alpha1.SyncWorkloads)
	return s
}

func byAge(a, b *metav1.ObjectMeta) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}

func (s *snapshot) plan(name string) *v1alpha1.Plan {
	for _, p := range s.plans {
		if p.Name == name {
			return p
		}
	}
	return nil
}

func (r *reconciler) reconcile(ctx context.Context, namespace string) error {
	s := r.takeSnapshot(namespace)
	r.startPlan(ctx, s)
	return errors.Join(
		r.updatePlanConditions(ctx, s),
		r.advanceApplies(ctx, s),
		r.followPolicies(ctx, s),
		r.reportPolicies(ctx, s),
		r.collectGarbage(ctx, s),
	)
}

// largeRun is the number of resources from which it pays to release memory at once. Left alone, the Go
// runtime does that within minutes.
const largeRun = 10_000

// runSize counts the resources of a plan or an apply, and reports once if it turns out to be large.
type runSize struct {
	onLargeRun func(retained bool) (done func()) // may be nil
	retained   bool
	begun      sync.Once
	done       func()
}

// observe records the number of resources so far. It is safe for concurrent use.
func (s *runSize) observe(resources int64) {
	if resources >= largeRun && s.onLargeRun != nil {
		s.begun.Do(func() { s.done = s.onLargeRun(s.retained) })
	}
}

// finish is called when no more resources can be observed.
func (s *runSize) finish() {
	if s.done != nil {
		s.done()
	}
}

// requeueAfter reconciles a namespace again after a delay.
func (r *reconciler) requeueAfter(namespace string, after time.Duration) {
	r.queue.AddAfter(namespace, max(after, 0))
}

// inBackoff reports whether a failed object still has to wait, and how long.
func (r *reconciler) inBackoff(uid types.UID, now time.Time) (time.Duration, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.backoffs[uid]
	if p == nil || !now.Before(p.until) {
		return 0, false
	}
	return p.until.Sub(now), true
}

// recordFailure notes a failure and returns the number of consecutive failures.
func (r *reconciler) recordFailure(uid types.UID) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.backoffs[uid]
	if p == nil {
		p = &backoff{pause: wait.Backoff{Duration: time.Second, Factor: 2, Steps: 10, Cap: time.Minute}}
		r.backoffs[uid] = p
	}
	p.failures++
	p.until = r.clock.Now().Add(p.pause.Step())
	return p.failures
}

func (r *reconciler) clearFailures(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.backoffs, uid)
}

// recordEvent records an event of a Plan or an Apply.
func (r *reconciler) recordEvent(kind string, meta *metav1.ObjectMeta, warning bool, reason, format string, args ...any) {
	severity := corev1.EventTypeNormal
	if warning {
		severity = corev1.EventTypeWarning
	}
	r.events.Event(&corev1.ObjectReference{
		APIVersion: v1alpha1.Group + "/" + v1alpha1.Version, Kind: kind, Namespace: meta.Namespace, Name: meta.Name, UID: meta.UID,
		ResourceVersion: meta.ResourceVersion,
	}, severity, reason, fmt.Sprintf(format, args...))
}
