package quotas

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/quota"
)

// change is a workload before and after a write; before.Object is nil if it is new.
type change struct {
	before, after fleet.Workload
	revision      int64
}

// changeOf returns what a write changes, nil if it changes no workload. The write of an autoscaler
// changes its target, and by is then the autoscaler.
func (g *Gate) changeOf(ctx context.Context, w Write) (out *change, by *v1alpha1.QuotaObject, err error) {
	if w.Kind.GroupKind() == interpret.AutoscalerKind() {
		out, err = g.autoscaled(ctx, w)
		return out, &v1alpha1.QuotaObject{Group: w.Kind.Group, Kind: w.Kind.Kind, Name: w.Name}, err
	}
	kind, catalog, err := g.kindOf(ctx, w.Kind, w.Resource)
	if err != nil {
		return nil, nil, err
	}
	if w.Object == nil {
		if w.Old, err = g.read(ctx, w.Kind.GroupVersion().WithResource(w.Resource), w.Namespace, w.Name); err != nil || w.Old == nil {
			return nil, nil, err // without the object, the write fails anyway
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
