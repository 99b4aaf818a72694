package fleet

import (
	"context"
	"fmt"
	"reflect"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

const (
	// customKindsTimeout is how long a new session waits for the caches of custom kinds. A type
	// whose objects cannot be read, because its conversion fails for example, must not stop the
	// controllers from handling the other kinds.
	customKindsTimeout = 10 * time.Second
	// typesDebounce is the pause between two evaluations of the types.
	typesDebounce = 100 * time.Millisecond
)

// startCustomKinds starts the custom kinds that exist now, and follows changes until ctx ends.
func (s *Session) startCustomKinds(ctx context.Context) error {
	s.syncKinds(ctx)
	wait, cancel := context.WithCancel(ctx)
	defer cancel()
	timer := s.Clock.NewTimer(customKindsTimeout)
	defer timer.Stop()
	s.running.Go(func() {
		select {
		case <-timer.C():
			cancel()
		case <-wait.Done():
		}
	})
	if !cache.WaitForCacheSync(wait.Done(), func() bool { return s.kinds.waitingFor() == "" }) && ctx.Err() == nil {
		s.Log.Warn("cannot read objects of some kinds; objects that they may need are not removed meanwhile", "kinds", s.kinds.waitingFor())
	}
	if ctx.Err() != nil {
		return fmt.Errorf("fleet: fill the caches: %w", context.Cause(ctx))
	}
	s.running.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-s.types.changed:
				s.syncKinds(ctx)
			}
			select {
			case <-ctx.Done():
				return
			case <-s.Clock.After(typesDebounce):
			}
		}
	})
	return nil
}

// syncKinds loads the customizations, starts the custom kinds that should be served, and stops
// those that should not.
func (s *Session) syncKinds(ctx context.Context) {
	s.kinds.loadCustomizations(s.types.interpretations)
	wanted, have := s.customKinds(), s.kinds.custom()
	for gk, e := range wanted {
		if was, ok := have[gk]; !ok || !sameEntry(was, e) {
			s.startKind(ctx, e)
		}
	}
	for gk := range have {
		if _, ok := wanted[gk]; !ok {
			s.Log.Info("kind is no longer served to the fleet", "kind", gk.String())
			s.kinds.close(gk)
		}
	}
}

func (s *Session) startKind(ctx context.Context, e entry) {
	ctx, informer, err := s.kinds.open(ctx, e)
	if err != nil {
		s.Log.Error("watching a kind failed", "kind", e.GroupKind().String(), "error", err)
		return
	}
	s.Log.Info("kind is served to the fleet", "kind", e.GroupKind().String(), "version", e.Version)
	s.running.Go(func() { informer.RunWithContext(ctx) })
	s.running.Go(func() {
		if cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
			s.kinds.markServed(informer)
		}
	})
}

func sameEntry(a, b entry) bool {
	return a.GroupVersionKind == b.GroupVersionKind && a.Resource == b.Resource && a.ClusterScoped == b.ClusterScoped &&
		a.status == b.status && a.inTable == b.inTable && reflect.DeepEqual(a.scale, b.scale)
}

// customKinds returns the custom kinds that should be served: those that clusters accept as this
// control plane defines them, and those that have bindings. The latter are served until the last
// binding is gone.
func (s *Session) customKinds() map[schema.GroupKind]entry {
	out := map[schema.GroupKind]entry{}
	for _, c := range list[customType](s.types.crds.GetStore().List()) {
		if !c.established() || c.ours() {
			continue
		}
		gk := c.kind()
		if e, ok := s.kinds.get(gk); ok && !e.custom {
			continue // the API server has it built in
		}
		agreed := func(version string) bool {
			return s.types.agreed(schema.GroupVersionResource{Group: gk.Group, Version: version, Resource: c.Spec.Names.Plural})
		}
		v, ok := c.version(agreed)
		if !ok && len(s.bindings.by(byKind, gk.String())) > 0 {
			v, ok = c.version(func(version string) bool { return s.boundIn(gk, version) })
			if !ok {
				v, ok = c.version(func(string) bool { return true })
			}
		}
		if ok {
			out[gk] = s.customKind(c, v)
		}
	}
	return out
}

