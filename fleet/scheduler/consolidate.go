package scheduler

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/names"
	"github.com/atoll-dev/atoll/fleet/placement"
)

// setConsolidation completes a request by when the object goes back to earlier groups of clusters, if its policy wants
// that. Objects in transition, suspended ones and those with volumes stay: it takes time to move volumes.
func (snap *Snapshot) setConsolidation(a *Result, k interpret.KindInfo, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding) {
	after, returns := a.Choice.Policy.Consolidation()
	if !returns || b == nil || b.Spec.Transition != nil || a.Choice.Policy.Suspended() {
		return
	}
	if v := snap.volumesOf(k, obj); v.Stays || len(v.Carried) > 0 {
		return
	}
	a.Request.Consolidate = &placement.Consolidation{After: after}
	if late := b.Status.Consolidation; late != nil {
		a.Request.Consolidate.Since = late.Since.Time
	}
}

// consolidationStatus returns since when replicas could go back to earlier groups; nil if they cannot, or do now.
func (a *Result) consolidationStatus() *v1alpha1.ConsolidationStatus {
	c := a.Decision.Consolidation
	if len(c.From) == 0 || c.Returned {
		return nil
	}
	return &v1alpha1.ConsolidationStatus{Since: metav1.NewTime(c.Since).Rfc3339Copy()}
}

// consolidationMessage says when replicas go back to an earlier group.
func (a *Result) consolidationMessage() string {
	c := a.Decision.Consolidation
	if len(c.From) == 0 || c.Returned {
		return ""
	}
	return fmt.Sprintf("; replicas go back from %s to an earlier group of clusters at %s, if that has room until then", names.List(c.From), c.At.UTC().Format(time.RFC3339))
}

// consolidationText says that replicas went back to an earlier group, or "".
func (a *Result) consolidationText() string {
	if !a.Decision.Consolidation.Returned {
		return ""
	}
	return fmt.Sprintf(": an earlier group of clusters has had room for %s", a.Request.Consolidate.After)
}

// awaitsConsolidation reports whether a recorded decision waits for the object's turn to go back to an earlier group.
func awaitsConsolidation(b *v1alpha1.ResourceBinding, cluster string) bool {
	_, decided := decidedShare(b, cluster)
	return decided && b.Status.Consolidation != nil
}
