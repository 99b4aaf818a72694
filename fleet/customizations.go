package fleet

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/client-go/tools/cache"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// OnInterpretation is OnCluster for ResourceInterpretations.
func (s *Session) OnInterpretation(f func(was, is *v1alpha1.ResourceInterpretation)) error {
	return AddHandler(s.types.interpretations, f)
}

// Interpretations returns all ResourceInterpretations from the cache, in no particular order.
func (s *Session) Interpretations() []*v1alpha1.ResourceInterpretation {
	return list[v1alpha1.ResourceInterpretation](s.types.interpretations.GetStore().List())
}

// Interpretation returns one ResourceInterpretation from the cache.
func (s *Session) Interpretation(name string) (*v1alpha1.ResourceInterpretation, bool) {
	return get[v1alpha1.ResourceInterpretation](s.types.interpretations, name)
}

// InterpretationError returns why a ResourceInterpretation is not in use, or nil if it is.
func (s *Session) InterpretationError(name string) error {
	_, wrong := customizations(s.types.interpretations)
	return wrong[name]
}

func customizations(i cache.SharedIndexInformer) ([]interpret.Customization, map[string]error) {
	return interpret.Customizations(list[v1alpha1.ResourceInterpretation](i.GetStore().List()))
}

// customizationsVersion identifies the current set of customizations.
func customizationsVersion(i cache.SharedIndexInformer) string {
	var all []string
	for _, r := range list[v1alpha1.ResourceInterpretation](i.GetStore().List()) {
		all = append(all, fmt.Sprintf("%s/%s/%d", r.UID, r.Name, r.Generation))
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// loadCustomizations applies the current customizations, and calls all kind handlers for each kind
// whose interpretation changed.
func (r *registry) loadCustomizations(i cache.SharedIndexInformer) {
	now := customizationsVersion(i)
	r.mu.Lock()
	if now == r.customizations {
		r.mu.Unlock()
		return
	}
	current, _ := customizations(i)
	concerned := r.customizedKinds
	r.customizations, r.customizedKinds = now, map[string]bool{}
	for _, l := range current {
		r.customizedKinds[l.Target.String()] = true
	}
	r.catalog = r.catalog.WithCustomizations(current...)
	var changed []interpret.KindInfo
	for gk, e := range r.served {
		if !concerned[gk.String()] && !r.customizedKinds[gk.String()] {
			continue
		}
		// Replace the entry instead of changing it: another goroutine may still hold the old one.
		next := *e
		next.KindInfo = r.interpreted(e.KindInfo)
		r.served[gk] = &next
		if r.opening[gk] == e {
			r.opening[gk] = &next
		}
		changed = append(changed, next.KindInfo)
	}
	told := slices.Clone(r.kindHandlers)
	r.mu.Unlock()
	for _, k := range changed {
		for _, tell := range told {
			tell(k)
		}
	}
}

// interpreted returns the current interpretation of a kind, in its served version. The caller holds
// mu.
func (r *registry) interpreted(k interpret.KindInfo) interpret.KindInfo {
	now, known := r.catalog.Find(k.GroupKind())
	if !known {
		return k
	}
	now.GroupVersionKind, now.Resource, now.ClusterScoped = k.GroupVersionKind, k.Resource, k.ClusterScoped
	return now
}
