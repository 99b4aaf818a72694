package imports

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// writeNegotiated creates, updates or deletes the NegotiatedAPIResource of a version.
func (c *controller) writeNegotiated(ctx context.Context, f *typeState, v *version) error {
	if !v.needed(f) {
		return c.dropNegotiated(ctx, v)
	}
	n, err := c.ensureNegotiated(ctx, f, v)
	if err != nil || n == nil {
		return err
	}
	status := v1alpha1.NegotiatedAPIResourceStatus{
		Compatible:         fmt.Sprintf("%d/%d", v.compatible(), len(v.imports)),
		ObservedGeneration: n.Generation,
	}
	changed := n.Status.Compatible != status.Compatible || n.Status.ObservedGeneration != n.Generation
	for _, is := range v.conditions() {
		is.ObservedGeneration = n.Generation
		was := meta.FindStatusCondition(n.Status.Conditions, is.Type)
		changed = c.stamp(was, &is) || changed
		status.Conditions = append(status.Conditions, is)
	}
	if !changed {
		return nil
	}
	return c.applyStatus(ctx, v1alpha1.NegotiatedAPIResourceResource, "NegotiatedAPIResource", n, NegotiationManager, &status)
}

// needed reports whether a version exists anywhere.
func (v *version) needed(f *typeState) bool {
	return len(v.imports) > 0 || v.current.enforced && v.current.typ != nil || v.current.published && f.crd != nil
}

func (c *controller) dropNegotiated(ctx context.Context, v *version) error {
	if v.existing == nil {
		return nil
	}
	uid := v.existing.UID
	err := c.Dynamic.Resource(v1alpha1.NegotiatedAPIResourceResource).Delete(ctx, v.existing.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	if ignoreNotFound(err) != nil {
		return fmt.Errorf("delete NegotiatedAPIResource %s, whose type is no longer served: %w", v.existing.Name, err)
	}
	return nil
}

// ensureNegotiated writes the negotiated type. The owner of spec.publish is kept. It returns
// nil if nothing could ever be negotiated.
func (c *controller) ensureNegotiated(ctx context.Context, f *typeState, v *version) (*v1alpha1.NegotiatedAPIResource, error) {
	if v.typ == nil {
		if v.existing == nil {
			return nil, nil
		}
		return v.existing.NegotiatedAPIResource, nil
	}
	spec, err := specOf(v.typ)
	if err != nil {
		return nil, err
	}
	digest, err := digestOf(&spec, spec.OpenAPIV3Schema.Raw)
	if err != nil {
		return nil, err
	}
	name := v1alpha1.NegotiatedName(f.gr.WithVersion(v.name))
	if v.existing != nil && v.existing.Name == name && v.existing.digest == digest {
		return v.existing.NegotiatedAPIResource, nil
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&spec)
	if err != nil {
		return nil, fmt.Errorf("write NegotiatedAPIResource %s: %w", name, err)
	}
	u := object("NegotiatedAPIResource", name)
	u.Object["spec"] = fields
	made, err := c.Dynamic.Resource(v1alpha1.NegotiatedAPIResourceResource).Apply(ctx, name, u, metav1.ApplyOptions{FieldManager: NegotiationManager, Force: true})
	if err != nil {
		return nil, fmt.Errorf("apply NegotiatedAPIResource %s: %w", name, err)
	}
	out := &v1alpha1.NegotiatedAPIResource{ObjectMeta: metav1.ObjectMeta{Name: name, UID: made.GetUID(), Generation: made.GetGeneration()}}
	if v.existing != nil && v.existing.UID == out.UID {
		out.Status = v.existing.Status
	}
	return out, nil
}

// conditions returns the conditions of a version.
func (v *version) conditions() []metav1.Condition {
	p := v.published
	submitted := metav1.Condition{Type: v1alpha1.NegotiatedSubmitted, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNotSubmitted, Message: p.message}
	if p.submitted {
		submitted.Status, submitted.Reason = metav1.ConditionTrue, v1alpha1.ReasonSubmitted
		submitted.Message = "a CustomResourceDefinition of the type was applied"
	}
	published := metav1.Condition{Type: v1alpha1.NegotiatedPublished, Status: metav1.ConditionFalse, Reason: p.reason, Message: p.message}
	if p.published {
		published.Status = metav1.ConditionTrue
	}
	enforced := metav1.Condition{Type: v1alpha1.NegotiatedEnforced, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNegotiated,
		Message: "the type is what the clusters have in common"}
	if v.current.enforced {
		enforced.Status, enforced.Reason = metav1.ConditionTrue, v1alpha1.ReasonEnforced
		enforced.Message = "clusters are checked against the type, and nothing is negotiated"
		if v.current.by != "" {
			enforced.Message = v.current.by + " defines the type: " + enforced.Message
		}
	}
	return []metav1.Condition{submitted, published, enforced}
}