func (s *Session) boundIn(gk schema.GroupKind, version string) bool {
	for _, b := range s.bindings.by(byKind, gk.String()) {
		if b.Spec.Resource.GroupVersionKind().Version == version {
			return true
		}
	}
	return false
}

func (s *Session) customKind(c *customType, v customVersion) entry {
	gk := c.kind()
	e := entry{custom: true, status: v.Subresources.Status != nil, scale: v.scale()}
	gvk := gk.WithVersion(v.Name)
	e.KindInfo, e.inTable = interpret.BuiltIn().Find(gk)
	if e.inTable {
		e.GroupVersionKind, e.Resource, e.ClusterScoped = gvk, c.Spec.Names.Plural, c.Spec.Scope == "Cluster"
	} else {
		e.KindInfo = interpret.Generic(gvk, c.Spec.Names.Plural, c.Spec.Scope == "Cluster", e.scale)
	}
	return e
}

// ClusterServes reports whether a cluster accepts objects of a kind in a version, and the reason if
// not. Every cluster has the kinds that are built into the API server.
func (s *Session) ClusterServes(cluster string, gvk schema.GroupVersionKind) (bool, string) {
	c, custom := s.types.defines(gvk.GroupKind())
	if !custom {
		return true, ""
	}
	name := v1alpha1.ImportName(gvk.GroupVersion().WithResource(c.Spec.Names.Plural), cluster)
	i, ok := get[v1alpha1.APIResourceImport](s.types.imports, name)
	if !ok {
		return false, s.notServed(cluster, gvk)
	}
	return ImportServes(i)
}

// ImportServes reports whether a cluster accepts objects of a type, going by the conditions of its
// import, and the reason if not.
func ImportServes(i *v1alpha1.APIResourceImport) (bool, string) {
	for _, need := range []string{v1alpha1.ImportAvailable, v1alpha1.ImportCompatible} {
		condition := conditionOf(i.Status.Conditions, need)
		if condition.Status == metav1.ConditionTrue {
			continue
		}
		why := condition.Message
		if why == "" {
			why = "not checked yet"
		}
		return false, fmt.Sprintf("type %s of the cluster is not %s: %s", i.Spec.GroupVersionKind().GroupKind(), need, why)
	}
	return true, ""
}

func (s *Session) notServed(cluster string, gvk schema.GroupVersionKind) string {
	items, err := s.types.imports.GetIndexer().ByIndex(byType, typeIn(gvk.GroupKind(), cluster))
	if err == nil {
		for _, i := range list[v1alpha1.APIResourceImport](items) {
			return fmt.Sprintf("the cluster serves %s in version %s, not in %s", gvk.GroupKind(), i.Spec.GroupVersion.Version, gvk.Version)
		}
	}
	return fmt.Sprintf("the cluster does not serve %s", gvk.GroupKind())
}

func conditionOf(conditions []metav1.Condition, kind string) metav1.Condition {
	for _, c := range conditions {
		if c.Type == kind {
			return c
		}
	}
	return metav1.Condition{Type: kind, Status: metav1.ConditionUnknown}
}

// OnClusterServes calls f when the result of ClusterServes may have changed for a cluster and kind.
func (s *Session) OnClusterServes(f func(cluster string, gk schema.GroupKind)) error {
	return AddHandler(s.types.imports, func(was, is *v1alpha1.APIResourceImport) {
		if was != nil && is != nil && verdict(was) == verdict(is) {
			return
		}
		i := is
		if i == nil {
			i = was
		}
		f(i.Spec.Location, i.Spec.GroupVersionKind().GroupKind())
	})
}

// verdict returns the conditions that ClusterServes depends on.
func verdict(i *v1alpha1.APIResourceImport) [2]metav1.ConditionStatus {
	return [2]metav1.ConditionStatus{conditionOf(i.Status.Conditions, v1alpha1.ImportAvailable).Status,
		conditionOf(i.Status.Conditions, v1alpha1.ImportCompatible).Status}
}
