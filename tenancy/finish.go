package tenancy

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"

	"github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
)

const (
	// runs is how many workspaces have controllers at the same time. The others wait for their turn.
	runs = 32
	// settleTime is how long a mark must have been seen before it is removed; see Marker.
	settleTime = 2 * markValidity
	// quietTime is how long nothing may have been left to finish, and nothing may have changed, before the mark is removed.
	quietTime = 2 * time.Second
	// syncTimeout is how long the controllers may take to read everything.
	syncTimeout = time.Minute
	// stuckTime is how long something may be left while nothing changes. It waits for someone else then, such as a user's finalizer.
	stuckTime = 30 * time.Second
	// turn is how long a workspace keeps its controllers while others wait.
	turn = 2 * time.Minute
	// firstRetry and lastRetry are how long a workspace waits whose controllers could not finish. A new mark ends the wait, and the
	// request that removes a finalizer makes one. So retries are rare: many workspaces may wait, and each retry takes a place for
	// stuckTime.
	firstRetry, lastRetry = 5 * time.Second, time.Hour
)

// Observation is what the controllers of a workspace have left.
type Observation struct {
	// Synced is set once the controllers have read everything.
	Synced bool
	// Left is how many things are left to finish, and First is one of them.
	Left  int
	First string
	// Objects is how many objects the workspace has.
	Objects int
}

// Observed is called with an Observation of the controllers' caches, which may be late. current reads all objects again. The controllers
// go on while it returns true.
type Observed func(seen Observation, current func() (Observation, error)) (more bool)

// verdict is the decision about the controllers of a workspace that run.
type verdict string

const (
	goOn   verdict = "go on"
	done   verdict = "done"    // remove the mark, and stop
	stuck  verdict = "stuck"   // stop, keep the mark, and try again later
	yields verdict = "yields"  // stop, and run again after those that wait
	parks  verdict = "parks"   // stop, and look again when the mark has been seen for long enough
	ended  verdict = "is over" // stop: there is no mark any more
)

// run is one run of the controllers of a workspace.
type run struct {
	due           string
	began, marked time.Time // marked is when this mark was seen first
	last          Observation
	changed       time.Time // since when the observation is the last one
	// reads is set if observations are reads of everything, and not of caches, which may be late. Then nothing is gained by waiting until the mark may be
	// removed, while others wait for a place.
	reads bool
}

// observe records an observation, and returns the decision. due is the mark of the workspace now; othersWait is set if other
// workspaces wait for their turn.
func (r *run) observe(now time.Time, due string, seen Observation, othersWait bool) verdict {
	if due != r.due {
		r.due, r.marked = due, now
	}
	if seen != r.last {
		r.last, r.changed = seen, now
	}
	unchanged := now.Sub(r.changed)
	quiet := seen.Synced && seen.Left == 0 && (r.reads || unchanged >= quietTime)
	settled := now.Sub(r.marked) >= settleTime
	switch {
	case due == "":
		return ended
	case !seen.Synced && now.Sub(r.began) >= syncTimeout, seen.Synced && seen.Left > 0 && unchanged >= stuckTime:
		return stuck
	case quiet && settled:
		return done
	case quiet && r.reads && othersWait:
		return parks
	case othersWait && now.Sub(r.began) >= turn:
		return yields
	}
	return goOn
}

// errYields is the outcome of a run that makes room for others.
var errYields = errors.New("others wait")

// errStopped is the outcome of a run that was ended from outside: the workspace is being deleted, or the server stops. The next attempt
// finds out which.
var errStopped = errors.New("the controllers stopped before they were done")

// errLeft is the outcome of a run that could not finish.
type errLeft Observation

func (e errLeft) Error() string {
	if !e.Synced {
		return "its objects cannot be read completely: " + e.First
	}
	return fmt.Sprintf("%d things are left, such as %s", e.Left, e.First)
}

// finisher does one kind of work in workspaces that are due for it.
type finisher struct {
	*controller
	work Work
	// run does the work in the workspace with that path, as ControllerConfig.Finish.
	run   func(ctx context.Context, path string, observed Observed) error
	queue workqueue.TypedRateLimitingInterface[string] // paths
	// unmarked has the last mark of a workspace that was removed, by its path.
	unmarked sync.Map
	// parked has the *run of each workspace that has parked, by its path.
	parked sync.Map
}

func (c *controller) newFinisher(work Work, run func(context.Context, string, Observed) error) *finisher {
	return &finisher{controller: c, work: work, run: run, queue: workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[string](firstRetry, lastRetry),
		workqueue.TypedRateLimitingQueueConfig[string]{Name: "tenancy-" + string(work), Clock: c.Clock})}
}

