package cli

import (
	"fmt"
	"io"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/scheduler"
	"github.com/atoll-dev/atoll/fleet/taints"
)

// previewTaints changes the taints of a snapshot's clusters as a ClusterTaintPolicy would. It writes
// the differences to notes, and the clusters that may change later.
func previewTaints(s *scheduler.State, o *unstructured.Unstructured, notes io.Writer) error {
	policy := &v1alpha1.ClusterTaintPolicy{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, policy); err != nil {
		return fmt.Errorf("read %s %s: %w", o.GetKind(), o.GetName(), err)
	}
	p := taints.Compile(policy)
	if p.Err != nil {
		return fmt.Errorf("ClusterTaintPolicy %s is invalid: %w", p.Name, p.Err)
	}
	quiet := true
	for i, c := range s.Clusters {
		if c.DeletionTimestamp != nil {
			continue
		}
		next := c.DeepCopy()
		var d taints.Decision
		next.Status.PolicyTaints, d = taints.With(c, p, s.At)
		s.Clusters[i] = next
		for _, change := range d.Changes {
			what := "loses"
			if change.Added {
				what = "gets"
			}
			fmt.Fprintf(notes, "cluster %s %s the taint %s: %s\n", c.Name, what, change.Taint.String(), change.Why)
		}
		if !d.Next.IsZero() {
			fmt.Fprintf(notes, "cluster %s: its taints may change in %s, which the moves do not include\n", c.Name, d.Next.Sub(s.At).Round(time.Second))
		}
		quiet = quiet && len(d.Changes) == 0 && d.Next.IsZero()
	}
	if quiet {
		fmt.Fprintf(notes, "ClusterTaintPolicy %s would change no taints now.\n", p.Name)
	}
	return nil
}
