// Package quotas enforces FleetQuotas. A Gate on each server refuses writes that exceed a quota, and
// the counter on the leader counts what is used. Package fleet/quota decides; its DESIGN.md explains
// how the two agree.
package quotas

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/quota"
)

// Gate refuses writes that exceed a FleetQuota. Each server has one.
type Gate struct {
	dyn             dynamic.Interface
	quotas          *fleet.Quotas
	interpretations controllers.Cache[v1alpha1.ResourceInterpretation]
}

// NewGate returns a gate. Until Run has filled its caches, it reads the quotas for each write.
func NewGate(dyn dynamic.Interface, clock clock.PassiveClock) *Gate {
	return &Gate{dyn: dyn, quotas: fleet.NewQuotas(dyn, clock),
		interpretations: controllers.NewCache[v1alpha1.ResourceInterpretation](dyn, v1alpha1.ResourceInterpretationResource, controllers.CacheOptions{})}
}

// Run keeps the gate's caches up to date until ctx ends.
func (g *Gate) Run(ctx context.Context) error {
	var running sync.WaitGroup
	for _, i := range []cache.SharedIndexInformer{g.quotas.Informer, g.interpretations.Informer} {
		running.Go(func() { i.RunWithContext(ctx) })
	}
	running.Wait()
	return nil
}

// Write is a request to write one object.
type Write struct {
	Kind            schema.GroupVersionKind
	Resource        string
	Namespace, Name string
	// Old is nil on create. If only the replicas change, Object is nil, and the kind may have no name.
	Old, Object *unstructured.Unstructured
	Replicas    int32
	DryRun      bool
}

// Concerns reports whether writes of a kind in a namespace may have to be checked.
func (g *Gate) Concerns(kind schema.GroupKind, namespace string) bool {
	return namespace != "" && kind.Kind != "Namespace" && kind.Group != v1alpha1.Group && (!g.quotas.Informer.HasSynced() || len(g.quotas.In(namespace)) > 0)
}

// quotasIn returns the quotas of a namespace. Until the cache is filled, it reads them.
func (g *Gate) quotasIn(ctx context.Context, namespace string) ([]*v1alpha1.FleetQuota, error) {
	if g.quotas.Informer.HasSynced() {
		return g.quotas.In(namespace), nil
	}
	list, err := g.dyn.Resource(v1alpha1.FleetQuotaResource).Namespace(namespace).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil // the type is not installed yet
	}
	if err != nil {
		return nil, fmt.Errorf("list the quotas: %w", err)
	}
	var out []*v1alpha1.FleetQuota
	for i := range list.Items {
		q := &v1alpha1.FleetQuota{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(list.Items[i].Object, q); err != nil {
			return nil, fmt.Errorf("read FleetQuota %s: %w", list.Items[i].GetName(), err)
		}
		out = append(out, q)
	}
	return out, nil
}

// Check returns an error if the write exceeds a quota.
func (g *Gate) Check(ctx context.Context, w Write) error {
	if w.Old != nil && w.Object != nil && maps.Equal(w.Old.GetLabels(), w.Object.GetLabels()) &&
		equality.Semantic.DeepEqual(w.Old.Object["spec"], w.Object.Object["spec"]) {
		return nil
	}
	if k, known := interpret.BuiltIn().Find(w.Kind.GroupKind()); known && w.Object != nil && w.Kind.GroupKind() != autoscalerKind() {
		if pods, _ := k.Pods(w.Object); len(pods) == 0 {
			return nil
		}
	}
	limits, err := g.quotasIn(ctx, w.Namespace)
	if err != nil || len(limits) == 0 {
		return err
	}
	object, by, err := g.changeOf(ctx, w)
	if err != nil || object == nil {
		return err
	}
	var changes []fleet.QuotaChange
	for _, q := range limits {
		c, err := object.under(q)
		if err != nil {
			return err
		}
		c.By = by
		changes = append(changes, fleet.QuotaChange{Quota: q, Change: c})
	}
	err = g.quotas.Admit(ctx, changes, w.DryRun)
	if errors.Is(err, quota.ErrExceeded) {
		return refusal{err}
	}
	return err
}

