package server

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	tenancyv1alpha1 "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/apiserver/workspaces"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/tenancy"
	"github.com/atoll-dev/atoll/tenancy/mapping"
	"github.com/atoll-dev/atoll/tenancy/placing"
)

const (
	// placementUser is the user, in the audit log, for what concerns the placement of a workspace by its parent.
	placementUser = "atoll:placement"
	// passInterval is how often the objects of a workspace may be compared with their copies while it is due.
	passInterval = time.Second
	// idlePassInterval is how often they are compared although nothing is known to have changed: copies may change by another server.
	idlePassInterval = 5 * time.Second
	// passesAfterChange is how many passes follow the change of a copy: when the first one reads, it may not be stored yet.
	passesAfterChange = 2
)

// follow lets changes in a workspace mark it if its parent places its objects.
func (t *tenants) follow(open *tenant, w *tenancyv1alpha1.Workspace, path string) {
	if w.Spec.Placement == nil {
		open.SetFollowed(nil)
		return
	}
	open.SetFollowed(&workspaces.Followed{Resources: mapping.Follows, Changing: func(ctx context.Context) error {
		return t.marker.Mark(ctx, tenancy.Placement, path, string(w.UID))
	}})
}

// place places the objects of a workspace, as tenancy.ControllerConfig.Place.
func (t *tenants) place(ctx context.Context, path string, observed tenancy.Observed) error {
	in, open, release, err := t.tree.Acquire(ctx, path)
	if err != nil {
		return err
	}
	defer release()
	p := &placements{t: t, path: path, open: open}
	p.run(in, observed)
	return nil
}

// placements place the objects of one workspace while it is due for that.
type placements struct {
	t    *tenants
	path string
	open *tenant
	// urgent is how many passes are to be made at once. Requests set it.
	urgent atomic.Int32

	// The fields below belong to the goroutine of run.

	// revision is that of the workspace before the last pass, and passed when that was.
	revision kv.Revision
	passed   time.Time
	// placer is nil as long as the parent does not place the objects.
	placer *placing.Placer
	// child is that of the placer.
	child mapping.Child
	last  placing.Result
	err   error
	// changes is how many changes were made: an observation differs after each.
	changes int
}

// run makes a pass whenever there may be something to do, until observed returns false or ctx ends. The workspace is open as long.
func (p *placements) run(ctx context.Context, observed tenancy.Observed) {
	p.t.placing.Store(p.path, p)
	defer p.t.placing.CompareAndDelete(p.path, p)
	ticker := p.t.s.cfg.Clock.NewTicker(passInterval)
	defer ticker.Stop()
	for {
		if p.needed(ctx) {
			p.pass(ctx)
		}
		if !observed(p.observation(), func() (tenancy.Observation, error) {
			p.pass(ctx)
			return p.observation(), p.err
		}) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
	}
}

// needed reports whether a pass may find something to do.
func (p *placements) needed(ctx context.Context) bool {
	urgent := p.urgent.Load() > 0
	if urgent {
		p.urgent.Add(-1)
	}
	return urgent || p.err != nil || p.last.Changes > 0 || len(p.last.Problems) > 0 || p.t.s.cfg.Clock.Since(p.passed) >= idlePassInterval || p.revision == 0 || p.revision != p.open.revision(ctx)
}

// revision returns the revision of the keyspace, or 0 if none shows all changes.
func (o *tenant) revision(ctx context.Context) kv.Revision {
	if len(o.keyspace.Prefixes()) > 0 { // it is split, and each part has revisions of its own
		return 0
	}
	found, err := o.keyspace.Range(ctx, kv.RangeRequest{Span: kv.Span{Start: []byte("/")}})
	if err != nil {
		return 0
	}
	return found.Revision
}

// pass places the objects once, if the parent is to place them.
func (p *placements) pass(ctx context.Context) {
	p.revision, p.passed = p.open.revision(ctx), p.t.s.cfg.Clock.Now()
	w, parent, release, err := p.t.withParent(ctx, p.path)
	if err == nil {
		defer release()
		if string(w.UID) != p.open.UID() {
			err = tenancy.ErrNotFound
		} else {
			err = p.prepare(w, parent)
		}
	}
	if err == nil && p.placer != nil {
		p.last, err = p.placer.Pass(ctx)
		p.changes += p.last.Changes
		if err == nil {
			err = p.t.reportPlacement(ctx, parent, w, placedCondition(p.last))
		} else if errors.Is(err, placing.ErrTooLarge) {
			large := controllers.Condition(tenancyv1alpha1.WorkspacePlacedCondition, false, "TooLarge", placing.ErrTooLarge.Error())
			err = errors.Join(err, p.t.reportPlacement(ctx, parent, w, large))
		}
		if apierrors.IsConflict(err) { // the next pass has a newer Workspace
			err = nil
		}
	}
	if p.err = err; err != nil && ctx.Err() == nil && !errors.Is(err, tenancy.ErrNotFound) {
		p.t.s.cfg.Log.Info("the objects of a workspace cannot be placed now; retrying", "workspace", p.path, "error", err)
	}
}

