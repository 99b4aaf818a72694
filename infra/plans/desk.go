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
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/reference"
)

const (
	// Of so many namespaces plans are made, and applies run, at a time: each has its own limits within.
	planningAtOnce = 4
	applyingAtOnce = 16
	// deskWorkers look at so many namespaces at a time, which takes them milliseconds.
	deskWorkers = 4
)

// engine is what the desk wants of infra.Engine.
type engine interface {
	Plan(ctx context.Context, what infra.PlanOptions, store infra.PlanStore) (*infra.PlanResult, error)
	Apply(ctx context.Context, what infra.ApplyOptions, store infra.PlanStore) (*infra.ApplyResult, error)
}

// finder is what it wants of infra.Providers.
type finder interface {
	Kind(ref reference.Ref) (*infra.ServedKind, error)
}

// currency is what it wants of Feed.
type currency interface {
	Current(ctx context.Context) error
	Drifted(ref reference.Ref) bool
}

type deskConfig struct {
	api      resources
	dynamic  dynamic.Interface
	kube     kubernetes.Interface
	engine   engine
	world    world
	objects  infra.ObjectWriter
	types    Types
	language *reference.Language
	clock    clock.WithTicker
	log      *slog.Logger
	// See Config.
	journal     string
	acknowledge func(call string) error
	large       func(stays bool) (over func())
	kinds       finder
	// as gives a client that acts as somebody else.
	as func(*v1alpha1.Person) (dynamic.Interface, error)
	// placements may be nil: then no plan is of workloads.
	placements *placements
}

// desk does what Plans, Approvals, Applies and policies ask for, one namespace at a time: it looks at all of a
// namespace, and does what is next. What takes long runs beside it: at most one plan and one apply of each
// namespace.
type desk struct {
	deskConfig
	feed   currency
	caches *caches
	events record.EventRecorder
	queue  workqueue.TypedRateLimitingInterface[string]

	running    sync.WaitGroup
	planSlots  chan struct{}
	applySlots chan struct{}

	mu       sync.Mutex
	planning map[string]types.UID // by namespace: what runs
	applying map[string]*applyRun
	pauses   map[types.UID]*pause
	notes    map[string]*namespaceNotes
	policies map[types.UID]readSpec
}

// pause is until when something that failed is left alone.
type pause struct {
	failures int
	until    time.Time
}

func newDesk(cfg deskConfig) *desk {
	return &desk{
		deskConfig: cfg,
		caches:     newCaches(cfg.dynamic),
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(workqueue.NewTypedItemExponentialFailureRateLimiter[string](50*time.Millisecond, 30*time.Second),
			workqueue.TypedRateLimitingQueueConfig[string]{Clock: cfg.clock}),
		planSlots: make(chan struct{}, planningAtOnce), applySlots: make(chan struct{}, applyingAtOnce),
		planning: map[string]types.UID{}, applying: map[string]*applyRun{}, pauses: map[types.UID]*pause{},
		notes: map[string]*namespaceNotes{}, policies: map[types.UID]readSpec{},
	}
}

// run works until ctx ends, and returns when all that it began has stopped.
func (d *desk) run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: d.kube.CoreV1().Events("")})
	d.events = broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: manager})
	defer broadcaster.Shutdown()
	defer d.running.Wait()
	defer stop()

	if err := d.caches.start(ctx, &d.running, d.changed); err != nil {
		return err
	}
	for range deskWorkers {
		d.running.Go(func() {
			for d.next(ctx) {
			}
		})
	}
	<-ctx.Done()
	d.queue.ShutDown()
	return ctx.Err()
}

// changed has a namespace looked at, or all of them if something without a namespace has changed.
func (d *desk) changed(namespace string, all bool) {
	if !all {
		d.queue.Add(namespace)
		return
	}
	for _, n := range d.caches.busy() {
		d.queue.Add(n)
	}
}

func (d *desk) next(ctx context.Context) bool {
	namespace, over := d.queue.Get()
	if over {
		return false
	}
	defer d.queue.Done(namespace)
	if err := d.reconcile(ctx, namespace); err != nil && ctx.Err() == nil {
		if !apierrors.IsConflict(err) {
			d.log.Warn("infrastructure of a namespace; it is tried again", "namespace", namespace, "error", err)
		}
		d.queue.AddRateLimited(namespace)
		return true
	}
	d.queue.Forget(namespace)
	return true
}

