package workspaces

import (
	"context"
	"fmt"
	"hash/fnv"
	"net/http"
	"runtime"
	"sync/atomic"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/util/flowcontrol"
	"k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing"
	"k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing/eventclock"
	"k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing/queueset"
	"k8s.io/apiserver/pkg/util/flowcontrol/metrics"
	flowcontrolrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
)

// flowLimits bound what the workspaces of a server use of it at the same time.
type flowLimits struct {
	// seats is how many requests of users run at the same time, in all workspaces together; serverSeats is the same for the server's
	// own requests. Neither kind waits for the other one.
	seats, serverSeats int
	// requests is how many requests of one workspace run or wait at the same time. It is less than seats, so that requests of one
	// workspace which take long, such as slow uploads, leave room for the others.
	requests int64
	// queue is how many requests wait in one queue; each workspace has a few of them.
	queue int
	// watches is how many watches and other long-running requests of one workspace run at the same time.
	watches int64
	// together is how many requests of one workspace run at the same time while other workspaces have requests too, and pause is how long
	// the others wait at most: see pace.
	together int
	pause    time.Duration
}

// defaultFlowLimits has upstream's number of requests in flight.
func defaultFlowLimits() flowLimits {
	return flowLimits{seats: 600, serverSeats: 200, requests: 400, queue: 50, watches: 2000, together: max(8, 4*runtime.GOMAXPROCS(0)), pause: time.Second}
}

// Each workspace has queuesOfWorkspace queues of all, which its UID determines. That all queues of two workspaces are the same is
// very unlikely.
const (
	queues            = 128
	queuesOfWorkspace = 6
)

// retryWatchAfter is how many seconds a client waits before it repeats a watch that was one too many.
const retryWatchAfter = 10

// flows is upstream's fair queuing with a workspace as the flow. The priority levels are fixed: FlowSchemas are objects of one
// workspace, and no workspace may decide about the others.
//
// Upstream's filter calls it. It has no count of watches, because that would be one of all workspaces: a write costs one seat.
type flows struct {
	flowcontrol.MaxSeatsTracker
	limits        flowLimits
	users, server *level
	// latest is the flow of the latest request of a user, and shared is when that last was another one than before.
	latest atomic.Uint64
	shared atomic.Pointer[time.Time]
}

var _ flowcontrol.Interface = (*flows)(nil)

// level is one of the priority levels.
type level struct {
	schema *flowcontrolv1.FlowSchema
	config *flowcontrolv1.PriorityLevelConfiguration
	set    fairqueuing.QueueSet
}

func newFlows(limits flowLimits) (*flows, error) {
	f := &flows{MaxSeatsTracker: flowcontrol.NewMaxSeatsTracker(), limits: limits}
	var err error
	if f.users, err = f.newLevel("workspaces", limits.seats); err != nil {
		return nil, err
	}
	f.server, err = f.newLevel("workspaces-server", limits.serverSeats)
	return f, err
}

// newLevel returns a level. Its name is in metrics, the names of workspaces are not.
func (f *flows) newLevel(name string, seats int) (*level, error) {
	metrics.Register()
	clock, labels := eventclock.Real{}, []string{name}
	made, err := queueset.NewQueueSetFactory(clock).BeginConstruction(
		fairqueuing.QueuingConfig{Name: name, DesiredNumQueues: queues, QueueLengthLimit: f.limits.queue, HandSize: queuesOfWorkspace},
		metrics.RatioedGaugeVecPhasedElementPair(metrics.PriorityLevelConcurrencyGaugeVec, 1, 1, labels),
		metrics.PriorityLevelExecutionSeatsGaugeVec.NewForLabelValuesSafe(0, 1, labels),
		fairqueuing.NewNamedIntegrator(clock, name))
	if err != nil {
		return nil, fmt.Errorf("create the queues of requests to workspaces: %w", err)
	}
	f.SetMaxSeats(name, uint64(max(seats/10, 1))) // for one list
	return &level{
		schema: &flowcontrolv1.FlowSchema{ObjectMeta: metav1.ObjectMeta{Name: name}},
		config: &flowcontrolv1.PriorityLevelConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}},
		set:    made.Complete(fairqueuing.DispatchingConfig{ConcurrencyLimit: seats, ConcurrencyDenominator: seats}),
	}, nil
}

