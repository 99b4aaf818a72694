package imports

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// refreshInterval is the maximum age of status.types.lastReadTime while nothing changes: a
// write every minute for each of a thousand members would carry no information.
const refreshInterval = 10 * time.Minute

// reconcileCluster brings the imports of one member in line with its served types.
func (c *controller) reconcileCluster(ctx context.Context, name string) error {
	cluster, exists := c.Clusters.Get(name)
	if !exists {
		c.stopWatcher(name)
		return c.forget(ctx, name)
	}
	seen, silent := c.typesOf(cluster)
	if silent != "" {
		return c.markLastKnown(ctx, cluster, silent)
	}
	if seen.err != nil || !seen.complete {
		message := ""
		if seen.err != nil {
			message = explain(seen.err, name)
			// Without the error's text: it changes, and there may be many imports.
			if err := c.markLastKnown(ctx, cluster, fmt.Sprintf("the cluster's types cannot be read at the moment; showing the last known ones. For the cause, see status.types.message of Cluster %s", name)); err != nil {
				return err
			}
		}
		return c.writeTypesStatus(ctx, cluster, seen, message)
	}
	for _, t := range seen.types {
		if err := c.write(ctx, cluster, t); err != nil {
			return err
		}
	}
	for _, i := range c.imports.By(byLocation, name) {
		if _, serves := seen.types[i.Spec.Resource()]; !serves {
			if err := c.unserved(ctx, cluster, i); err != nil {
				return err
			}
		}
	}
	if err := c.sweepReports(ctx, cluster); err != nil {
		return err
	}
	return c.writeTypesStatus(ctx, cluster, seen, "")
}

// typesOf returns the known types of a member: from its syncer's reports in mode Pull,
// otherwise by reading the member. If nothing new can be known, silent is the reason.
func (c *controller) typesOf(cluster *v1alpha1.Cluster) (seen snapshot, silent string) {
	ready := meta.FindStatusCondition(cluster.Status.Conditions, v1alpha1.ClusterReady)
	if ready == nil {
		return snapshot{}, "the cluster has not been probed yet"
	}
	if ready.Status != metav1.ConditionTrue {
		c.stopWatcher(cluster.Name)
		return snapshot{}, fmt.Sprintf("the cluster has not been Ready since %s (%s); showing the last known types", ready.LastTransitionTime.UTC().Format(time.RFC3339), ready.Reason)
	}
	if cluster.InPullMode() {
		c.stopWatcher(cluster.Name)
		return c.reported(cluster), ""
	}
	// Watches survive an outage, but by then pause for long between attempts. So a cluster that
	// became Ready again is read from scratch.
	p, err := c.watcherFor(cluster, ready.LastTransitionTime.UTC().String())
	if err != nil {
		return snapshot{}, err.Error()
	}
	return p.snapshot(), ""
}

// watcherFor returns the watcher of a member, creating it if necessary. since distinguishes one
// period of readiness from another.
func (c *controller) watcherFor(cluster *v1alpha1.Cluster, since string) (*typeWatcher, error) {
	at, err := c.connect(cluster)
	if err != nil {
		return nil, err
	}
	state := at.digest + since
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.watchers[cluster.Name]
	if p != nil && p.state == state {
		return p, nil
	}
	if p != nil {
		p.stop()
		delete(c.watchers, cluster.Name)
	}
	w, err := at.open()
	if err != nil {
		return nil, err
	}
	name := cluster.Name
	r := watcherConfig{clock: c.Clock, fields: c.fields, inFull: c.inFull, running: &c.running}
	p, err = newTypeWatcher(c.ctx, r, name, w, state, func() { c.queue.Add(key{cluster: name}) })
	if err != nil {
		return nil, err
	}
	c.watchers[name] = p
	return p, nil
}

// stopWatcher stops reading a member. The member's known types stay.
func (c *controller) stopWatcher(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.watchers[name]; p != nil {
		p.stop()
		delete(c.watchers, name)
	}
}

