package cliview

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/render"
)

// counts converts a plan's summary. Only the chunks count deferred changes.
func counts(p *v1alpha1.Plan) change.Counts {
	s, deferred := p.Status.Summary, int32(0)
	for i := range p.Status.Chunks {
		deferred += p.Status.Chunks[i].Actions[string(change.Deferred)]
	}
	return change.Counts{
		Create: int(s.Create), Update: int(s.Update), Replace: int(s.Replace), Delete: int(s.Delete), Read: int(s.Read),
		Import: int(s.Import), Move: int(s.Move), Forget: int(s.Forget), NoOp: int(s.NoOp), Drift: int(s.Drift), Place: int(s.Place), Kept: int(s.Kept), Deferred: int(deferred),
	}
}

// hasEffect reports whether applying a plan does anything: it changes something, or it records
// changes that were made outside of Atoll and that the configuration accepts.
func hasEffect(p *v1alpha1.Plan) bool { return HasChanges(p) || p.Status.Summary.Drift > 0 }

// HasChanges reports whether a plan changes something, or is there to record changes.
func HasChanges(p *v1alpha1.Plan) bool {
	c := counts(p)
	return !c.Empty() || p.Spec.Mode == v1alpha1.PlanRefreshOnly && c.Drift > 0
}

// Show prints a plan or an apply. name may have the prefix plan/ or apply/ to say which.
func (s *Session) Show(ctx context.Context, name string, filter Filter, format string) error {
	if err := filter.Check(); err != nil {
		return err
	}
	word, rest, cut := strings.Cut(name, "/")
	if !cut {
		rest = name
	}
	if word, _, _ = strings.Cut(word, "."); cut && word != "plan" && word != "plans" && word != "apply" && word != "applies" {
		return fmt.Errorf("%s is neither a plan nor an apply: use plan/NAME or apply/NAME", name)
	}
	if !cut || strings.HasPrefix(word, "plan") {
		p, err := get[v1alpha1.Plan](ctx, s, planKind(), rest)
		if err == nil {
			return s.ShowPlan(ctx, p, filter, format)
		}
		if cut || !apierrors.IsNotFound(err) {
			return s.explain(ctx, "read plan "+rest, planKind(), rest, err)
		}
	}
	a, err := get[v1alpha1.Apply](ctx, s, applyKind(), rest)
	switch {
	case err == nil:
		return s.ShowApply(a, format)
	case !cut && apierrors.IsNotFound(err): // most users mean a plan
		return s.explain(ctx, "read plan "+rest, planKind(), rest, err)
	}
	return s.explain(ctx, "read apply "+rest, applyKind(), rest, err)
}

// ShowPlan prints a plan as text, json, yaml, name, or wide, which has a line for each change.
func (s *Session) ShowPlan(ctx context.Context, p *v1alpha1.Plan, filter Filter, format string) error {
	switch format {
	case "name":
		s.printf("%s\n", planKind().id(p.Name))
		return nil
	case "json", "yaml":
		return s.printStructured(ctx, p, filter, format)
	}
	if p.Status.Phase == v1alpha1.PlanFailed {
		failed := failedPlan(p)
		if all := p.Status.Problems; len(all) != 1 || !strings.Contains(failed.Error(), all[0].Message) { // do not repeat it
			s.problems("Not planned", all)
		}
		return failed
	}
	if !planEnded(p.Status.Phase) {
		phase := p.Status.Phase
		if phase == "" {
			phase = v1alpha1.PlanPending
		}
		s.printf("Plan %s is not ready: %s\n", p.Name, lineText(string(phase), p.Status.Progress))
		return nil
	}
	if format == "wide" {
		s.problems("Warnings", p.Status.Warnings)
		s.problems("Not planned", p.Status.Problems)
		return s.table(ctx, p, filter)
	}
	if err := s.text(ctx, p, filter); err != nil {
		return err
	}
	s.problems("Warnings", p.Status.Warnings)
	s.problems("Not planned", p.Status.Problems)
	s.printf("\nPlan %s, %s", p.Name, p.Status.Digest)
	if p.Spec.Author != nil {
		s.printf(", by %s", p.Spec.Author.Username)
	}
	s.printf("%s\n", approvedText(p))
	if c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.PlanCurrent); c != nil && c.Status == metav1.ConditionFalse && p.Status.Phase != v1alpha1.PlanApplied {
		s.printf("This plan is stale: %s Changes of resources that changed since are rejected. To create a new plan, run `%s`.\n", c.Message, s.command("plan"))
	}
	return nil
}

