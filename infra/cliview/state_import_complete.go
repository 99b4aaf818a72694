package cliview

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
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/statefile"
)

// completeImport creates a plan and writes what it would undo. A value does not show which optional computed
// arguments were configured, but the plan does: it would mostly change those with a default that had another
// value. Remaining changes are shown.
func (s *Session) completeImport(ctx context.Context, file *stateFile, report *statefile.Report) error {
	p, err := s.createPlan(ctx, &Request{}, PlanOptions{})
	if err != nil {
		return fmt.Errorf("all resources were imported, but planning them failed: %w", err)
	}
	changes, err := s.plannedArguments(ctx, p, report)
	if err != nil {
		return err
	}
	if len(changes) > 0 {
		written, err := s.addArguments(ctx, file, changes)
		if err != nil {
			return fmt.Errorf("all resources were imported; complete their specs from plan %s: %w", p.Name, err)
		}
		if written > 0 {
			s.infof("Added arguments with non-default values to %s.", counted(written, "object"))
			if p, err = s.createPlan(ctx, &Request{}, PlanOptions{}); err != nil {
				return err
			}
			if changes, err = s.plannedArguments(ctx, p, report); err != nil {
				return err
			}
		}
	}
	s.problems("Not planned", p.Status.Problems)
	if len(changes) == 0 && len(p.Status.Problems) == 0 {
		s.printf("Plan %s has no changes. To also refresh them from the providers, run `%s`.\n", p.Name, s.command("plan --refresh"))
		return nil
	}
	if len(changes) > 0 {
		var addresses []string
		for address := range changes {
			addresses = append(addresses, printable(address))
		}
		slices.Sort(addresses)
		s.printf("Plan %s would change %s: %s. Review it with `%s` and complete their specs before you apply.\n", p.Name, counted(len(addresses), "resource"), shortened(addresses), s.command("show "+p.Name))
	}
	return incomplete(p)
}

// plannedArguments returns, by address in the file, the arguments of imported resources that a plan would
// change.
func (s *Session) plannedArguments(ctx context.Context, p *v1alpha1.Plan, report *statefile.Report) (map[string][]string, error) {
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
		if a, err := statefile.ParseAddress(n.Address); err == nil && !a.Data {
			addresses[named{a.Type, n.Name}] = n.Address
		}
	}
	actions := []string{string(change.Update), string(change.Replace), string(change.Create)}
	return out, s.changes(ctx, p.Name, Filter{Actions: actions}, func(c *change.Change) error {
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

// addArguments adds arguments to the changed objects that were not edited since their import, and returns
// their number.
func (s *Session) addArguments(ctx context.Context, file *stateFile, changes map[string][]string) (int, error) {
	written := 0
	_, err := file.adopt(changes, func(one *statefile.Adopted) error {
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
			return wrapError("read "+strings.ToLower(one.Object.Kind)+"/"+one.Object.Name, err)
		}
		if live.GetGeneration() != 1 {
			return nil
		}
		spec, err := plainMap(one.Object.Spec)
		if err != nil {
			return err
		}
		live.Object["spec"] = spec
		live, err = api.Update(ctx, live, metav1.UpdateOptions{FieldManager: importManager})
		if apierrors.IsConflict(err) {
			return nil
		}
		if err != nil {
			return wrapError("write "+strings.ToLower(one.Object.Kind)+"/"+one.Object.Name, err)
		}
		written++
		return s.recordApplied(ctx, one, live)
	}, nil)
	return written, err
}

// recordApplied records in the state that the object's current spec is applied.
func (s *Session) recordApplied(ctx context.Context, one *statefile.Adopted, live *unstructured.Unstructured) error {
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
	_, err = s.Dynamic.Resource(v1alpha1.ResourceStateResource).Namespace(s.Namespace).Patch(ctx, one.StateName, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: importManager})
	return wrapError("write ResourceState "+one.StateName, err)
}
