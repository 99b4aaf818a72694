package plancontroller

import (
	"context"
	"errors"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/infra/approval"
)

// policies parses the policies in the caches, and reports the invalid ones.
type policies struct {
	api    clients
	caches *caches

	mu     sync.Mutex
	parsed map[types.UID]parsedPolicy
}

// parsedPolicy is a parsed policy, and the generation that it was parsed from.
type parsedPolicy struct {
	generation int64
	policy     *approval.Policy
}

func newPolicies(api clients, c *caches) *policies {
	return &policies{api: api, caches: c, parsed: map[types.UID]parsedPolicy{}}
}

// of returns the policies of a namespace. Each generation is parsed once, so that pointers identify the policy
// that a decision was based on.
func (p *policies) of(namespace string) []*approval.Policy {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []*approval.Policy
	add := func(meta *metav1.ObjectMeta, parse func() *approval.Policy) {
		parsed, there := p.parsed[meta.UID]
		if !there || parsed.generation != meta.Generation {
			parsed = parsedPolicy{generation: meta.Generation, policy: parse()}
			p.parsed[meta.UID] = parsed
		}
		if meta.DeletionTimestamp == nil {
			out = append(out, parsed.policy)
		}
	}
	for _, one := range p.caches.policies.In(namespace) {
		add(&one.ObjectMeta, func() *approval.Policy { return approval.Parse(&one.ObjectMeta, &one.Spec, false, nil) })
	}
	for _, one := range p.caches.clusterPolicies.All() {
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

// report sets the condition Valid of the namespace's policies. Cluster-wide ones are reported by the first
// namespace that is reconciled.
func (p *policies) report(ctx context.Context, s *snapshot) error {
	var errs []error
	note := func(err error) {
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	for _, one := range p.caches.policies.In(s.namespace) {
		change := func(o *v1alpha1.SyncPolicy) bool {
			return o.Generation == one.Generation && p.setValid(&o.ObjectMeta, &o.Status, s.now)
		}
		if change(one.DeepCopy()) {
			_, err := p.api.policies.UpdateStatus(ctx, one.Namespace, one.Name, one.UID, change)
			note(err)
		}
	}
	for _, one := range p.caches.clusterPolicies.All() {
		change := func(o *v1alpha1.ClusterSyncPolicy) bool {
			return o.Generation == one.Generation && p.setValid(&o.ObjectMeta, &o.Status, s.now)
		}
		if change(one.DeepCopy()) {
			_, err := p.api.clusterPolicies.UpdateStatus(ctx, "", one.Name, one.UID, change)
			note(err)
		}
	}
	return errors.Join(errs...)
}

// setValid updates a policy's status, and reports whether that changed it.
func (p *policies) setValid(meta *metav1.ObjectMeta, status *v1alpha1.SyncPolicyStatus, now time.Time) bool {
	p.mu.Lock()
	parsed, there := p.parsed[meta.UID]
	p.mu.Unlock()
	if !there || parsed.generation != meta.Generation || meta.DeletionTimestamp != nil {
		return false
	}
	c := controllers.Condition(policyValid, true, reasonReadable, "The policy is in effect.")
	if invalid := parsed.policy.Invalid; invalid != nil {
		c = controllers.Condition(policyValid, false, reasonCannotBeFollowed, invalid.Error()+". Until this is fixed, users have to approve plans and nothing is applied automatically.")
	}
	changed := status.ObservedGeneration != meta.Generation
	status.ObservedGeneration = meta.Generation
	return setCondition(&status.Conditions, meta.Generation, now, c) || changed
}
