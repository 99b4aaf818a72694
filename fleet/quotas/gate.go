// Package quotas enforces FleetQuotas. A Gate on each server refuses writes that exceed a quota, and
// the counter on the leader counts the use. Package fleet/quota decides; its DESIGN.md explains
// how the two agree.
package quotas

import (
	"context"
	"errors"
	"maps"
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/quota"
)

// Gate refuses writes that exceed a FleetQuota. Each server has one.
type Gate struct {
	dyn             dynamic.Interface
	quotas          *fleet.Quotas
	interpretations controllers.Cache[v1alpha1.ResourceInterpretation]
}

// NewGate returns a gate. Until Run has filled its caches, it reads the quotas for each write.
func NewGate(dyn dynamic.Interface, clock clock.PassiveClock) *Gate {
	return &Gate{dyn: dyn, quotas: fleet.NewQuotas(dyn, clock),
		interpretations: controllers.NewCache[v1alpha1.ResourceInterpretation](dyn, v1alpha1.ResourceInterpretationResource, controllers.CacheOptions{})}
}

// Run keeps the gate's caches up to date until ctx ends.
func (g *Gate) Run(ctx context.Context) error {
	var running sync.WaitGroup
	for _, i := range []cache.SharedIndexInformer{g.quotas.Informer, g.interpretations.Informer} {
		running.Go(func() { i.RunWithContext(ctx) })
	}
	running.Wait()
	return nil
}

// Write is a request to write one object.
type Write struct {
	Kind            schema.GroupVersionKind
	Resource        string
	Namespace, Name string
	// Old is nil on create. If only the replicas change, Object is nil, and the kind may have no name.
	Old, Object *unstructured.Unstructured
	Replicas    int32
	DryRun      bool
}

// Concerns reports whether writes of a kind in a namespace may have to be checked.
func (g *Gate) Concerns(kind schema.GroupKind, namespace string) bool {
	return namespace != "" && kind.Kind != "Namespace" && kind.Group != v1alpha1.Group && (!g.quotas.Informer.HasSynced() || len(g.quotas.In(namespace)) > 0)
}

// Check returns an error if the write exceeds a quota.
func (g *Gate) Check(ctx context.Context, w Write) error {
	if w.Old != nil && w.Object != nil && maps.Equal(w.Old.GetLabels(), w.Object.GetLabels()) &&
		equality.Semantic.DeepEqual(w.Old.Object["spec"], w.Object.Object["spec"]) {
		return nil
	}
	if k, known := interpret.BuiltIn().Find(w.Kind.GroupKind()); known && w.Object != nil && w.Kind.GroupKind() != interpret.AutoscalerKind() {
		if pods, _ := k.Pods(w.Object); len(pods) == 0 {
			return nil
		}
	}
	limits, err := g.quotasIn(ctx, w.Namespace)
	if err != nil || len(limits) == 0 {
		return err
	}
	object, by, err := g.changeOf(ctx, w)
	if err != nil || object == nil {
		return err
	}
	var changes []fleet.QuotaChange
	for _, q := range limits {
		c, err := object.under(q)
		if err != nil {
			return err
		}
		c.By = by
		changes = append(changes, fleet.QuotaChange{Quota: q, Change: c})
	}
	err = g.quotas.Admit(ctx, changes, w.DryRun)
	if errors.Is(err, quota.ErrExceeded) {
		return refusal{err}
	}
	return err
}

// ErrRefused is the error of a write that must be changed before it can succeed. Other errors may pass.
var ErrRefused = errors.New("refused by a FleetQuota")

// refusal is an ErrRefused with the text of its cause.
type refusal struct{ error }

func (refusal) Is(target error) bool { return target == ErrRefused }

func (r refusal) Unwrap() error { return r.error }