// prepare creates the placer, again if the child has other labels for its namespaces.
func (p *placements) prepare(w *tenancyv1alpha1.Workspace, parent *rest.Config) error {
	if w.Spec.Placement == nil {
		p.placer, p.last = nil, placing.Result{}
		return nil
	}
	child := childOf(w)
	if p.placer != nil && equality.Semantic.DeepEqual(child, p.child) {
		return nil
	}
	own, err := p.t.served.ClientConfigAs(p.open.Workspace, p.path, placementUser)
	if err != nil {
		return err
	}
	cfg := placing.Config{Child: child, Clock: p.t.s.cfg.Clock, Log: p.t.s.cfg.Log}
	if cfg.Source, cfg.SourceKinds, err = clientsOf(own); err != nil {
		return err
	}
	if cfg.Parent, cfg.ParentKinds, err = clientsOf(parent); err != nil {
		return err
	}
	asChild := rest.CopyConfig(parent)
	asChild.WarningHandlerWithContext = rest.NoWarnings{}
	asChild.Impersonate = rest.ImpersonationConfig{UserName: child.User()}
	if cfg.Copies, err = dynamic.NewForConfig(asChild); err != nil {
		return err
	}
	p.placer, p.child = placing.New(cfg), child
	return nil
}

func clientsOf(config *rest.Config) (dynamic.Interface, discovery.ServerResourcesInterface, error) {
	config = rest.CopyConfig(config)
	config.WarningHandlerWithContext = rest.NoWarnings{} // they are for users, and each pass would log them
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, nil, err
	}
	kinds, err := discovery.NewDiscoveryClientForConfig(config)
	return client, kinds, err
}

// childOf returns a workspace as its parent knows it.
func childOf(w *tenancyv1alpha1.Workspace) mapping.Child {
	c := mapping.Child{Name: w.Name, UID: w.UID}
	if w.Spec.Placement != nil {
		c.NamespaceLabels = w.Spec.Placement.NamespaceLabels
	}
	return c
}

// observation returns the state after the last pass.
func (p *placements) observation() tenancy.Observation {
	if p.err != nil {
		return tenancy.Observation{First: p.err.Error()}
	}
	seen := tenancy.Observation{Synced: true, Left: len(p.last.Problems), Objects: p.changes}
	if seen.Left > 0 {
		seen.First = p.last.Problems[0].String()
	}
	return seen
}

// withParent returns the Workspace with a path, and the configuration of a client of the API that has it, which stays open until it is released.
func (t *tenants) withParent(ctx context.Context, path string) (w *tenancyv1alpha1.Workspace, parent *rest.Config, release func(), err error) {
	above, name := tenancy.Parent(path), tenancy.Name(path)
	if above == "" {
		if w, err = t.directory.Find(ctx, name); err != nil {
			return nil, nil, nil, err
		}
		return w, t.s.api.ClientConfig(placementUser), func() {}, nil
	}
	in, open, release, err := t.tree.Acquire(ctx, above)
	if err != nil {
		return nil, nil, nil, err
	}
	if w, err = t.child(in, open, name); err == nil {
		parent, err = t.served.ClientConfigAs(open.Workspace, above, placementUser)
	}
	if err != nil {
		release()
		return nil, nil, nil, err
	}
	return w, parent, release, nil
}

// copyChanging marks a workspace as due when a copy of one of its objects changes in its parent.
func (t *tenants) copyChanging(ctx context.Context, object metav1.Object) {
	name, uid := mapping.ChildOf(object)
	path := below(workspaces.PathOf(ctx), name)
	t.marker.Note(ctx, tenancy.Placement, path, uid)
	if running, ok := t.placing.Load(path); ok {
		if p, ok := running.(*placements); ok {
			p.urgent.Store(passesAfterChange)
		}
	}
}

// reportPlacement writes the condition Placed of a Workspace.
func (t *tenants) reportPlacement(ctx context.Context, parent *rest.Config, w *tenancyv1alpha1.Workspace, condition metav1.Condition) error {
	condition.ObservedGeneration = w.Generation
	if found := meta.FindStatusCondition(w.Status.Conditions, condition.Type); found != nil && found.Status == condition.Status &&
		found.Reason == condition.Reason && found.Message == condition.Message && found.ObservedGeneration == condition.ObservedGeneration {
		return nil
	}
	client, err := dynamic.NewForConfig(parent)
	if err != nil {
		return err
	}
	return tenancy.SetCondition(ctx, client, w, condition, t.s.cfg.Clock.Now())
}

// placedCondition summarizes a pass.
func placedCondition(result placing.Result) metav1.Condition {
	if n := len(result.Problems); n > 0 {
		return controllers.Condition(tenancyv1alpha1.WorkspacePlacedCondition, false, placing.ReasonNotPlaced,
			fmt.Sprintf("%d objects are not placed, such as %s", n, result.Problems[0]))
	}
	return controllers.Condition(tenancyv1alpha1.WorkspacePlacedCondition, true, "Copied", "the workspace above has all objects that it is to place")
}
