package fleet

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/fleet/quota"
)

// Quotas are the FleetQuotas of all namespaces. All servers admit changes, so the truth is in the API:
// a change is admitted once it is recorded in each quota's status, at the version that was read.
type Quotas struct {
	controllers.Cache[v1alpha1.FleetQuota]

	api   dynamic.NamespaceableResourceInterface
	clock clock.PassiveClock

	mu sync.Mutex
	// waiting are the changes that no commit has taken yet, by quota. A quota in the map has a
	// goroutine that commits them: changes that arrive during a commit are written together.
	waiting map[types.NamespacedName][]*waitingChange
}

type waitingChange struct {
	change quota.Change
	dryRun bool
	done   chan error
	// admitted is the record in the quota's status, nil if nothing more is used.
	admitted *v1alpha1.AdmittedWrite
}

// NewQuotas returns the quotas. Their cache is empty until its informer runs.
func NewQuotas(dyn dynamic.Interface, clock clock.PassiveClock) *Quotas {
	return &Quotas{Cache: controllers.NewCache[v1alpha1.FleetQuota](dyn, v1alpha1.FleetQuotaResource, controllers.CacheOptions{}),
		api: dyn.Resource(v1alpha1.FleetQuotaResource), clock: clock, waiting: map[types.NamespacedName][]*waitingChange{}}
}

// QuotaManager is the field manager of the status of quotas.
const QuotaManager = "atoll-quota"

// commitTimeout bounds one commit, with its retries.
const commitTimeout = 10 * time.Second

// QuotaChange is a change under one quota.
type QuotaChange struct {
	Quota  *v1alpha1.FleetQuota
	Change quota.Change
}

// Admit records changes in their quotas, or in none of them if one refuses. With dryRun it only
// checks. The error is quota.ErrExceeded or quota.ErrNotCounted, or one of the API.
func (q *Quotas) Admit(ctx context.Context, changes []QuotaChange, dryRun bool) error {
	var admitted []QuotaChange
	var writes []*v1alpha1.AdmittedWrite
	for _, c := range changes {
		if !quota.Grows(c.Quota, c.Change) {
			continue
		}
		write, err := q.admit(ctx, c, dryRun)
		if err != nil {
			for i, done := range admitted {
				err = errors.Join(err, q.withdraw(context.WithoutCancel(ctx), done.Quota, writes[i]))
			}
			return err
		}
		if write != nil {
			admitted, writes = append(admitted, c), append(writes, write)
		}
	}
	return nil
}

// admit records a change in one quota.
func (q *Quotas) admit(ctx context.Context, c QuotaChange, dryRun bool) (*v1alpha1.AdmittedWrite, error) {
	key := types.NamespacedName{Namespace: c.Quota.Namespace, Name: c.Quota.Name}
	w := &waitingChange{change: c.Change, dryRun: dryRun, done: make(chan error, 1)}
	q.mu.Lock()
	_, committing := q.waiting[key]
	q.waiting[key] = append(q.waiting[key], w)
	q.mu.Unlock()
	if !committing {
		go q.commitAll(context.WithoutCancel(ctx), key)
	}
	select {
	case err := <-w.done:
		return w.admitted, err
	case <-ctx.Done():
		return nil, ctx.Err() // if it is recorded, it counts as abandoned after a while
	}
}

// commitAll commits the changes that wait for a quota until there are none.
func (q *Quotas) commitAll(ctx context.Context, key types.NamespacedName) {
	for {
		q.mu.Lock()
		batch := q.waiting[key]
		if len(batch) == 0 {
			delete(q.waiting, key)
			q.mu.Unlock()
			return
		}
		q.waiting[key] = nil
		q.mu.Unlock()
		q.commit(ctx, key, batch)
	}
}

// commit admits changes with one write of the quota, and answers all of them.
func (q *Quotas) commit(ctx context.Context, key types.NamespacedName, batch []*waitingChange) {
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	answers := make([]error, len(batch))
	err := q.update(ctx, key, func(live *v1alpha1.FleetQuota) *v1alpha1.FleetQuotaStatus {
		changed := false
		for i, w := range batch {
			w.admitted = nil
			status, err := quota.Admit(live, w.change, q.clock.Now())
			answers[i] = err
			if err != nil || status == nil || w.dryRun {
				continue
			}
			live.Status, changed = *status, true
			w.admitted = &status.Admitted[len(status.Admitted)-1]
		}
		if !changed {
			return nil
		}
		return &live.Status
	})
	for i, w := range batch {
		if err != nil {
			w.done <- err
		} else {
			w.done <- answers[i]
		}
	}
}

func (q *Quotas) withdraw(ctx context.Context, of *v1alpha1.FleetQuota, write *v1alpha1.AdmittedWrite) error {
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	return q.update(ctx, types.NamespacedName{Namespace: of.Namespace, Name: of.Name}, func(live *v1alpha1.FleetQuota) *v1alpha1.FleetQuotaStatus {
		return quota.Withdraw(live, *write)
	})
}

// update writes the status of a quota that is computed from its current version, as often as another
// server comes first. compute returns nil if there is nothing to write. A quota that is gone limits
// nothing.
func (q *Quotas) update(ctx context.Context, key types.NamespacedName, compute func(*v1alpha1.FleetQuota) *v1alpha1.FleetQuotaStatus) error {
	api := q.api.Namespace(key.Namespace)
	for {
		u, err := api.Get(ctx, key.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read FleetQuota %s: %w", key, err)
		}
		live := &v1alpha1.FleetQuota{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, live); err != nil {
			return fmt.Errorf("read FleetQuota %s: %w", key, err)
		}
		status := compute(live)
		if status == nil {
			return nil
		}
		err = q.WriteStatus(ctx, live, status)
		if !apierrors.IsConflict(err) {
			return err
		}
	}
}

// WriteStatus writes the status of exactly the given version of a quota.
func (q *Quotas) WriteStatus(ctx context.Context, of *v1alpha1.FleetQuota, status *v1alpha1.FleetQuotaStatus) error {
	next := of.DeepCopy()
	next.Status = *status
	next.ManagedFields = nil
	next.SetGroupVersionKind(v1alpha1.FleetQuotaResource.GroupVersion().WithKind("FleetQuota"))
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(next)
	if err != nil {
		return err
	}
	_, err = q.api.Namespace(of.Namespace).UpdateStatus(ctx, &unstructured.Unstructured{Object: fields}, metav1.UpdateOptions{FieldManager: QuotaManager})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("write the status of FleetQuota %s/%s: %w", of.Namespace, of.Name, err)
	}
	return nil
}
