package tenancy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
)

// FieldManager owns the status and the finalizer of Workspaces.
const FieldManager = "atoll-tenancy"

// workers is how many workspaces are created or removed at the same time.
const workers = 8

// ControllerConfig configures RunController.
type ControllerConfig struct {
	Client dynamic.Interface
	// Directory has the workspaces of the root. It runs already, so that a server holds each of them only once.
	Directory *Directory
	Clock     clock.WithTicker
	Log       *slog.Logger
	// Create makes the workspace with that path complete. It may be repeated.
	// Errors: *Unready.
	Create func(ctx context.Context, path string, w *v1alpha1.Workspace) error
	// Remove ends the requests of a workspace and of the workspaces in it, and removes their objects. It may be repeated, also after it succeeded.
	Remove func(ctx context.Context, path string, w *v1alpha1.Workspace) error
	// Open returns a client of the workspace with that path, and a context that ends when the workspace is being deleted. nil if there are
	// no workspaces in workspaces.
	// Errors: ErrNotFound.
	Open func(ctx context.Context, path string) (in context.Context, client dynamic.Interface, release func(), err error)
	// Settle adjusts the parts that the workspaces directly in one take of its limits; nil does nothing. It may be repeated.
	Settle func(ctx context.Context, path string, children []*v1alpha1.Workspace) error
	// Finish runs the controllers of the workspace with that path, and reports an Observation at least once a second, until observed returns
	// false. It returns when they have stopped.
	// Errors: ErrNotFound, also if the workspace is being deleted.
	Finish func(ctx context.Context, path string, observed Observed) error
	// Place copies the objects of the workspace with that path to its parent, in the same way; nil if no workspaces are placed.
	Place func(ctx context.Context, path string, observed Observed) error
}

// place is where a Workspace is: the client reaches its object, and the path is its own.
type place struct {
	client dynamic.Interface
	path   string
}

type controller struct {
	ControllerConfig
	cache controllers.Cache[v1alpha1.Workspace]        // that of the Directory
	queue workqueue.TypedRateLimitingInterface[string] // names
	// changes are those in workspaces: see nested.go.
	changes changes
}

// RunController creates workspaces and removes those that are being deleted, until ctx ends. It runs on one server.
func RunController(ctx context.Context, cfg ControllerConfig) error {
	c := &controller{ControllerConfig: cfg, changes: changes{seen: map[changeKey]*change{}},
		cache: cfg.Directory.cache,
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](100*time.Millisecond, time.Minute),
			workqueue.TypedRateLimitingQueueConfig[string]{Name: "tenancy", Clock: cfg.Clock})}
	defer c.queue.ShutDown()
	finishers := []*finisher{c.newFinisher(Controllers, cfg.Finish)}
	if cfg.Place != nil {
		finishers = append(finishers, c.newFinisher(Placement, cfg.Place))
	}
	for _, f := range finishers {
		defer f.queue.ShutDown()
	}
	changes, err := c.cache.AddOnChange(func(was, is *v1alpha1.Workspace) {
		if is != nil {
			c.queue.Add(is.Name)
		}
		for _, f := range finishers {
			f.enqueue(was, is)
		}
	})
	if err != nil {
		return fmt.Errorf("tenancy: watch workspaces: %w", err)
	}
	// This server may be elected again. It then needs all objects again, and must not have two handlers.
	defer func() { _ = c.cache.Informer.RemoveEventHandler(changes) }() // fails for a handler of another informer only
	if cache.WaitForCacheSync(ctx.Done(), changes.HasSynced) {
		var finishing sync.WaitGroup
		for _, f := range finishers {
			finishing.Go(func() { controllers.RunWorkers(ctx, f.queue, runs, f.finish, f.unfinished) })
		}
		controllers.RunWorkers(ctx, c.queue, workers, c.reconcile, c.failed)
		finishing.Wait()
	}
	return nil
}

func (c *controller) failed(name string, err error) (again bool) {
	if unready, ok := errors.AsType[*Unready](err); ok && unready.After > 0 {
		c.queue.AddAfter(name, unready.After)
		return false
	}
	if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		c.Log.Warn("reconcile of a workspace failed; retrying", "workspace", name, "error", err)
	}
	return true
}

func (c *controller) reconcile(ctx context.Context, name string) error {
	w, exists := c.cache.Get(name)
	if !exists {
		return nil
	}
	if err := c.advance(ctx, place{c.Client, name}, w); err != nil {
		return err
	}
	if w.DeletionTimestamp != nil {
		c.changes.forgetAll(string(w.UID))
		return nil
	}
	return c.settle(ctx, w)
}