// failedPlan returns an error with the reason of a failed plan.
func failedPlan(p *v1alpha1.Plan) error {
	why := "no reason given: see the server's log"
	if c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.PlanComplete); c != nil && c.Message != "" {
		why = c.Message
	}
	return fmt.Errorf("plan %s failed: %s", p.Name, why)
}

func approvedText(p *v1alpha1.Plan) string {
	c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.PlanApproved)
	switch {
	case p.Status.Phase == v1alpha1.PlanApplied:
		return ": applied"
	case c == nil || c.Reason == v1alpha1.ReasonNothingToDo:
		return ""
	case c.Status == metav1.ConditionTrue:
		return ": approved"
	case c.Message != "":
		return ": not approved: " + printable(c.Message)
	}
	return ": not approved"
}

// text prints changes in OpenTofu's format.
func (s *Session) text(ctx context.Context, p *v1alpha1.Plan, filter Filter) error {
	r, sum := s.rendering(), p.Status.Summary
	whole := len(filter.Actions) == 0 && !filter.Drift
	refresh := p.Spec.Mode == v1alpha1.PlanRefreshOnly
	if sum.Drift > 0 && (whole || filter.Drift) {
		s.printf("Objects have changed outside of Atoll since the last refresh:\n\n")
		err := s.changes(ctx, p.Name, Filter{Drift: true}, func(c *change.Change) error { return s.drift(r, c) })
		if err != nil || filter.Drift {
			return err
		}
	}
	c := counts(p)
	switch {
	case whole && !HasChanges(p) && len(p.Status.Problems) > 0:
		s.printf("No changes to the resources that could be planned.\n")
		return nil
	case whole && sum == (v1alpha1.PlanSummary{}) && c.Deferred == 0:
		if p.Spec.Mode == v1alpha1.PlanRefreshOnly || p.Spec.Mode == v1alpha1.PlanDestroy {
			s.printf("No resources found in namespace %s.\n", s.Namespace)
		} else {
			s.printf("No resources of a Provider's kind found in namespace %s.\n", s.Namespace)
		}
		return nil
	case whole && !HasChanges(p) && c.Deferred == 0:
		s.printf("No changes. Infrastructure matches the configuration.\n")
		if sum.Drift > 0 {
			s.printf("The configuration accepts the changes that were made outside of Atoll. Applying this plan records them in the state.\n")
		}
		return nil
	case refresh:
		s.printf("This is a refresh-only plan. Applying it updates the state of %d resources and changes none.\n", sum.Drift)
		return nil
	}
	if legend := r.Legend(c); whole && legend != "" {
		s.printf("Planned actions are indicated with the following symbols:\n%s\n", legend)
	}
	err := s.changes(ctx, p.Name, filter, func(c *change.Change) error {
		if err := r.Change(s.Out, c); err != nil {
			return err
		}
		_, err := io.WriteString(s.Out, "\n")
		return err
	})
	if err != nil {
		return err
	}
	s.printf("%s\n", c.Summary())
	return nil
}

func (s *Session) drift(r render.Renderer, c *change.Change) error {
	if err := r.Drift(s.Out, c); err != nil {
		return err
	}
	_, err := io.WriteString(s.Out, "\n")
	return err
}

// table prints a line for each change.
func (s *Session) table(ctx context.Context, p *v1alpha1.Plan, filter Filter) error {
	table := tabwriter.NewWriter(s.Out, 6, 4, 3, ' ', 0)
	fmt.Fprintln(table, "ACTION\tRESOURCE\tWHY")
	lines := 0
	err := s.changes(ctx, p.Name, filter, func(c *change.Change) error {
		address := c.Address
		if address.Namespace == s.Namespace {
			address.Namespace = ""
		}
		fmt.Fprintf(table, "%s\t%s\t%s\n", actionText(c), address, why(c))
		if lines++; lines%pageSize == 0 { // align columns page by page, to not hold a large plan in memory
			return table.Flush()
		}
		return nil
	})
	if err != nil {
		return err
	}
	return table.Flush()
}

