package cli

import (
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/scaling"
	"github.com/atoll-dev/atoll/fleet/scheduler"
)

// previewSchedule writes the next times of a ScaleSchedule to notes. It changes nothing until then.
func previewSchedule(s *scheduler.State, o *unstructured.Unstructured, notes io.Writer) error {
	of := &v1alpha1.ScaleSchedule{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, of); err != nil {
		return fmt.Errorf("read %s %s: %w", o.GetKind(), o.GetName(), err)
	}
	schedule, errs := scaling.Compile(&of.Spec)
	if len(errs) > 0 {
		return fmt.Errorf("ScaleSchedule %s is invalid: %w", of.Name, errs.ToAggregate())
	}
	next := schedule.Upcoming(s.At)
	if len(next) == 0 {
		fmt.Fprintf(notes, "ScaleSchedule %s would change nothing: all of its rules are suspended.\n", of.Name)
		return nil
	}
	fmt.Fprintf(notes, "ScaleSchedule %s would change nothing now. The next times of its rules for %s %s:\n", of.Name, of.Spec.Target.Kind, of.Spec.Target.Name)
	table := newTable(notes)
	fmt.Fprintln(table, "RULE\tNEXT\tSETS")
	for _, n := range next {
		fmt.Fprintf(table, "%s\t%s\t%s\n", n.Rule.Name, n.At.Format("2006-01-02 15:04 MST"), scaling.String(scaling.ValuesOf(n.Rule)))
	}
	return table.Flush()
}
