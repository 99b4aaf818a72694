package plans

import (
	"context"
	"encoding/json"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	infrav1 "github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/plan"
)

// shownContent is how large an object is at most of which the fields are shown.
const shownContent = 64 << 10

// What is said of a workload besides what the scheduler says.
const (
	notShown   = "; what it says is not shown"
	notKnown   = "; what clusters have is not known here, so all of it is shown"
	clustersIn = "clusters" // the field of a change's values that is no object's
)

// contentOf is what somebody wrote into an object, as a plan shows it. Of a Secret it is nothing, nor of what is very large.
func contentOf(o *unstructured.Unstructured) map[string]any {
	if o.GetKind() == "Secret" && o.GroupVersionKind().Group == "" {
		return nil
	}
	out := map[string]any{}
	for field, value := range o.Object {
		switch field {
		case "apiVersion", "kind", "metadata", "status", clustersIn:
		default:
			out[field] = value
		}
	}
	written := map[string]any{}
	if set := o.GetLabels(); len(set) > 0 {
		written["labels"] = texts(set)
	}
	notes := o.GetAnnotations()
	delete(notes, corev1.LastAppliedConfigAnnotation) // a copy
	if len(notes) > 0 {
		written["annotations"] = texts(notes)
	}
	if len(written) > 0 {
		out["metadata"] = written
	}
	if text, err := json.Marshal(out); err != nil || len(text) > shownContent {
		return nil
	}
	return out
}

func texts(set map[string]string) map[string]any {
	out := make(map[string]any, len(set))
	for name, value := range set {
		out[name] = value
	}
	return out
}

// history finds in earlier plans what clusters were allowed to have: nobody else keeps it.
type history struct {
	desk      *desk
	namespace string
	plans     map[string]*infrav1.Plan
}

// content is what clusters have of an object and what they are to have, as far as it is known and may be shown, and what is
// to be said about that.
func (h *history) content(ctx context.Context, b *bound) (before, after map[string]any, note string) {
	if b.object == nil || b.Status.Proposal.Remove {
		return nil, nil, ""
	}
	if after = contentOf(b.object); after == nil {
		return nil, nil, notShown
	}
	switch {
	case !b.Status.Proposal.Content:
		return after, after, ""
	case b.Spec.Manual == nil || b.Spec.Manual.Content == "" || len(b.Spec.Clusters) == 0:
		return nil, after, ""
	}
	if before = h.allowed(ctx, b); before == nil {
		return nil, after, notKnown
	}
	return before, after, ""
}

// allowed is what of the object the plan has that was applied last, nil if there is no such plan any more.
func (h *history) allowed(ctx context.Context, b *bound) map[string]any {
	p := h.plan(ctx, b.Annotations[plannedAnnotation])
	if p == nil {
		return nil
	}
	address, contents, store := b.address(), infra.Contents(&p.Status), newPlanStore(h.desk.api, p)
	for n := range contents.Chunks {
		chunk := &contents.Chunks[n]
		if chunk.First.Compare(address) > 0 || chunk.Last.Compare(address) < 0 {
			continue
		}
		pieces, err := store.Shown(ctx, n)
		if err != nil {
			return nil
		}
		var out map[string]any
		err = chunk.Read(pieces, true, []plan.Action{plan.Place}, func(c *plan.Change) bool {
			if c.Address != address {
				return true
			}
			if c.After != nil && precondition(c.Preconditions, ofObject) == b.Spec.Manual.Content && json.Unmarshal(c.After.JSON, &out) == nil {
				delete(out, clustersIn)
			}
			return false
		})
		if err == nil && len(out) > 0 {
			return out
		}
	}
	return nil
}

// plan finds one by its name and UID.
func (h *history) plan(ctx context.Context, named string) *infrav1.Plan {
	name, uid, is := strings.Cut(named, " ")
	if !is {
		return nil
	}
	if p, looked := h.plans[named]; looked {
		return p
	}
	p, err := h.desk.api.plans.get(ctx, h.namespace, name)
	if err != nil || string(p.UID) != uid {
		p = nil // it is gone, or another
	}
	if h.plans == nil {
		h.plans = map[string]*infrav1.Plan{}
	}
	h.plans[named] = p
	return p
}

// withPlan says in a context of withRun which plan is carried out, as history finds it.
func withPlan(ctx context.Context, p *infrav1.Plan) context.Context {
	if r := runOf(ctx); r != nil {
		r.plan = p.Name + " " + string(p.UID)
	}
	return ctx
}

func planOf(ctx context.Context) string {
	if r := runOf(ctx); r != nil {
		return r.plan
	}
	return ""
}
