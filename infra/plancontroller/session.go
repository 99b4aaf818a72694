package plancontroller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/placing"
)

// engineInventory is the part of the engine's inventory that is read here.
type engineInventory interface {
	Object(ref expr.Ref) *infra.Object
	State(ref expr.Ref) *infra.State
	Unapplied(namespace string) map[expr.Ref][]byte
}

// inventoryFeed is the part of feed.Feed that is used here.
type inventoryFeed interface {
	WaitCurrent(ctx context.Context) error
	Drifted(ref expr.Ref) bool
}

// sessionConfig is what a session works with.
type sessionConfig struct {
	dynamic   dynamic.Interface
	kube      kubernetes.Interface
	inventory engineInventory
	workloads *placing.Workloads
	clock     clock.WithTicker
	log       *slog.Logger
	metrics   *Metrics // may be nil
}

// session is what all parts of a reconciler share while this server leads. Each part has its own state.
type session struct {
	sessionConfig
	api      clients
	caches   *caches
	policies *policies
	// writes counts the writes that the feed reports.
	writes   *writes
	backoffs *backoffs
	events   record.EventRecorder // set by run
	queue    workqueue.TypedRateLimitingInterface[string]
	running  sync.WaitGroup // plans and applies
}

func newSession(cfg sessionConfig) *session {
	s := &session{
		sessionConfig: cfg, api: newClients(cfg.dynamic), caches: newCaches(cfg.dynamic), writes: newWrites(cfg.clock), backoffs: newBackoffs(cfg.clock),
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(workqueue.NewTypedItemExponentialFailureRateLimiter[string](50*time.Millisecond, 30*time.Second),
			workqueue.TypedRateLimitingQueueConfig[string]{Name: "infra_plans", Clock: cfg.clock}),
	}
	s.policies = newPolicies(s.api, s.caches)
	return s
}

// observeWrite records a write that the feed reports, and reconciles its namespace soon.
func (s *session) observeWrite(namespace string, state bool) {
	s.writes.observe(namespace, state)
	s.requeueAfter(namespace, checkInterval/3)
}

// requeueAfter reconciles a namespace again after a delay.
func (s *session) requeueAfter(namespace string, after time.Duration) {
	s.queue.AddAfter(namespace, max(after, 0))
}

// recordEvent records an event of a Plan or an Apply.
func (s *session) recordEvent(kind string, meta *metav1.ObjectMeta, warning bool, reason, format string, args ...any) {
	severity := corev1.EventTypeNormal
	if warning {
		severity = corev1.EventTypeWarning
	}
	s.events.Event(&corev1.ObjectReference{
		APIVersion: v1alpha1.Group + "/" + v1alpha1.Version, Kind: kind, Namespace: meta.Namespace, Name: meta.Name, UID: meta.UID,
		ResourceVersion: meta.ResourceVersion,
	}, severity, reason, fmt.Sprintf(format, args...))
}

// syncTimeout bounds the wait until the inventory has all earlier writes.
const syncTimeout = 2 * time.Minute

// waitCurrent returns once the inventory has all earlier writes.
func waitCurrent(ctx context.Context, feed inventoryFeed) error {
	ctx, cancel := context.WithTimeoutCause(ctx, syncTimeout, errors.New("timed out"))
	defer cancel()
	return feed.WaitCurrent(ctx)
}