// forget removes the imports of a deleted Cluster, after a live read has confirmed the
// deletion.
func (c *controller) forget(ctx context.Context, name string) error {
	imports := c.imports.By(byLocation, name)
	if len(imports) == 0 {
		c.forgetMember(name)
		return nil
	}
	_, err := c.Dynamic.Resource(v1alpha1.ClusterResource).Get(ctx, name, metav1.GetOptions{})
	if err == nil {
		return nil // recreated; an event will follow
	}
	if !apierrors.IsNotFound(err) {
		return fmt.Errorf("check whether cluster %s was deleted: %w", name, err)
	}
	c.forgetMember(name)
	for _, i := range imports {
		if err := c.remove(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

// forgetMember drops the in-memory state of a member.
func (c *controller) forgetMember(name string) {
	c.fields.forget(name)
	c.reportCache.forget(name)
}

func (c *controller) remove(ctx context.Context, i *imported) error {
	uid := i.UID
	err := c.Dynamic.Resource(v1alpha1.APIResourceImportResource).Delete(ctx, i.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	if ignoreNotFound(err) != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete APIResourceImport %s: %w", i.Name, err)
	}
	return nil
}

// markLastKnown marks a member's imports as last known, not current.
func (c *controller) markLastKnown(ctx context.Context, cluster *v1alpha1.Cluster, why string) error {
	for _, i := range c.imports.By(byLocation, cluster.Name) {
		was := meta.FindStatusCondition(i.Status.Conditions, v1alpha1.ImportAvailable)
		available := metav1.Condition{Type: v1alpha1.ImportAvailable, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonLastKnown, Message: truncate(why)}
		if was != nil {
			available.Status = was.Status
		}
		if was != nil && was.Reason == v1alpha1.ReasonNotServed {
			continue // remains not served
		}
		if err := c.writeAvailable(ctx, i.APIResourceImport, available); err != nil {
			return err
		}
	}
	return nil
}

// write creates or updates one import as the member serves it. The owner of its strategy is
// kept.
func (c *controller) write(ctx context.Context, cluster *v1alpha1.Cluster, t servedType) error {
	name := v1alpha1.ImportName(t.spec.Resource(), cluster.Name)
	served := metav1.Condition{Type: v1alpha1.ImportAvailable, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonServed, Message: "the cluster serves the type"}
	i, exists := c.imports.Get(name)
	if exists && i.digest == t.digest && i.Spec.Location == cluster.Name && i.Spec.Source == t.source && i.Annotations[apiextensionsv1.KubeAPIApprovedAnnotation] == t.approved {
		return c.writeAvailable(ctx, i.APIResourceImport, served)
	}
	spec := v1alpha1.APIResourceImportSpec{CommonAPIResourceSpec: t.spec, Location: cluster.Name, Source: t.source}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&spec)
	if err != nil {
		return fmt.Errorf("write APIResourceImport %s: %w", name, err)
	}
	u := object("APIResourceImport", name)
	u.Object["spec"] = fields
	if t.approved != "" {
		u.SetAnnotations(map[string]string{apiextensionsv1.KubeAPIApprovedAnnotation: t.approved})
	}
	made, err := c.Dynamic.Resource(v1alpha1.APIResourceImportResource).Apply(ctx, name, u, metav1.ApplyOptions{FieldManager: FieldManager, Force: true})
	if err != nil {
		return fmt.Errorf("apply APIResourceImport %s: %w", name, err)
	}
	now := &v1alpha1.APIResourceImport{ObjectMeta: metav1.ObjectMeta{Name: name, UID: made.GetUID(), Generation: made.GetGeneration()}}
	if exists && i.UID == now.UID {
		now.Status = i.Status
	}
	return c.writeAvailable(ctx, now, served)
}

// unserved handles an import of a type that the member no longer serves. It deletes the import
// unless objects of the kind are bound there: then the type may have to come back.
func (c *controller) unserved(ctx context.Context, cluster *v1alpha1.Cluster, i *imported) error {
	bound := c.bound(cluster.Name, i.Spec.GroupVersionKind().GroupKind())
	if bound == 0 {
		return c.remove(ctx, i)
	}
	return c.writeAvailable(ctx, i.APIResourceImport, metav1.Condition{Type: v1alpha1.ImportAvailable, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNotServed,
		Message: fmt.Sprintf("the cluster no longer serves the type, but %d objects of it are placed there: restore its CustomResourceDefinition there, or place them elsewhere", bound)})
}

// bound counts the objects of a kind that are placed in a member or may exist there.
func (c *controller) bound(cluster string, kind schema.GroupKind) (n int) {
	for _, b := range c.Bindings.On(cluster) {
		if b.Spec.Resource.GroupVersionKind().GroupKind() == kind {
			n++
		}
	}
	return n
}

// writeAvailable writes the condition Available of an import if it has changed.
func (c *controller) writeAvailable(ctx context.Context, i *v1alpha1.APIResourceImport, available metav1.Condition) error {
	available.ObservedGeneration = i.Generation
	was := meta.FindStatusCondition(i.Status.Conditions, v1alpha1.ImportAvailable)
	if !c.stamp(was, &available) {
		return nil
	}
	return c.applyStatus(ctx, v1alpha1.APIResourceImportResource, "APIResourceImport", i, FieldManager, &struct {
		Conditions []metav1.Condition `json:"conditions"`
	}{[]metav1.Condition{available}})
}

// stamp sets the transition time of a condition, and reports whether the condition changed.
func (c *controller) stamp(was, is *metav1.Condition) (changed bool) {
	is.LastTransitionTime = metav1.NewTime(c.Clock.Now().Truncate(time.Second))
	if was != nil && was.Status == is.Status {
		is.LastTransitionTime = was.LastTransitionTime
	}
	return was == nil || !equality.Semantic.DeepEqual(*was, *is)
}

// writeTypesStatus writes status.types of a Cluster.
func (c *controller) writeTypesStatus(ctx context.Context, cluster *v1alpha1.Cluster, seen snapshot, message string) error {
	was := cluster.Status.Types
	if was == nil {
		was = &v1alpha1.ObservedTypes{}
	}
	is := *was
	is.Message = truncate(message)
	if seen.complete && seen.err == nil {
		is.Digest, is.Imported = seen.digest, int32(len(seen.types))
	}
	aged := !seen.at.IsZero() && (was.LastReadTime == nil || seen.at.Sub(was.LastReadTime.Time) >= refreshInterval)
	if equality.Semantic.DeepEqual(*was, is) && !aged {
		return nil
	}
	if !seen.at.IsZero() {
		at := metav1.NewTime(seen.at)
		is.LastReadTime = &at
	}
	return c.applyStatus(ctx, v1alpha1.ClusterResource, "Cluster", cluster, FieldManager, &struct {
		Types v1alpha1.ObservedTypes `json:"types"`
	}{is})
}

// object returns the skeleton of an object to apply.
func object(kind, name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": kind, "metadata": map[string]any{"name": name}}}
}
