package scheduler

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/names"
	"github.com/atoll-dev/atoll/fleet/placement"
	"github.com/atoll-dev/atoll/fleet/quota"
)

// ReasonQuotaExceeded means that a FleetQuota has no room for the object in further clusters.
const ReasonQuotaExceeded = "QuotaExceeded"

// limitCopies decides again if the decision would run an object whole in more clusters than a quota
// permits. API requests are checked when they are made; only here is it known how many clusters run
// the object.
func (snap *Snapshot) limitCopies(a *Result, k interpret.KindInfo, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding) {
	for _, c := range snap.copiesUnderQuotas(a, k, obj, b) {
		if _, err := quota.Admit(c.Quota, c.Change, snap.Now); err != nil {
			a.Request.Exceeds = err.Error()
			a.Decision = placement.Decide(a.Request)
			a.Decision.Reason = ReasonQuotaExceeded
			a.Shares = shares(a.Decision)
			a.Decision.Message = fmt.Sprintf("no further cluster may run it%s: %s; delete or scale down something, or have the quota raised", staysIn(a.Shares), err)
			return
		}
	}
}

func staysIn(shares []v1alpha1.ClusterShare) string {
	if len(shares) == 0 {
		return ""
	}
	return ", and it stays in " + names.List(clusterNames(shares))
}

// copiesUnderQuotas returns the change of an object's use, for each quota that selects it, if the
// decision runs the whole object in more clusters than before.
func (snap *Snapshot) copiesUnderQuotas(a *Result, k interpret.KindInfo, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding) (out []fleet.QuotaChange) {
	if snap.Quotas == nil || len(a.Shares) < 2 || a.Decision.Mode == v1alpha1.ModeDivided {
		return nil
	}
	before := fleet.Workload{Kind: k, Object: obj, Autoscaler: a.Autoscaler}
	var revision int64
	if b != nil {
		before.Shares, revision = b.Decided(), quota.Revision(b.ResourceVersion)
	}
	if copiesIn(before.Shares) >= copiesIn(a.Shares) {
		return nil
	}
	after := before
	after.Shares = a.Shares
	for _, q := range snap.Quotas(obj.GetNamespace()) {
		if selected, err := quota.Selects(q, obj.GetLabels()); err != nil || !selected {
			continue
		}
		had, _, err := before.Uses()
		if err != nil {
			return nil // it makes no pods
		}
		has, _, err := after.Uses()
		if err != nil {
			return nil
		}
		binding := v1alpha1.QuotaObject{Group: v1alpha1.Group, Kind: v1alpha1.BindingKind(obj.GetNamespace()), Name: refOf(k.GroupKind(), obj).binding().Name}
		c := fleet.QuotaChange{Quota: q, Change: quota.Change{Object: before.QuotaObject(), By: &binding, Before: had, After: has, Revision: revision}}
		if quota.Grows(q, c.Change) {
			out = append(out, c)
		}
	}
	return out
}

// copiesIn returns how many clusters run the whole object; 0 if they share its replicas.
func copiesIn(shares []v1alpha1.ClusterShare) (n int) {
	for _, s := range shares {
		if s.Replicas == nil {
			n++
		}
	}
	return n
}

// admitCopies records in the quotas that a decision runs an object in more clusters. It fails if
// another write was admitted first; then the object is scheduled again.
func (s *scheduler) admitCopies(ctx context.Context, o object, a *Result, k interpret.KindInfo, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding) error {
	s.trackOverQuota(o, a.Decision.Reason == ReasonQuotaExceeded)
	changes := s.snapshot().copiesUnderQuotas(a, k, obj, b)
	if len(changes) == 0 {
		return nil
	}
	err := s.Session.Quotas.Admit(ctx, changes, false)
	if errors.Is(err, quota.ErrExceeded) {
		s.trackOverQuota(o, true)
	}
	return err
}

// trackOverQuota records whether a quota keeps an object out of further clusters.
func (s *scheduler) trackOverQuota(o object, over bool) {
	s.cache.pendingMu.Lock()
	defer s.cache.pendingMu.Unlock()
	member(s.cache.overQuota, o, over)
}

// quotaChanged queues the objects that a quota keeps out of clusters when it has more room.
func (s *scheduler) quotaChanged(was, is *v1alpha1.FleetQuota) {
	if was == nil || is != nil && was.Generation == is.Generation && !hasMoreFree(was, is) {
		return
	}
	s.cache.pendingMu.Lock()
	defer s.cache.pendingMu.Unlock()
	for o := range s.cache.overQuota[was.Namespace] {
		s.queue.Add(o)
	}
}

func hasMoreFree(was, is *v1alpha1.FleetQuota) bool {
	for name, free := range is.Status.Free {
		if free.Cmp(was.Status.Free[name]) > 0 {
			return true
		}
	}
	return false
}

// quotas returns copies of the quotas by namespace, in which decisions reserve.
func (s *State) quotas() func(namespace string) []*v1alpha1.FleetQuota {
	in := map[string][]*v1alpha1.FleetQuota{}
	for _, q := range s.Quotas {
		in[q.Namespace] = append(in[q.Namespace], q.DeepCopy())
	}
	return func(namespace string) []*v1alpha1.FleetQuota { return in[namespace] }
}

// reserveCopies counts the further copies of an object in the quotas, so that the next decision takes them into
// account.
func (snap *Snapshot) reserveCopies(a *Result, k interpret.KindInfo, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding) {
	for _, c := range snap.copiesUnderQuotas(a, k, obj, b) {
		quota.Reserve(c.Quota, c.Change)
	}
}
