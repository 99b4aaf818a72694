package applier

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/json"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/problems"
)

// place places a workload in member clusters, or removes it. It needs no state and no journal:
// Workloads.Place finds from its own objects how far an earlier run came.
func (r *run) place(ctx context.Context, node int32) stepEnd {
	s := &r.steps.all[node]
	if ctx.Err() != nil {
		return stepEnd{node: node, result: notStarted}
	}
	end := func(as stepResult, text string) stepEnd {
		return stepEnd{node: node, result: as, problem: &v1alpha1.Problem{Address: workloadName(s.ref), Message: text}}
	}
	if r.e.Workloads == nil {
		return end(failed, "there are no member clusters: plan again")
	}
	err := r.e.Workloads.Place(ctx, infra.PlaceRequest{
		Address: s.address, Preconditions: s.preconditions, Removed: s.action == change.Delete,
		Healthy: len(r.steps.order.graph.Dependents(node)) > 0, ApplyUID: r.opts.ApplyUID, Canceled: r.opts.Canceled,
	})
	switch {
	case err == nil:
		return stepEnd{node: node, action: s.action}
	case ctx.Err() != nil:
		return stepEnd{node: node, result: notStarted}
	case errors.Is(err, infra.ErrStale):
		return end(refused, fmt.Sprintf("the proposal for it has changed since the plan (%v): plan again", err))
	}
	return end(failed, problems.Limit(err.Error()))
}

// workloadName returns KIND.GROUP/NAME.
func workloadName(ref expr.Ref) string {
	if group, _, ok := strings.Cut(ref.APIVersion, "/"); ok {
		return ref.Type + "." + group + "/" + ref.Name
	}
	return ref.Type + "/" + ref.Name
}

// addWorkloads adds the edges between workloads and resources. A resource that takes a value from a
// workload comes after it. A workload that needs a Secret comes after the resource that writes it.
// If both apply to the same pair, the first wins.
func (o *orderBuilder) addWorkloads() {
	var placed []int32
	for n := range o.steps.all {
		if s := &o.steps.all[n]; s.ref.Kind == expr.Kubernetes && s.upserts() {
			placed = append(placed, int32(n))
		}
	}
	if len(placed) == 0 {
		return
	}
	writes := map[string][]int32{} // by the name of the Secret
	for n := range o.steps.all {
		s := &o.steps.all[n]
		object := o.applier.Inventory.Object(s.ref)
		if s.ref.Kind == expr.Kubernetes || !s.upserts() || object == nil || s.address.Deposed != "" {
			continue
		}
		var spec struct {
			Connection struct {
				Secret string `json:"secret"`
			} `json:"connection"`
		}
		if json.Unmarshal(object.Spec, &spec) == nil && spec.Connection.Secret != "" {
			writes[spec.Connection.Secret] = append(writes[spec.Connection.Secret], int32(n))
		}
		for _, used := range o.applier.kubernetesReferences(object) {
			for _, workload := range placed {
				if refersToWorkload(used, o.steps.all[workload].ref) {
					o.edge(int32(n), workload, required)
				}
			}
		}
	}
	for _, workload := range placed {
		for _, secret := range o.steps.all[workload].uses {
			for _, writer := range writes[secret] {
				o.edge(workload, writer, createUsedFirst)
			}
		}
	}
}

// kubernetesReferences returns the Kubernetes objects that a spec takes values from.
func (e *Applier) kubernetesReferences(o *infra.Object) []expr.Ref {
	var spec map[string]any
	if json.Unmarshal(o.Spec, &spec) != nil {
		return nil
	}
	found, err := e.Evaluator.Language.Spec(spec, o.Ref.Namespace)
	if err != nil {
		return nil // an invalid spec is rejected when it is evaluated
	}
	var out []expr.Ref
	for _, used := range found.References() {
		if used.Kind == expr.Kubernetes && !slices.Contains(out, used.Ref) {
			out = append(out, used.Ref)
		}
	}
	return out
}

// refersToWorkload reports whether a reference is to a workload. A reference may omit the group.
func refersToWorkload(used, workload expr.Ref) bool {
	if used.APIVersion == "" {
		used.APIVersion = workload.APIVersion
	}
	return used == workload
}