// advance creates or removes a workspace.
func (c *controller) advance(ctx context.Context, at place, w *v1alpha1.Workspace) error {
	if w.DeletionTimestamp != nil {
		return c.remove(ctx, at, w)
	}
	if err := c.setFinalizer(ctx, at, w, true); err != nil {
		return err
	}
	if w.Status.Phase == v1alpha1.WorkspaceReady && w.Spec.MovedTo == nil && w.Status.Path != servedPath(at.path) {
		return c.writeStatus(ctx, at, w, v1alpha1.WorkspaceReady, served()) // a workspace above it has moved
	}
	if w.Status.Phase == v1alpha1.WorkspaceReady {
		return nil
	}
	if err := c.Create(ctx, at.path, w); err != nil {
		ready := controllers.Condition(v1alpha1.WorkspaceReadyCondition, false, "CreationFailed", err.Error())
		if unready, ok := errors.AsType[*Unready](err); ok {
			ready.Reason, ready.Message = unready.Reason, unready.Message
		}
		return fmt.Errorf("create workspace %s: %w", at.path, errors.Join(err, c.writeStatus(ctx, at, w, v1alpha1.WorkspacePending, ready)))
	}
	return c.writeStatus(ctx, at, w, v1alpha1.WorkspaceReady, served())
}

func served() metav1.Condition {
	return controllers.Condition(v1alpha1.WorkspaceReadyCondition, true, "Served", "the workspace is served")
}

// servedPath is status.path of the workspace with that path.
func servedPath(path string) string { return "/clusters/" + path }

// remove removes a workspace that is being deleted: first its requests, then its objects, and its own object last.
func (c *controller) remove(ctx context.Context, at place, w *v1alpha1.Workspace) error {
	if !slices.Contains(w.Finalizers, v1alpha1.WorkspaceFinalizer) {
		return nil
	}
	removing := controllers.Condition(v1alpha1.WorkspaceReadyCondition, false, "Terminating", "its objects are being removed")
	if err := c.writeStatus(ctx, at, w, v1alpha1.WorkspaceTerminating, removing); err != nil {
		return err
	}
	if err := c.Remove(ctx, at.path, w); err != nil {
		removing.Reason, removing.Message = "RemovalFailed", err.Error()
		if unready, ok := errors.AsType[*Unready](err); ok && unready.Reason == RemovingCopies {
			removing.Reason, removing.Message = unready.Reason, unready.Message
		}
		return fmt.Errorf("remove the objects of workspace %s: %w", at.path, errors.Join(err, c.writeStatus(ctx, at, w, v1alpha1.WorkspaceTerminating, removing)))
	}
	return c.setFinalizer(ctx, at, w, false)
}

// setFinalizer adds or removes the finalizer, in the version of the object that was read.
func (c *controller) setFinalizer(ctx context.Context, at place, w *v1alpha1.Workspace, wanted bool) error {
	if slices.Contains(w.Finalizers, v1alpha1.WorkspaceFinalizer) == wanted {
		return nil
	}
	finalizers := slices.DeleteFunc(slices.Clone(w.Finalizers), func(f string) bool { return f == v1alpha1.WorkspaceFinalizer })
	if wanted {
		finalizers = append(finalizers, v1alpha1.WorkspaceFinalizer)
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": w.UID, "resourceVersion": w.ResourceVersion, "finalizers": finalizers}})
	if err != nil {
		return err
	}
	_, err = at.client.Resource(v1alpha1.WorkspaceResource).Patch(ctx, w.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: FieldManager})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("change the finalizers of workspace %s: %w", at.path, err)
	}
	return nil
}

// writeStatus writes the phase and a condition, unless they are so already.
func (c *controller) writeStatus(ctx context.Context, at place, w *v1alpha1.Workspace, phase v1alpha1.WorkspacePhase, ready metav1.Condition) error {
	status := *w.Status.DeepCopy()
	status.Phase, status.Path = phase, servedPath(at.path)
	ready.ObservedGeneration, ready.LastTransitionTime = w.Generation, metav1.NewTime(c.Clock.Now())
	meta.SetStatusCondition(&status.Conditions, ready)
	if equality.Semantic.DeepEqual(status, w.Status) {
		return nil
	}
	status.Due, status.DueBelow, status.PlacementDue, status.PlacementDueBelow, status.Changes, status.Fleets = "", nil, "", nil, nil, nil // not written: there may be others by now
	return patchStatus(ctx, at.client, w.Name, map[string]any{"uid": w.UID}, status)
}

// SetCondition writes a condition of a Workspace, with a client of the API that has it.
func SetCondition(ctx context.Context, client dynamic.Interface, w *v1alpha1.Workspace, condition metav1.Condition, now time.Time) error {
	conditions := w.DeepCopy().Status.Conditions
	condition.LastTransitionTime = metav1.NewTime(now)
	if !meta.SetStatusCondition(&conditions, condition) {
		return nil
	}
	// In the version that was read: the list has the conditions of others too.
	return patchStatus(ctx, client, w.Name, map[string]any{"uid": w.UID, "resourceVersion": w.ResourceVersion}, map[string]any{"conditions": conditions})
}
