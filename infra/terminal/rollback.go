package terminal

import (
	"context"
	"fmt"
	"slices"
	"text/tabwriter"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

// Rollback plans what was written when an apply had ended, and shows it. The name is that of the apply, or of its plan.
func (s *Session) Rollback(ctx context.Context, name string, r *Request, how Planning) (bool, error) {
	_, err := get[v1alpha1.Apply](ctx, s, anApply(), name)
	if apierrors.IsNotFound(err) {
		applies, listing := s.begun(ctx)
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
		return false, s.explained(ctx, "read apply "+name, anApply(), name, err)
	}
	r.Rollback = name
	return s.Plan(ctx, r, how)
}

// begun are the applies of the namespace that something was done by, the latest first.
func (s *Session) begun(ctx context.Context) ([]*v1alpha1.Apply, error) {
	all, err := list[v1alpha1.Apply](ctx, s, anApply())
	if err != nil {
		return nil, s.explained(ctx, "list applies", anApply(), "", err)
	}
	all = slices.DeleteFunc(all, func(a *v1alpha1.Apply) bool { return a.Status.StartTime == nil })
	slices.SortFunc(all, func(a, b *v1alpha1.Apply) int { return b.Status.StartTime.Compare(a.Status.StartTime.Time) })
	return all, nil
}

// History shows what was carried out in the namespace: when, for whom, and what.
func (s *Session) History(ctx context.Context) error {
	all, err := s.begun(ctx)
	if err != nil {
		return err
	}
	if len(all) == 0 {
		s.printf("Nothing was carried out in namespace %s yet.\n", s.Namespace)
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
	s.printf("To plan what was written when one of them had ended: `%s`\n", s.command("rollback "+all[min(1, len(all)-1)].Name))
	return nil
}