// Handle implements flowcontrol.Interface. It runs a request, perhaps after it has waited; a request that is one too many does not
// run.
func (f *flows) Handle(ctx context.Context, digest flowcontrol.RequestDigest,
	note func(*flowcontrolv1.FlowSchema, *flowcontrolv1.PriorityLevelConfiguration, string),
	estimate func() flowcontrolrequest.WorkEstimate, queueNote fairqueuing.QueueNoteFn, run func(),
) {
	l := f.users
	if isServers(ctx) {
		l = f.server
	}
	note(l.schema, l.config, "")
	w := workspaceOf(ctx)
	if w == nil { // authentication has refused it before
		return
	}
	if l == f.users {
		if !enter(&w.requests, f.limits.requests) {
			metrics.AddReject(ctx, l.config.Name, l.schema.Name, "concurrency-limit")
			return
		}
		defer w.requests.Add(-1)
		defer f.pace(ctx, w)()
	}
	work := estimate()
	admitted, _ := l.set.StartRequest(ctx, &work, w.flow(), "", l.schema.Name, digest.RequestInfo, digest.User, queueNote)
	if admitted == nil {
		return
	}
	admitted.Finish(func() {
		metrics.AddDispatch(ctx, l.config.Name, l.schema.Name)
		run()
	})
}

// sharedWithin is how long after its last request a workspace counts as one that has requests.
const sharedWithin = time.Second

// pace waits while the workspace has enough requests that run, and others have requests too. Seats alone would not help these: a server
// has fewer CPUs than seats, so each request takes as long as all that run together.
//
// It waits for a limited time only, because a running request may wait for one that begins here: its webhook may ask this workspace.
// The caller calls over when the request is over.
func (f *flows) pace(ctx context.Context, w *Workspace) (over func()) {
	slots := w.slots(f.limits.together)
	end := func() { <-slots }
	shared := f.isShared(w, time.Now())
	select {
	case slots <- struct{}{}:
		return end
	default:
	}
	if !shared {
		return func() {}
	}
	timer := time.NewTimer(f.limits.pause)
	defer timer.Stop()
	select {
	case slots <- struct{}{}:
		return end
	case <-timer.C:
	case <-ctx.Done():
	}
	return func() {}
}

// isShared records a request, and reports whether several workspaces have requests.
func (f *flows) isShared(w *Workspace, now time.Time) bool {
	flow := w.flow()
	if before := f.latest.Swap(flow); before != 0 && before != flow {
		f.shared.Store(&now)
		return true
	}
	at := f.shared.Load()
	return at != nil && now.Sub(*at) < sharedWithin
}

// slots returns the channel that has an element for each request that runs, at most n.
func (w *Workspace) slots(n int) chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.paced == nil {
		w.paced = make(chan struct{}, n)
	}
	return w.paced
}

// flow is the number that determines a workspace's queues.
func (w *Workspace) flow() uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(w.uid))
	return h.Sum64()
}

// Run implements flowcontrol.Interface: there are no objects to follow.
func (*flows) Run(stop <-chan struct{}) error { <-stop; return nil }

// Install implements flowcontrol.Interface: it adds no paths, because a path would be in every workspace.
func (*flows) Install(*mux.PathRecorderMux) {}

// RegisterWatch implements flowcontrol.WatchTracker.
func (*flows) RegisterWatch(*http.Request) flowcontrol.ForgetWatchFunc { return func() {} }

// GetInterestedWatchCount implements flowcontrol.WatchTracker.
func (*flows) GetInterestedWatchCount(*request.RequestInfo) int { return 0 }

// boundWatches refuses the long-running requests of a workspace that exceed the limit. They hold no seat while they run. Those of the
// server itself do not count.
func (f *flows) boundWatches(next http.Handler, longRunning request.LongRunningRequestCheck) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		info, ok := request.RequestInfoFrom(ctx)
		workspace := workspaceOf(ctx)
		if !ok || workspace == nil || isServers(ctx) || !longRunning(r, info) {
			next.ServeHTTP(w, r)
			return
		}
		if !enter(&workspace.watches, f.limits.watches) {
			answer(w, r, apierrors.NewTooManyRequests(fmt.Sprintf(
				"the workspace has %d watches and other long-running requests on this server, which is the limit: close some of them, or retry later", f.limits.watches), retryWatchAfter))
			return
		}
		defer workspace.watches.Add(-1)
		next.ServeHTTP(w, r)
	})
}

// enter counts a request in, unless there are as many as permitted.
func enter(n *atomic.Int64, limit int64) bool {
	if n.Add(1) > limit {
		n.Add(-1)
		return false
	}
	return true
}