// ErrRefused is the error of a write that must be changed before it can succeed. Other errors may pass.
var ErrRefused = errors.New("refused by a FleetQuota")

// refusal is an ErrRefused with the text of its cause.
type refusal struct{ error }

func (refusal) Is(target error) bool { return target == ErrRefused }
func (r refusal) Unwrap() error      { return r.error }

// change is a workload before and after a write; before.Object is nil if it is new.
type change struct {
	before, after fleet.Workload
	revision      int64
}

// changeOf returns what a write changes, nil if it changes no workload. The write of an autoscaler
// changes its target, and by is then the autoscaler.
func (g *Gate) changeOf(ctx context.Context, w Write) (out *change, by *v1alpha1.QuotaObject, err error) {
	if w.Kind.GroupKind() == autoscalerKind() {
		out, err = g.autoscaled(ctx, w)
		return out, &v1alpha1.QuotaObject{Group: w.Kind.Group, Kind: w.Kind.Kind, Name: w.Name}, err
	}
	kind, catalog, err := g.kindOf(ctx, w.Kind, w.Resource)
	if err != nil {
		return nil, nil, err
	}
	if w.Object == nil {
		if w.Old, err = g.read(ctx, w.Kind.GroupVersion().WithResource(w.Resource), w.Namespace, w.Name); err != nil || w.Old == nil {
			return nil, nil, err // a write of what does not exist fails anyway
		}
		w.Object = w.Old.DeepCopy()
		if len(kind.ReplicasPath()) == 0 {
			return nil, nil, nil // its replicas cannot be scaled
		}
		if err := unstructured.SetNestedField(w.Object.Object, int64(w.Replicas), kind.ReplicasPath()...); err != nil {
			return nil, nil, nil // the API refuses it
		}
	}
	if catalog.StaysHome(w.Object) != "" {
		return nil, nil, nil
	}
	if pods, _ := kind.Pods(w.Object); len(pods) == 0 {
		return nil, nil, nil
	}
	out = &change{after: fleet.Workload{Kind: kind, Object: w.Object}}
	if w.Old != nil {
		if out.after.Shares, err = g.shares(ctx, kind, w.Namespace, w.Name); err != nil {
			return nil, nil, err
		}
		out.revision = quota.Revision(w.Old.GetResourceVersion())
	}
	if out.after.Autoscaler, err = g.autoscalerOf(ctx, kind.GroupKind(), w.Namespace, w.Name); err != nil {
		return nil, nil, err
	}
	if w.Old != nil {
		out.before = out.after
		out.before.Object = w.Old
	}
	return out, nil, nil
}

// autoscaled returns the change of an autoscaler's target.
func (g *Gate) autoscaled(ctx context.Context, w Write) (*change, error) {
	if w.Object == nil {
		return nil, nil
	}
	ref, _, _ := unstructured.NestedStringMap(w.Object.Object, "spec", "scaleTargetRef")
	gv, err := schema.ParseGroupVersion(ref["apiVersion"])
	if err != nil {
		return nil, nil // it scales nothing
	}
	kind, found := interpret.BuiltIn().Find(schema.GroupKind{Group: gv.Group, Kind: ref["kind"]})
	if !found {
		return nil, nil // counted once the target is written, or by the counter
	}
	target, err := g.read(ctx, kind.GVR(), w.Namespace, ref["name"])
	if err != nil || target == nil {
		return nil, err
	}
	shares, err := g.shares(ctx, kind, w.Namespace, target.GetName())
	if err != nil {
		return nil, err
	}
	of := fleet.Workload{Kind: kind, Object: target, Shares: shares}
	out := &change{before: of, after: of, revision: quota.Revision(target.GetResourceVersion())}
	out.after.Autoscaler = w.Object
	if w.Old != nil {
		out.revision = quota.Revision(w.Old.GetResourceVersion())
		if was, _, _ := unstructured.NestedStringMap(w.Old.Object, "spec", "scaleTargetRef"); was["name"] == ref["name"] && was["kind"] == ref["kind"] {
			out.before.Autoscaler = w.Old
		}
	}
	return out, nil
}

func autoscalerKind() schema.GroupKind {
	return schema.GroupKind{Group: "autoscaling", Kind: "HorizontalPodAutoscaler"}
}

