package infra

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/json"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/plan"
	"github.com/atoll-dev/atoll/infra/reference"
)

// place carries out what becomes of a workload in member clusters. There is no state of it, and no journal: who
// places it finds by what is stored there how far an earlier run came.
func (r *carrier) place(ctx context.Context, node int32) ending {
	s := &r.steps.all[node]
	if ctx.Err() != nil {
		return ending{node: node, result: notBegun}
	}
	end := func(as result, text string) ending {
		return ending{node: node, result: as, problem: &v1alpha1.Problem{Address: workloadName(s.ref), Message: text}}
	}
	if r.e.Workloads == nil {
		return end(failed, "there are no member clusters here: plan again")
	}
	err := r.e.Workloads.Place(ctx, Placing{
		Address: s.address, Preconditions: s.preconditions, Removed: s.action == plan.Delete,
		Healthy: len(r.steps.order.graph.Dependents(node)) > 0, ApplyUID: r.what.ApplyUID, Canceled: r.what.Canceled,
	})
	switch {
	case err == nil:
		return ending{node: node, done: s.action}
	case ctx.Err() != nil:
		return ending{node: node, result: notBegun}
	case errors.Is(err, ErrMoved):
		return end(refused, fmt.Sprintf("what was planned for it is not what would be done now (%v): plan it again", err))
	}
	return end(failed, limited(err.Error()))
}

// workloadName is KIND.GROUP/NAME.
func workloadName(ref reference.Ref) string {
	if group, _, is := strings.Cut(ref.Group, "/"); is {
		return ref.Type + "." + group + "/" + ref.Name
	}
	return ref.Type + "/" + ref.Name
}

// workloads are the edges between workloads and resources: what takes a value from a workload comes after it, and a
// workload that needs a Secret comes after the resource that writes it. If a resource takes a value from a workload that needs the
// Secret of that very resource, the first counts.
func (o *ordering) workloads() {
	var placed []int32
	for n := range o.steps.all {
		if s := &o.steps.all[n]; s.ref.Kind == reference.Kubernetes && s.makes() {
			placed = append(placed, int32(n))
		}
	}
	if len(placed) == 0 {
		return
	}
	writes := map[string][]int32{} // by the name of the Secret
	for n := range o.steps.all {
		s := &o.steps.all[n]
		object := o.engine.World.Object(s.ref)
		if s.ref.Kind == reference.Kubernetes || !s.makes() || object == nil || s.address.Deposed != "" {
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
		for _, used := range o.engine.kubernetes(object) {
			for _, workload := range placed {
				if names(used, o.steps.all[workload].ref) {
					o.edge(int32(n), workload, must)
				}
			}
		}
	}
	for _, workload := range placed {
		for _, secret := range o.steps.all[workload].uses {
			for _, writer := range writes[secret] {
				o.edge(workload, writer, sparing)
			}
		}
	}
}

// kubernetes are the objects of Kubernetes that a spec takes values from.
func (e *Engine) kubernetes(o *Object) []reference.Ref {
	var spec map[string]any
	if json.Unmarshal(o.Spec, &spec) != nil {
		return nil
	}
	found, err := e.Language.Spec(spec, o.Ref.Namespace)
	if err != nil {
		return nil // it is refused when it is evaluated
	}
	var out []reference.Ref
	for _, used := range found.References() {
		if used.Kind == reference.Kubernetes && !slices.Contains(out, used.Ref) {
			out = append(out, used.Ref)
		}
	}
	return out
}

// names tells whether a reference, which need not say the group, is to a workload.
func names(used, workload reference.Ref) bool {
	if used.Group == "" {
		used.Group = workload.Group
	}
	return used == workload
}