func actionText(c *change.Change) string {
	switch {
	case c.Deferred != "":
		return string(change.Deferred)
	case c.Action == change.NoOp && c.Drift != nil:
		return "drift"
	}
	return string(c.Action)
}

// why summarizes the reason for a change.
func why(c *change.Change) string {
	var parts []string
	if c.Deferred != "" {
		parts = append(parts, c.Deferred)
	}
	if c.Reason != "" {
		parts = append(parts, string(c.Reason))
	}
	if c.Detail != "" {
		parts = append(parts, c.Detail)
	}
	var forcing []string
	for _, f := range c.Fields {
		if f.ForcesReplacement {
			forcing = append(forcing, f.Path)
		}
	}
	if len(forcing) > 0 {
		parts = append(parts, shortened(forcing)+" forces replacement")
	}
	if len(parts) == 0 && c.Action == change.Update {
		var paths []string
		for _, f := range c.Fields {
			paths = append(paths, f.Path)
		}
		parts = append(parts, shortened(paths))
	}
	return printable(strings.Join(parts, ": "))
}

// problems prints errors or warnings about objects.
func (s *Session) problems(title string, all []v1alpha1.Problem) {
	if len(all) == 0 {
		return
	}
	s.infof("%s:", title)
	for _, p := range all {
		at := p.Address
		if p.Field != "" {
			at += ", " + p.Field
		}
		s.infof("  %s: %s", printable(at), printable(p.Message))
	}
	if len(all) >= 100 {
		s.infof("  (only the first %d are shown)", len(all))
	}
}

// ShowApply prints the progress or the result of an apply.
func (s *Session) ShowApply(a *v1alpha1.Apply, format string) error {
	switch format {
	case "name":
		s.printf("%s\n", applyKind().id(a.Name))
		return nil
	case "json", "yaml":
		a.SetGroupVersionKind(v1alpha1.ApplyResource.GroupVersion().WithKind("Apply"))
		return writeFormatted(s.Out, format, a)
	}
	phase := a.Status.Phase
	if phase == "" {
		phase = v1alpha1.ApplyPending
	}
	s.printf("Apply %s of plan %s, %s: %s\n", a.Name, a.Spec.Plan, a.Spec.Digest, lineText(string(phase), a.Status.Progress))
	if text := s.waiting(a); text != "" {
		s.printf("Waiting: %s\n", text)
	}
	if a.Spec.Author != nil {
		s.printf("Created by %s", a.Spec.Author.Username)
		if len(a.Status.ApprovedBy) > 0 {
			s.printf(", approved by %s", strings.Join(a.Status.ApprovedBy, ", "))
		}
		s.printf("\n")
	}
	if start := a.Status.StartTime; start != nil {
		s.printf("Started %s", start.Format(time.RFC3339))
		if end := a.Status.CompletionTime; end != nil {
			s.printf(", took %s", end.Sub(start.Time).Round(time.Millisecond))
		}
		s.printf("\n")
	}
	s.problems("Warnings", a.Status.Warnings)
	s.problems("Not applied", a.Status.Problems)
	if applyEnded(a.Status.Phase) {
		s.printf("%s\n", outcome(a))
	}
	return nil
}

// outcome summarizes a finished apply in one line.
func outcome(a *v1alpha1.Apply) string {
	d := a.Status.Done
	parts := []string{fmt.Sprintf("%d added", d.Create+d.Replace), fmt.Sprintf("%d changed", d.Update), fmt.Sprintf("%d destroyed", d.Delete+d.Replace-d.Kept)}
	if d.Move > 0 {
		parts = append([]string{fmt.Sprintf("%d moved", d.Move)}, parts...)
	}
	if d.Import > 0 {
		parts = append([]string{fmt.Sprintf("%d imported", d.Import)}, parts...)
	}
	if forgotten := d.Forget + d.Kept; forgotten > 0 {
		parts = append(parts, fmt.Sprintf("%d forgotten", forgotten))
	}
	if d.Place > 0 {
		parts = append(parts, fmt.Sprintf("%d changed in clusters", d.Place))
	}
	word := map[v1alpha1.ApplyPhase]string{v1alpha1.ApplySucceeded: "complete!", v1alpha1.ApplyFailed: "incomplete.", v1alpha1.ApplyCanceled: "cancelled."}[a.Status.Phase]
	return "Apply " + word + " Resources: " + strings.Join(parts, ", ") + "."
}
