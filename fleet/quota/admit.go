package quota

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// Change is how a write changes what an object uses.
type Change struct {
	Object v1alpha1.QuotaObject
	// By is the written object, if it is another one.
	By *v1alpha1.QuotaObject
	// Before and After are what the object uses; nil while the quota does not select it.
	Before, After corev1.ResourceList
	// Revision is at least the resource version that the written object had before; 0 on create.
	Revision int64
}

// Abandoned is after which time an admitted write that is not seen has failed. No request lasts so
// long.
const Abandoned = 90 * time.Second

// maxAdmitted bounds the list of writes that are not counted yet. The counter needs a second or two.
const maxAdmitted = 4000

// ErrExceeded is the error of a write that exceeds a limit.
var ErrExceeded = errors.New("exceeded FleetQuota")

// ErrNotCounted is the error while a quota cannot be evaluated. The same write may succeed later.
var ErrNotCounted = errors.New("the use of a FleetQuota is not known at the moment")

// Selects reports whether a quota selects an object with some labels.
func Selects(q *v1alpha1.FleetQuota, of map[string]string) (bool, error) {
	if q.Spec.Selector == nil {
		return true, nil
	}
	s, err := metav1.LabelSelectorAsSelector(q.Spec.Selector)
	if err != nil {
		return false, fmt.Errorf("spec.selector: %w", err)
	}
	return s.Matches(labels.Set(of)), nil
}

// Grows reports whether a change uses more of a limited resource.
func Grows(q *v1alpha1.FleetQuota, c Change) bool {
	return len(excess(only(c.After, q.Spec.Hard), c.Before)) > 0
}

// Admit returns the status of a quota after a change was admitted, or why it is not. A change that
// uses nothing more is admitted without a new status, which is then nil.
func Admit(q *v1alpha1.FleetQuota, c Change, now time.Time) (*v1alpha1.FleetQuotaStatus, error) {
	if !Grows(q, c) {
		return nil, nil
	}
	if q.Status.ObservedGeneration == 0 {
		return nil, fmt.Errorf("%w: FleetQuota %s was just created; try again in a moment", ErrNotCounted, q.Name)
	}
	for _, condition := range q.Status.Conditions {
		if condition.Type == v1alpha1.QuotaValid && condition.Status == metav1.ConditionFalse {
			return nil, fmt.Errorf("%w: FleetQuota %s is invalid: %s", ErrNotCounted, q.Name, condition.Message)
		}
	}
	if len(q.Status.Admitted) >= maxAdmitted {
		return nil, fmt.Errorf("%w: %d writes are not counted yet in FleetQuota %s; try again in a moment", ErrNotCounted, len(q.Status.Admitted), q.Name)
	}
	before := c.Before
	for _, a := range q.Status.Admitted {
		if a.Object == c.Object {
			before = most(before, a.Uses)
		}
	}
	more := excess(only(c.After, q.Spec.Hard), before)
	used := corev1.ResourceList{}
	Add(used, only(q.Status.Used, q.Spec.Hard))
	Add(used, more)
	for name := range more {
		if is, limit := used[name], q.Spec.Hard[name]; is.Cmp(limit) > 0 {
			over := onlyOver(more, used, q.Spec.Hard)
			return nil, fmt.Errorf("%w: %s, requested: %s, used: %s, limited: %s", ErrExceeded, q.Name,
				text(over), text(only(withZeros(q.Status.Used, over), over)), text(only(q.Spec.Hard, over)))
		}
	}
	status := q.Status.DeepCopy()
	status.Admitted = append(status.Admitted, v1alpha1.AdmittedWrite{Object: c.Object, By: c.By, Uses: only(c.After, q.Spec.Hard),
		Revision: max(c.Revision, Revision(q.ResourceVersion)), Time: metav1.NewTime(now)})
	setUsed(status, q.Spec.Hard, used)
	return status, nil
}

