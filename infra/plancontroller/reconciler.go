package plancontroller

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/apistore"
	"github.com/atoll-dev/atoll/infra/expr"
)

// workers reconcile namespaces concurrently, which takes milliseconds each.
const workers = 4

// engine plans and applies what an Inventory has.
type engine interface {
	planEngine
	applyEngine
}

// engineConfig is what plans and applies are carried out with.
type engineConfig struct {
	engine   engine
	feed     inventoryFeed
	objects  infra.ObjectWriter
	types    kindNames
	kinds    kindLookup
	language *expr.Language
	// The next three are described in Config.
	journal     string
	acknowledge func(call string) error
	onLargeRun  func(retained bool) (done func())
	// impersonate returns a client with the rights of another user.
	impersonate func(*v1alpha1.Person) (dynamic.Interface, error)
}

// reconciler handles Plans, Approvals, Applies and policies, one namespace at a time. It takes a snapshot of
// the namespace, and each of its parts does the next thing. Long-running work has goroutines of its own: at
// most one plan and one apply in each namespace.
type reconciler struct {
	*session
	planning   *planning
	conditions *conditions
	applying   *applying
	syncing    *syncing
	history    *history
}

func newReconciler(s *session, cfg engineConfig) *reconciler {
	approvals := &planPolicies{session: s}
	applies := &applyStatus{session: s}
	return &reconciler{
		session: s,
		planning: &planning{
			session: s, planner: cfg.engine, feed: cfg.feed, objects: cfg.objects, onLargeRun: cfg.onLargeRun,
			requests:  &requests{session: s, types: cfg.types, language: cfg.language},
			rollbacks: &rollbacks{session: s, kinds: cfg.kinds},
			status:    &planStatus{session: s},
			slots:     make(chan struct{}, planningAtOnce), busy: map[string]bool{},
		},
		conditions: &conditions{session: s, approvals: approvals},
		applying: &applying{
			session: s, approvals: approvals, status: applies,
			runner: &applyRunner{
				session: s, applier: cfg.engine, feed: cfg.feed, kinds: cfg.kinds, status: applies,
				journal: cfg.journal, acknowledge: cfg.acknowledge, onLargeRun: cfg.onLargeRun, impersonate: cfg.impersonate,
			},
			slots: make(chan struct{}, applyingAtOnce), runs: map[string]*applyRun{},
		},
		syncing: &syncing{session: s, approvals: approvals, checks: map[driftCheck]time.Time{}},
		history: &history{session: s},
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
	controllers.RunWorkers(ctx, r.queue, workers, r.reconcile, r.failed)
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

func (r *reconciler) reconcile(ctx context.Context, namespace string) error {
	s := r.snapshot(namespace)
	r.planning.advance(ctx, s)
	return errors.Join(
		r.conditions.update(ctx, s),
		r.applying.advance(ctx, s),
		r.syncing.follow(ctx, s),
		r.policies.report(ctx, s),
		r.history.collect(ctx, s),
	)
}

// failed counts and logs a failed reconcile, which is retried.
func (r *reconciler) failed(namespace string, err error) (again bool) {
	r.metrics.failed(operationReconcile, err)
	if !apierrors.IsConflict(err) {
		r.log.Warn("reconcile failed; retrying", "namespace", namespace, "error", err)
	}
	return true
}
