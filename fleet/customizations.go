package fleet

import (
	"fmt"
	"slices"
	"strings"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// CustomizationError returns why a ResourceInterpretation is not in use, or nil if it is.
func (r *Kinds) CustomizationError(name string) error {
	_, wrong := interpret.Customizations(r.interpretations.All())
	return wrong[name]
}

// customizationsVersion identifies the current set of customizations.
func customizationsVersion(interpretations []*v1alpha1.ResourceInterpretation) string {
	var all []string
	for _, r := range interpretations {
		all = append(all, fmt.Sprintf("%s/%s/%d", r.UID, r.Name, r.Generation))
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// loadCustomizations applies the current customizations, and calls all kind handlers for each kind
// whose interpretation changed.
func (r *Kinds) loadCustomizations() {
	all := r.interpretations.All()
	now := customizationsVersion(all)
	r.mu.Lock()
	if now == r.customizations {
		r.mu.Unlock()
		return
	}
	current, _ := interpret.Customizations(all)
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
func (r *Kinds) interpreted(k interpret.KindInfo) interpret.KindInfo {
	now, known := r.catalog.Find(k.GroupKind())
	if !known {
		return k
	}
	now.GroupVersionKind, now.Resource, now.ClusterScoped = k.GroupVersionKind, k.Resource, k.ClusterScoped
	return now
}
