package plans

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

// readSpec is a policy that was read, and the generation that it was read from.
type readSpec struct {
	generation int64
	policy     *policy
}

// readPolicies gives those that are there for a namespace. Each is read once for each generation of it, so that what
// was decided by one can be told by it.
func (d *desk) readPolicies(namespace string) []*policy {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []*policy
	take := func(meta *metav1.ObjectMeta, read func() *policy) {
		had, there := d.policies[meta.UID]
		if !there || had.generation != meta.Generation {
			had = readSpec{generation: meta.Generation, policy: read()}
			d.policies[meta.UID] = had
		}
		if had.policy != nil && meta.DeletionTimestamp == nil {
			out = append(out, had.policy)
		}
	}
	for _, one := range inNamespace[v1alpha1.SyncPolicy](d.caches.policies, namespace) {
		take(&one.ObjectMeta, func() *policy { return readPolicy(&one.ObjectMeta, &one.Spec, false, nil) })
	}
	for _, object := range d.caches.clusters.GetStore().List() {
		if one, is := object.(*v1alpha1.ClusterSyncPolicy); is {
			take(&one.ObjectMeta, func() *policy {
				return readPolicy(&one.ObjectMeta, &one.Spec.SyncPolicySpec, true, one.Spec.Namespaces)
			})
		}
	}
	return out
}

// Conditions of policies, and why they are as they are.
const (
	policyValid     = "Valid"
	reasonReadable  = "Readable"
	reasonNotToRead = "CannotBeFollowed"
)

// reportPolicies says of each policy of the namespace whether it can be followed. One for all namespaces is reported from
// the first of them that is looked at.
func (d *desk) reportPolicies(ctx context.Context, s *scene) error {
	var errs []error
	note := func(err error) {
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	for _, one := range inNamespace[v1alpha1.SyncPolicy](d.caches.policies, s.namespace) {
		change := func(p *v1alpha1.SyncPolicy) bool {
			return p.Generation == one.Generation && d.report(&p.ObjectMeta, &p.Status, s.now)
		}
		if change(one.DeepCopy()) {
			_, err := d.api.policies.updateStatus(ctx, one.Namespace, one.Name, one.UID, change)
			note(err)
		}
	}
	for _, object := range d.caches.clusters.GetStore().List() {
		one, is := object.(*v1alpha1.ClusterSyncPolicy)
		if !is {
			continue
		}
		change := func(p *v1alpha1.ClusterSyncPolicy) bool {
			return p.Generation == one.Generation && d.report(&p.ObjectMeta, &p.Status, s.now)
		}
		if change(one.DeepCopy()) {
			_, err := d.api.clusters.updateStatus(ctx, "", one.Name, one.UID, change)
			note(err)
		}
	}
	return errors.Join(errs...)
}

// report says in a policy's status whether it can be followed, if it is about infrastructure.
func (d *desk) report(meta *metav1.ObjectMeta, status *v1alpha1.SyncPolicyStatus, now time.Time) bool {
	d.mu.Lock()
	had, there := d.policies[meta.UID]
	d.mu.Unlock()
	if !there || had.policy == nil || had.generation != meta.Generation || meta.DeletionTimestamp != nil {
		return false
	}
	c := condition(policyValid, true, reasonReadable, "It is followed.")
	if broken := had.policy.broken; broken != nil {
		c = condition(policyValid, false, reasonNotToRead, broken.Error()+". Until that is mended, persons have to approve, and nothing is applied by itself.")
	}
	changed := status.ObservedGeneration != meta.Generation
	status.ObservedGeneration = meta.Generation
	return setCondition(&status.Conditions, meta.Generation, now, c) || changed
}