// Reserve counts a change in a copy of a quota, for a preview.
func Reserve(q *v1alpha1.FleetQuota, c Change) {
	used := q.Status.Used.DeepCopy()
	if used == nil {
		used = corev1.ResourceList{}
	}
	Add(used, excess(only(c.After, q.Spec.Hard), c.Before))
	setUsed(&q.Status, q.Spec.Hard, used)
}

// onlyOver returns the requested amounts of the resources whose limits would be exceeded.
func onlyOver(more, used corev1.ResourceList, hard corev1.ResourceList) corev1.ResourceList {
	out := corev1.ResourceList{}
	for name, q := range more {
		if is := used[name]; is.Cmp(hard[name]) > 0 {
			out[name] = q
		}
	}
	return out
}

func withZeros(amounts, names corev1.ResourceList) corev1.ResourceList {
	out := corev1.ResourceList{}
	for name := range names {
		out[name] = amounts[name]
	}
	return out
}

// Withdraw returns the status without a write that was admitted and is not made after all, nil if it
// is not listed. The next count corrects the use.
func Withdraw(q *v1alpha1.FleetQuota, write v1alpha1.AdmittedWrite) *v1alpha1.FleetQuotaStatus {
	i := slices.IndexFunc(q.Status.Admitted, func(a v1alpha1.AdmittedWrite) bool { return equality.Semantic.DeepEqual(a, write) })
	if i < 0 {
		return nil
	}
	status := q.Status.DeepCopy()
	status.Admitted = slices.Delete(status.Admitted, i, i+1)
	return status
}

// Revision returns a resource version as a number; 0 if it is none.
func Revision(resourceVersion string) int64 {
	n, err := strconv.ParseInt(resourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// Counted is everything that was counted in a quota's namespace.
type Counted struct {
	// Uses of the objects that the quota selects.
	Uses map[v1alpha1.QuotaObject]corev1.ResourceList
	// Seen are the last resource versions of the written objects, those of deletions included. They
	// were read before Uses: a write that was seen is in Uses.
	Seen map[v1alpha1.QuotaObject]int64
}

// Written returns the object of a write.
func Written(a v1alpha1.AdmittedWrite) v1alpha1.QuotaObject {
	if a.By != nil {
		return *a.By
	}
	return a.Object
}

// Count returns the status of a quota after a count, and when to count again: an admitted write may
// have failed. 0 means that no write is pending.
func Count(q *v1alpha1.FleetQuota, c Counted, now time.Time) (v1alpha1.FleetQuotaStatus, time.Duration) {
	status := *q.Status.DeepCopy()
	status.ObservedGeneration = q.Generation
	used := corev1.ResourceList{}
	for _, uses := range c.Uses {
		Add(used, only(uses, q.Spec.Hard))
	}
	var again time.Duration
	status.Admitted = nil
	pending := map[v1alpha1.QuotaObject]corev1.ResourceList{}
	for _, a := range q.Status.Admitted {
		left := Abandoned - now.Sub(a.Time.Time)
		if c.Seen[Written(a)] > a.Revision || left <= 0 {
			continue
		}
		status.Admitted = append(status.Admitted, a)
		pending[a.Object] = most(pending[a.Object], a.Uses)
		if again == 0 || left < again {
			again = left
		}
	}
	for object, uses := range pending {
		Add(used, excess(only(uses, q.Spec.Hard), c.Uses[object]))
	}
	setUsed(&status, q.Spec.Hard, used)
	return status, again
}

// setUsed sets the used and the free amounts.
func setUsed(status *v1alpha1.FleetQuotaStatus, hard, used corev1.ResourceList) {
	status.Used, status.Free = corev1.ResourceList{}, corev1.ResourceList{}
	for name, limit := range hard {
		is := used[name]
		free := limit.DeepCopy()
		free.Sub(is)
		if free.Sign() < 0 {
			free.Set(0)
		}
		status.Used[name], status.Free[name] = is, free
	}
}