// enqueue queues the workspaces that have a new mark. The reason for their wait may be gone.
func (c *finisher) enqueue(was, is *v1alpha1.Workspace) {
	if was != nil && (is == nil || is.UID != was.UID) {
		for _, path := range c.work.paths(was) {
			c.unmarked.Delete(path)
			c.parked.Delete(path)
		}
		was = nil
	}
	if is == nil {
		return
	}
	for _, path := range c.work.paths(is) {
		if due := c.work.of(is, path); due == "" || was != nil && c.work.of(was, path) == due {
			continue
		}
		c.queue.Forget(path)
		c.queue.Add(path)
	}
}

// finish does the work in a workspace until nothing is left to finish.
func (c *finisher) finish(ctx context.Context, path string) error {
	name, nested := rootOf(path)
	w, exists := c.cache.Get(name)
	if !exists || c.work.of(w, path) == "" || w.DeletionTimestamp != nil {
		return nil
	}
	if removed, ok := c.unmarked.Load(path); ok && removed == c.work.of(w, path) {
		return nil // the cache does not know yet
	}
	now := c.Clock.Now()
	r := &run{due: c.work.of(w, path), began: now, marked: now, changed: now, reads: c.work == Placement}
	if before, ok := c.parked.LoadAndDelete(path); ok {
		if parked, ok := before.(*run); ok && parked.due == r.due {
			r.marked = parked.marked
		}
	}
	outcome := verdict(goOn)
	err := c.run(ctx, path, func(seen Observation, current func() (Observation, error)) (more bool) {
		is, exists := c.cache.Get(name)
		if !exists || is.UID != w.UID || is.DeletionTimestamp != nil {
			outcome = ended
			return false
		}
		outcome = r.observe(c.Clock.Now(), c.work.of(is, path), seen, c.queue.Len() > 0)
		if outcome == done && !(c.isDone(path, current) && c.unmark(ctx, is, path)) {
			outcome = goOn // something is left, or it was marked again, or it is not known now
		}
		return outcome == goOn
	})
	switch {
	case errors.Is(err, ErrNotFound) && nested:
		return c.unmarkDeleted(ctx, w, path)
	case errors.Is(err, ErrNotFound):
		return nil // the mark goes with the Workspace
	case err != nil:
		return err
	case outcome == stuck:
		return errLeft(r.last)
	case outcome == yields:
		return errYields
	case outcome == parks:
		c.parked.Store(path, r)
		c.queue.AddAfter(path, settleTime-c.Clock.Since(r.marked))
		return nil
	case outcome == goOn:
		return errStopped
	}
	return nil
}

// unmarkDeleted removes the mark of a workspace in another one that does not exist any more.
func (c *finisher) unmarkDeleted(ctx context.Context, root *v1alpha1.Workspace, path string) error {
	if !c.unmark(ctx, root, path) {
		return errStopped
	}
	return nil
}

// isDone reports whether nothing is left, by a read of all objects: a watch could be later than a mark is old.
func (c *finisher) isDone(path string, current func() (Observation, error)) bool {
	is, err := current()
	if err != nil {
		c.Log.Info("the objects of a workspace cannot be read; retrying", "workspace", path, "error", err)
	}
	return err == nil && is.Synced && is.Left == 0
}

// unmark removes the mark of a workspace, in the version of the root's Workspace that was read.
func (c *finisher) unmark(ctx context.Context, root *v1alpha1.Workspace, path string) bool {
	err := patchStatus(ctx, c.Client, root.Name, map[string]any{"uid": root.UID, "resourceVersion": root.ResourceVersion}, c.work.patch(path, nil))
	if err != nil && !apierrors.IsConflict(err) && ctx.Err() == nil {
		c.Log.Warn("remove the mark of a workspace failed; retrying", "workspace", path, "error", err)
	}
	if err == nil {
		c.unmarked.Store(path, c.work.of(root, path))
	}
	return err == nil
}

// unfinished decides whether a workspace whose controllers stopped early waits longer each time.
func (c *finisher) unfinished(path string, err error) (again bool) {
	if errors.Is(err, errYields) {
		c.queue.Add(path) // behind those that wait
		return false
	}
	if errors.Is(err, errStopped) {
		return true
	}
	c.Log.Info("the controllers of a workspace could not finish; retrying", "workspace", path, "reason", err.Error())
	return true
}