// scene is all of a namespace that is decided by.
type scene struct {
	namespace string
	now       time.Time
	// labels of the namespace; ending of one that is being deleted.
	labels labels.Set
	ending bool
	// plans and applies, oldest first.
	plans     []*v1alpha1.Plan
	applies   []*v1alpha1.Apply
	approvals []*v1alpha1.Approval
	// policies that hold for infrastructure, the first first, and those for workloads.
	policies, workloads []*policy
	// bound are the bindings of the namespace, once somebody has asked for them.
	bound  []*bound
	looked bool
}

func (d *desk) look(namespace string) *scene {
	s := &scene{
		namespace: namespace, now: d.clock.Now(),
		plans:     inNamespace[v1alpha1.Plan](d.caches.plans, namespace),
		applies:   inNamespace[v1alpha1.Apply](d.caches.applies, namespace),
		approvals: inNamespace[v1alpha1.Approval](d.caches.approvals, namespace),
	}
	slices.SortFunc(s.plans, func(a, b *v1alpha1.Plan) int { return older(&a.ObjectMeta, &b.ObjectMeta) })
	slices.SortFunc(s.applies, func(a, b *v1alpha1.Apply) int { return older(&a.ObjectMeta, &b.ObjectMeta) })
	s.labels, s.ending = d.caches.namespace(namespace)
	all := ranked(d.readPolicies(namespace), s.labels)
	s.policies, s.workloads = subjectTo(all, v1alpha1.SyncInfrastructure), subjectTo(all, v1alpha1.SyncWorkloads)
	return s
}

func older(a, b *metav1.ObjectMeta) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}

func (s *scene) plan(name string) *v1alpha1.Plan {
	for _, p := range s.plans {
		if p.Name == name {
			return p
		}
	}
	return nil
}

func (d *desk) reconcile(ctx context.Context, namespace string) error {
	s := d.look(namespace)
	d.beginPlan(ctx, s)
	return errors.Join(
		d.judgePlans(ctx, s),
		d.advanceApplies(ctx, s),
		d.follow(ctx, s),
		d.reportPolicies(ctx, s),
		d.tidy(ctx, s),
	)
}

// large is from how many resources on it is worth to give memory back at once. By itself the process does that in minutes.
const large = 10_000

// effort is a plan or an apply that may turn out to be large.
type effort struct {
	large func(stays bool) (over func()) // may be nil
	stays bool
	begun sync.Once
	over  func()
}

// of so many resources it is by now. Many may say so at once.
func (e *effort) of(resources int64) {
	if resources >= large && e.large != nil {
		e.begun.Do(func() { e.over = e.large(e.stays) })
	}
}

// end it once nobody says more.
func (e *effort) end() {
	if e.over != nil {
		e.over()
	}
}

// later has a namespace looked at again after a while.
func (d *desk) later(namespace string, after time.Duration) {
	d.queue.AddAfter(namespace, max(after, 0))
}

// paused tells whether something that failed is still to be left alone.
func (d *desk) paused(uid types.UID, now time.Time) (time.Duration, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.pauses[uid]
	if p == nil || !now.Before(p.until) {
		return 0, false
	}
	return p.until.Sub(now), true
}

// failed notes that something failed, and gives how often it has in a row.
func (d *desk) failed(uid types.UID) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.pauses[uid]
	if p == nil {
		p = &pause{}
		d.pauses[uid] = p
	}
	p.failures++
	wait := min(time.Second<<min(p.failures-1, 6), time.Minute)
	p.until = d.clock.Now().Add(wait)
	return p.failures
}

func (d *desk) succeeded(uid types.UID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.pauses, uid)
}

// tell records an event of a plan or an apply.
func (d *desk) tell(kind string, meta *metav1.ObjectMeta, warning bool, reason, format string, args ...any) {
	severity := corev1.EventTypeNormal
	if warning {
		severity = corev1.EventTypeWarning
	}
	d.events.Event(&corev1.ObjectReference{
		APIVersion: v1alpha1.Group + "/" + v1alpha1.Version, Kind: kind, Namespace: meta.Namespace, Name: meta.Name, UID: meta.UID,
		ResourceVersion: meta.ResourceVersion,
	}, severity, reason, fmt.Sprintf(format, args...))
}
