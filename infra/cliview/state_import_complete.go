package cliview

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/decide"
	"github.com/atoll-dev/atoll/infra/statefile"
)

// maxCompletions is how often completeImport corrects specs: once by what the plan says, and once more
// where the provider still rejects a spec.
const maxCompletions = 2

// planned is what a plan says about an imported resource: which arguments it would change, or why it cannot
// be planned.
type planned struct {
	changes []string
	problem string
}

// completeImport creates a plan and corrects specs by it. A value does not show which optional arguments were
// configured, but the plan does: it would change those with a default that had another value, and the
// provider rejects those that it computed and does not accept together. Remaining changes are shown.
func (s *Session) completeImport(ctx context.Context, file *stateFile, report *statefile.Report) error {
	var p *v1alpha1.Plan
	var left map[string]planned
	generations := map[string]int64{} // of the objects that were corrected
	for round := 0; ; round++ {
		var err error
		if p, err = s.createPlan(ctx, &Request{}, PlanOptions{}); err != nil {
			return fmt.Errorf("all resources were imported, but planning them failed: %w", err)
		}
		if left, err = s.plannedArguments(ctx, p, report); err != nil {
			return err
		}
		if len(left) == 0 || round == maxCompletions {
			break
		}
		corrections := left
		if round > 0 {
			corrections = map[string]planned{}
			for address, of := range left {
				if of.problem != "" {
					corrections[address] = planned{problem: rejectedAgain}
				}
			}
		}
		written, err := s.correctArguments(ctx, file, corrections, generations)
		if err != nil {
			return fmt.Errorf("all resources were imported; complete their specs from plan %s: %w", p.Name, err)
		}
		if written == 0 {
			break
		}
		s.infof("Corrected optional arguments of %s.", counted(written, "object"))
	}
	s.problems("Not planned", p.Status.Problems)
	if len(left) == 0 && len(p.Status.Problems) == 0 {
		s.printf("Plan %s has no changes. To also refresh them from the providers, run `%s`.\n", p.Name, s.command("plan --refresh"))
		return nil
	}
	var addresses []string
	for address, of := range left {
		if of.problem == "" {
			addresses = append(addresses, printable(address))
		}
	}
	if len(addresses) > 0 {
		slices.Sort(addresses)
		s.printf("Plan %s would change %s: %s. Review it with `%s` and complete their specs before you apply.\n", p.Name, counted(len(addresses), "resource"), shortened(addresses), s.command("show "+p.Name))
	}
	return incomplete(p)
}

// rejectedAgain names no argument, so that all that the provider may have computed are left out.
const rejectedAgain = "-"

// plannedArguments returns, by address in the file, what a plan says about imported resources that it would
// change or cannot plan.
func (s *Session) plannedArguments(ctx context.Context, p *v1alpha1.Plan, report *statefile.Report) (map[string]planned, error) {
	if p.Status.Phase == v1alpha1.PlanFailed {
		return nil, failedPlan(p)
	}
	out := map[string]planned{}
	if len(p.Status.Problems) > 0 {
		objects := make(map[string]string, len(report.Names))
		for _, n := range report.Names {
			group, _, _ := strings.Cut(n.APIVersion, "/")
			objects[n.Kind+"."+group+"/"+n.Name] = n.Address
		}
		for _, problem := range p.Status.Problems {
			// Other problems, such as a key that a Secret lacks, are not the spec's.
			if address, ours := objects[problem.Address]; ours && strings.Contains(problem.Message, decide.ErrInvalid.Error()) {
				out[address] = planned{problem: strings.TrimSpace(out[address].problem + " " + problem.Field + " " + problem.Message)}
			}
		}
	}
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
		out[address] = planned{changes: names}
		return nil
	})
}

// correctArguments rewrites the specs of objects that were not edited since their import, and returns their
// number. generations has the objects that it wrote before.
func (s *Session) correctArguments(ctx context.Context, file *stateFile, corrections map[string]planned, generations map[string]int64) (int, error) {
	written := 0
	_, err := file.adopt(corrections, func(one *statefile.Adopted) error {
		of, is := corrections[one.Address]
		if one.Object == nil || !is {
			return nil
		}
		if of.problem == "" && !slices.ContainsFunc(of.changes, func(name string) bool { _, has := one.Object.Spec[name]; return has }) {
			return nil
		}
		api := s.Dynamic.Resource(kindName{one.Object.APIVersion, one.Object.Plural}.resource()).Namespace(s.Namespace)
		live, err := api.Get(ctx, one.Object.Name, metav1.GetOptions{})
		if err != nil {
			return wrapError("read "+strings.ToLower(one.Object.Kind)+"/"+one.Object.Name, err)
		}
		if live.GetGeneration() != max(1, generations[one.Address]) {
			return nil
		}
		spec, err := plainMap(one.Object.Spec)
		if err != nil {
			return err
		}
		if equality.Semantic.DeepEqual(live.Object["spec"], spec) {
			return nil
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
		generations[one.Address] = live.GetGeneration()
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