// under returns the change as a quota counts it.
func (c *change) under(q *v1alpha1.FleetQuota) (out quota.Change, err error) {
	out = quota.Change{Object: c.after.QuotaObject(), Revision: c.revision}
	selects := func(w *fleet.Workload) (bool, error) {
		if w.Object == nil {
			return false, nil
		}
		selected, err := quota.Selects(q, w.Object.GetLabels())
		if err != nil {
			return false, refusal{fmt.Errorf("FleetQuota %s is invalid: %w: ask its owner to correct it", q.Name, err)}
		}
		return selected, nil
	}
	selected, err := selects(&c.after)
	if err != nil || !selected {
		return out, err
	}
	var pods []quota.Pods
	if out.After, pods, err = c.after.Uses(); err != nil {
		return out, nil // the API refuses a template that is none
	}
	if selected, err = selects(&c.before); err != nil {
		return out, err
	}
	if selected {
		if out.Before, _, err = c.before.Uses(); err != nil {
			return out, nil
		}
	}
	if quota.Grows(q, out) || len(out.Before) == 0 {
		if err := quota.Unspecified(pods, q.Spec.Hard); err != nil {
			return out, refusal{fmt.Errorf("FleetQuota %s: %w", q.Name, err)}
		}
	}
	return out, nil
}

// kindOf returns how a kind is interpreted now. Without its name it is found by its resource.
func (g *Gate) kindOf(ctx context.Context, gvk schema.GroupVersionKind, resource string) (interpret.KindInfo, interpret.Catalog, error) {
	customizations, _ := interpret.Customizations(g.interpretations.All())
	catalog := interpret.BuiltIn().WithCustomizations(customizations...)
	for _, k := range catalog.Kinds() {
		if k.Group == gvk.Group && (k.Kind == gvk.Kind || gvk.Kind == "" && k.Resource == resource) {
			return k, catalog, nil
		}
	}
	k, err := fleet.ReadKind(ctx, g.dyn, gvk, resource)
	if err != nil {
		return k, catalog, err
	}
	catalog = catalog.With(k)
	k, _ = catalog.Find(k.GroupKind())
	return k, catalog, nil
}

// read returns an object, nil if it does not exist.
func (g *Gate) read(ctx context.Context, gvr schema.GroupVersionResource, namespace, name string) (*unstructured.Unstructured, error) {
	u, err := g.dyn.Resource(gvr).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("check the quotas: read %s %s: %w", gvr.Resource, name, err)
	}
	return u, nil
}

// shares returns an object's shares of clusters.
func (g *Gate) shares(ctx context.Context, k interpret.KindInfo, namespace, name string) ([]v1alpha1.ClusterShare, error) {
	u, err := g.read(ctx, v1alpha1.ResourceBindingResource, namespace, v1alpha1.BindingName(k.GroupKind(), name))
	if err != nil || u == nil {
		return nil, err
	}
	b, err := controllers.Decode[v1alpha1.ResourceBinding](u)
	if err != nil {
		return nil, err
	}
	binding, ok := b.(*v1alpha1.ResourceBinding)
	if !ok {
		return nil, errors.New("check the quotas: the object's binding cannot be decoded")
	}
	return binding.Spec.Clusters, nil
}

// autoscalerOf returns the autoscaler of an object, nil if it has none.
func (g *Gate) autoscalerOf(ctx context.Context, gk schema.GroupKind, namespace, name string) (*unstructured.Unstructured, error) {
	scaler, found := interpret.BuiltIn().Find(autoscalerKind())
	if !found {
		return nil, nil
	}
	list, err := g.dyn.Resource(scaler.GVR()).Namespace(namespace).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil // this control plane serves no autoscalers
	}
	if err != nil {
		return nil, fmt.Errorf("check the quotas: list the autoscalers: %w", err)
	}
	for i := range list.Items {
		targets, err := scaler.Follows(&list.Items[i])
		if err != nil {
			continue
		}
		for _, t := range targets {
			if t.To.GroupKind == gk && t.To.Namespace == namespace && t.To.Name == name {
				return &list.Items[i], nil
			}
		}
	}
	return nil, nil
}
