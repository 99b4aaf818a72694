package plans

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/infra/approval"
)

// parsedPolicy is a parsed policy, and the generation that it was parsed from.
type parsedPolicy struct {
	generation int64
	policy     *approval.Policy
}

// namespacePolicies returns the policies of a namespace. Each generation is parsed once, so that pointers
// identify the policy that a decision was based on.
func (r *reconciler) namespacePolicies(namespace string) []*approval.Policy {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*approval.Policy
	add := func(meta *metav1.ObjectMeta, read func() *approval.Policy) {
		parsed, there := r.policies[meta.UID]
		if !there || parsed.generation != meta.Generation {
			parsed = parsedPolicy{generation: meta.Generation, policy: read()}
			r.policies[meta.UID] = parsed
		}
		if parsed.policy != nil && meta.DeletionTimestamp == nil {
			out = append(out, parsed.policy)
		}
	}
	for _, one := range r.caches.policies.In(namespace) {
		add(&one.ObjectMeta, func() *approval.Policy { return approval.Parse(&one.ObjectMeta, &one.Spec, false, nil) })
	}
	for _, one := range r.caches.clusters.All() {
		add(&one.ObjectMeta, func() *approval.Policy {
			return approval.Parse(&one.ObjectMeta, &one.Spec.SyncPolicySpec, true, one.Spec.Namespaces)
		})
	}
	return out
}

// policyValid is the condition of policies. The others are its reasons.
const (
	policyValid            = "Valid"
	reasonReadable         = "Readable"
	reasonCannotBeFollowed = "CannotBeFollowed"
)

// reportPolicies sets the condition Valid of the namespace's policies. Cluster-wide ones are reported by the
// first namespace that is reconciled.
func (r *reconciler) reportPolicies(ctx context.Context, s *snapshot) error {
	var errs []error
	note := func(err error) {
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	for _, one := range r.caches.policies.In(s.namespace) {
		change := func(p *v1alpha1.SyncPolicy) bool {
			return p.Generation == one.Generation && r.setValid(&p.ObjectMeta, &p.Status, s.now)
		}
		if change(one.DeepCopy()) {
			_, err := r.api.policies.UpdateStatus(ctx, one.Namespace, one.Name, one.UID, change)
			note(err)
		}
	}
	for _, one := range r.caches.clusters.All() {
		change := func(p *v1alpha1.ClusterSyncPolicy) bool {
			return p.Generation == one.Generation && r.setValid(&p.ObjectMeta, &p.Status, s.now)
		}
		if change(one.DeepCopy()) {
			_, err := r.api.clusters.UpdateStatus(ctx, "", one.Name, one.UID, change)
			note(err)
		}
	}
	return errors.Join(errs...)
}

// setValid updates a policy's status, and reports whether that changed it. It skips policies that are not
// about infrastructure.
func (r *reconciler) setValid(meta *metav1.ObjectMeta, status *v1alpha1.SyncPolicyStatus, now time.Time) bool {
	r.mu.Lock()
	parsed, there := r.policies[meta.UID]
	r.mu.Unlock()
	if !there || parsed.policy == nil || parsed.generation != meta.Generation || meta.DeletionTimestamp != nil {
		return false
	}
	c := controllers.Condition(policyValid, true, reasonReadable, "The policy is in effect.")
	if broken := parsed.policy.Invalid; broken != nil {
		c = controllers.Condition(policyValid, false, reasonCannotBeFollowed, broken.Error()+". Until this is fixed, users have to approve plans and nothing is applied automatically.")
	}
	changed := status.ObservedGeneration != meta.Generation
	status.ObservedGeneration = meta.Generation
	return setCondition(&status.Conditions, meta.Generation, now, c) || changed
}
