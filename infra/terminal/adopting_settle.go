package terminal

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/adopt"
	"github.com/atoll-dev/atoll/infra/plan"
)

// settleAdopted has a plan made, and writes what that would undo. A value does not tell which of those arguments that the provider
// fills in somebody had set; the plan does: what would change is mostly what has a default, and had another value. What is
// left then is shown.
func (s *Session) settleAdopted(ctx context.Context, file *surveyed, report *adopt.Report) error {
	p, err := s.make(ctx, &Request{}, Planning{})
	if err != nil {
		return fmt.Errorf("all is taken over, and no plan could be made to see whether there is something to do: %w", err)
	}
	changes, err := s.wouldChange(ctx, p, report)
	if err != nil {
		return err
	}
	if len(changes) > 0 {
		written, err := s.completed(ctx, file, changes)
		if err != nil {
			return fmt.Errorf("all is taken over; to write what plan %s would change: %w", p.Name, err)
		}
		if written > 0 {
			s.tell("Arguments added to %s: their values are not the provider's defaults.", counted(written, "object"))
			if p, err = s.make(ctx, &Request{}, Planning{}); err != nil {
				return err
			}
			if changes, err = s.wouldChange(ctx, p, report); err != nil {
				return err
			}
		}
	}
	s.problems("Not planned", p.Status.Problems)
	if len(changes) == 0 && len(p.Status.Problems) == 0 {
		s.printf("Plan %s has nothing to do to them. `%s` asks the providers, too.\n", p.Name, s.command("plan --refresh"))
		return nil
	}
	if len(changes) > 0 {
		var addresses []string
		for address := range changes {
			addresses = append(addresses, printable(address))
		}
		slices.Sort(addresses)
		s.printf("Plan %s would change %s: %s. `%s` shows it: complete their specs before you apply.\n", p.Name, counted(len(addresses), "resource"), shortened(addresses), s.command("show "+p.Name))
	}
	return incomplete(p)
}

// wouldChange gives, by addresses of the file, which arguments a plan would change of what was taken over.
func (s *Session) wouldChange(ctx context.Context, p *v1alpha1.Plan, report *adopt.Report) (map[string][]string, error) {
	if p.Status.Phase == v1alpha1.PlanFailed {
		return nil, failedPlan(p)
	}
	out := map[string][]string{}
	c := counts(p)
	if c.Update+c.Replace+c.Create == 0 {
		return out, nil
	}
	type named struct{ typeName, name string }
	addresses := make(map[named]string, len(report.Names))
	for _, n := range report.Names {
		if a, err := adopt.ParseAddress(n.Address); err == nil && !a.Data {
			addresses[named{a.Type, n.Name}] = n.Address
		}
	}
	actions := []string{string(plan.Update), string(plan.Replace), string(plan.Create)}
	return out, s.changes(ctx, p.Name, Filter{Actions: actions}, func(c *plan.Change) error {
		address, ours := addresses[named{c.Address.Type, c.Address.Name}]
		if !ours || c.Address.Data || c.Address.Deposed != "" || c.Address.Namespace != s.Namespace {
			return nil
		}
		names := []string{}
		for _, f := range c.Fields {
			name := f.Path
			if end := strings.IndexAny(name, ".["); end >= 0 {
				name = name[:end]
			}
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
		out[address] = names
		return nil
	})
}

// completed adds arguments to those objects that would change and that nobody has written since they were taken over, and tells
// how many.
func (s *Session) completed(ctx context.Context, file *surveyed, changes map[string][]string) (int, error) {
	written := 0
	_, err := file.adopt(changes, func(one *adopt.Adopted) error {
		if one.Object == nil || len(changes[one.Address]) == 0 {
			return nil
		}
		added := false
		for _, name := range changes[one.Address] {
			_, is := one.Object.Spec[name]
			added = added || is
		}
		if !added {
			return nil
		}
		api := s.Dynamic.Resource(kindName{one.Object.APIVersion, one.Object.Plural}.resource()).Namespace(s.Namespace)
		live, err := api.Get(ctx, one.Object.Name, metav1.GetOptions{})
		if err != nil {
			return worded("read "+strings.ToLower(one.Object.Kind)+"/"+one.Object.Name, err)
		}
		if live.GetGeneration() != 1 {
			return nil
		}
		spec, err := plainMap(one.Object.Spec)
		if err != nil {
			return err
		}
		live.Object["spec"] = spec
		live, err = api.Update(ctx, live, metav1.UpdateOptions{FieldManager: adoptManager})
		if apierrors.IsConflict(err) {
			return nil
		}
		if err != nil {
			return worded("write "+strings.ToLower(one.Object.Kind)+"/"+one.Object.Name, err)
		}
		written++
		return s.carriedOut(ctx, one, live)
	}, nil)
	return written, err
}

// carriedOut notes in the state that the resource is as the object says now.
func (s *Session) carriedOut(ctx context.Context, one *adopt.Adopted, live *unstructured.Unstructured) error {
	if one.State == nil {
		return nil
	}
	spec, err := json.Marshal(live.Object["spec"])
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"written": spec, "object": map[string]any{"generation": live.GetGeneration()}}})
	if err != nil {
		return err
	}
	_, err = s.Dynamic.Resource(v1alpha1.ResourceStateResource).Namespace(s.Namespace).Patch(ctx, one.StateName, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: adoptManager})
	return worded("write the ResourceState "+one.StateName, err)
}
