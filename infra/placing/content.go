package placing

import (
	"context"
	"encoding/json"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	infrav1 "github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/infra/apistore"
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/planstore"
)

// maxShownContent is the size above which an object's fields are not shown.
const maxShownContent = 64 << 10

// Notes that follow the scheduler's message.
const (
	notShown   = "; content not shown"
	notKnown   = "; previous content unknown, showing all fields"
	clustersIn = "clusters" // the field of a change's values that is not a field of the object
)

// contentOf returns the user's part of an object, as a plan shows it. It returns nil for a Secret and for
// very large objects.
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
	metadata := map[string]any{}
	if set := o.GetLabels(); len(set) > 0 {
		metadata["labels"] = texts(set)
	}
	annotations := o.GetAnnotations()
	delete(annotations, corev1.LastAppliedConfigAnnotation) // a copy
	if len(annotations) > 0 {
		metadata["annotations"] = texts(annotations)
	}
	if len(metadata) > 0 {
		out["metadata"] = metadata
	}
	if text, err := json.Marshal(out); err != nil || len(text) > maxShownContent {
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

// history finds the approved content in earlier plans, the only place that keeps it.
type history struct {
	api       controllers.Client[infrav1.Plan]
	dynamic   dynamic.Interface
	namespace string
	plans     map[string]*infrav1.Plan // by planID
}

func newHistory(client dynamic.Interface, namespace string) *history {
	return &history{
		api:     controllers.NewClient[infrav1.Plan](client, infrav1.PlanResource, "Plan", apistore.FieldManager),
		dynamic: client, namespace: namespace, plans: map[string]*infrav1.Plan{},
	}
}

// content returns an object's content in clusters before and after the change, as far as it is known and may
// be shown. The note explains omissions.
func (h *history) content(ctx context.Context, b *binding) (before, after map[string]any, note string) {
	if b.object == nil || b.Status.Proposal.Remove {
		return nil, nil, ""
	}
	if after = contentOf(b.object); after == nil {
		return nil, nil, notShown
	}
	switch {
	case !b.Status.Proposal.Content:
		return after, after, ""
	case b.Spec.Manual == nil || b.Spec.Manual.Content == "" || len(b.Decided()) == 0:
		return nil, after, ""
	}
	if before = h.approvedContent(ctx, b); before == nil {
		return nil, after, notKnown
	}
	return before, after, ""
}

// approvedContent returns the object's content in the plan that was last applied, or nil if that plan is
// gone.
func (h *history) approvedContent(ctx context.Context, b *binding) map[string]any {
	p := h.plan(ctx, b.Annotations[plannedAnnotation])
	if p == nil {
		return nil
	}
	address, contents, store := b.address(), planstore.ContentsOf(&p.Status), apistore.NewPlanStore(h.dynamic, p)
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
		err = chunk.Read(pieces, true, []change.Action{change.Place}, func(c *change.Change) bool {
			if c.Address != address {
				return true
			}
			if c.After != nil && precondition(c.Preconditions, objectPrefix) == b.Spec.Manual.Content && json.Unmarshal(c.After.JSON, &out) == nil {
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

// plan returns a plan by its planID, or nil if it is gone.
func (h *history) plan(ctx context.Context, id string) *infrav1.Plan {
	name, uid, is := strings.Cut(id, " ")
	if !is {
		return nil
	}
	if p, found := h.plans[id]; found {
		return p
	}
	p, err := h.api.Get(ctx, h.namespace, name)
	if err != nil || string(p.UID) != uid {
		p = nil // deleted, or created again
	}
	h.plans[id] = p
	return p
}

// planID identifies a plan in an annotation, by its name and UID.
func planID(p *infrav1.Plan) string { return p.Name + " " + string(p.UID) }

type planKey struct{}

// WithPlan records in the context of an apply which plan it applies. Place writes that into bindings, and the
// next plan finds the approved content there.
func WithPlan(ctx context.Context, p *infrav1.Plan) context.Context {
	return context.WithValue(ctx, planKey{}, planID(p))
}

func planIDOf(ctx context.Context) string {
	id, _ := ctx.Value(planKey{}).(string)
	return id
}
