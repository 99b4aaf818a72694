package cliview

import (
	"context"
	"fmt"
	"slices"
	"text/tabwriter"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

// Rollback creates a plan that restores the specs at the end of an apply, and shows it. name is the name of
// the apply or of its plan.
func (s *Session) Rollback(ctx context.Context, name string, r *Request, opts PlanOptions) (bool, error) {
	_, err := get[v1alpha1.Apply](ctx, s, applyKind(), name)
	if apierrors.IsNotFound(err) {
		applies, listing := s.startedApplies(ctx)
		if listing != nil {
			return false, listing
		}
		for _, a := range applies {
			if a.Spec.Plan == name {
				name, err = a.Name, nil
				break
			}
		}
	}
	if err != nil {
		return false, s.explain(ctx, "read apply "+name, applyKind(), name, err)
	}
	r.Rollback = name
	return s.Plan(ctx, r, opts)
}

// startedApplies returns the applies of the namespace that have started, latest first.
func (s *Session) startedApplies(ctx context.Context) ([]*v1alpha1.Apply, error) {
	all, err := list[v1alpha1.Apply](ctx, s, applyKind())
	if err != nil {
		return nil, s.explain(ctx, "list applies", applyKind(), "", err)
	}
	all = slices.DeleteFunc(all, func(a *v1alpha1.Apply) bool { return a.Status.StartTime == nil })
	slices.SortFunc(all, func(a, b *v1alpha1.Apply) int { return b.Status.StartTime.Compare(a.Status.StartTime.Time) })
	return all, nil
}

// History lists the applies of the namespace: when, by whom, and which changes.
func (s *Session) History(ctx context.Context) error {
	all, err := s.startedApplies(ctx)
	if err != nil {
		return err
	}
	if len(all) == 0 {
		s.printf("No applies found in namespace %s.\n", s.Namespace)
		return nil
	}
	table := tabwriter.NewWriter(s.Out, 6, 4, 3, ' ', 0)
	fmt.Fprintln(table, "APPLY\tSTARTED\tBY\tPHASE\tCREATED\tCHANGED\tREPLACED\tDELETED\tPLAN\tDIGEST")
	for _, a := range all {
		by := ""
		if a.Spec.Author != nil {
			by = printable(a.Spec.Author.Username)
		}
		d := a.Status.Done
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%d\t%d\t%d\t%d\t%s\t%.19s\n", a.Name, a.Status.StartTime.UTC().Format("2006-01-02 15:04:05"), by, a.Status.Phase,
			d.Create, d.Update, d.Replace, d.Delete, a.Spec.Plan, a.Spec.Digest)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	s.printf("To plan a rollback to the end of one of them: `%s`\n", s.command("rollback "+all[min(1, len(all)-1)].Name))
	return nil
}
