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
func (t *Term) OnInterpretation(f func(was, is *v1alpha1.ResourceInterpretation)) error {
	return On(t.types.interpretations, f)
}

// Interpretations returns all ResourceInterpretations from the cache, in no particular order.
func (t *Term) Interpretations() []*v1alpha1.ResourceInterpretation {
	return list[v1alpha1.ResourceInterpretation](t.types.interpretations.GetStore().List())
}

// Interpretation returns one ResourceInterpretation from the cache.
func (t *Term) Interpretation(name string) (*v1alpha1.ResourceInterpretation, bool) {
	return get[v1alpha1.ResourceInterpretation](t.types.interpretations, name)
}

// InterpretationError returns why a ResourceInterpretation is not in use, or nil if it is.
func (t *Term) Misunderstood(name string) error {
	_, wrong := lessons(t.types.interpretations)
	return wrong[name]
}

func lessons(i cache.SharedIndexInformer) ([]interpret.Lesson, map[string]error) {
	return interpret.Lessons(list[v1alpha1.ResourceInterpretation](i.GetStore().List()))
}

// customizationsVersion identifies the current set of customizations.
func taught(i cache.SharedIndexInformer) string {
	var all []string
	for _, r := range list[v1alpha1.ResourceInterpretation](i.GetStore().List()) {
		all = append(all, fmt.Sprintf("%s/%s/%d", r.UID, r.Name, r.Generation))
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// loadCustomizations applies the current customizations, and calls all kind handlers for each kind
// whose interpretation changed.
func (r *registry) learn(i cache.SharedIndexInformer) {
	now := taught(i)
	r.mu.Lock()
	if now == r.taught {
		r.mu.Unlock()
		return
	}
	lessons, _ := lessons(i)
	concerned := r.lessons
	r.taught, r.lessons = now, map[string]bool{}
	for _, l := range lessons {
		r.lessons[l.Target.String()] = true
	}
	r.knowledge = r.knowledge.Taught(lessons...)
	var changed []interpret.Kind
	for gk, e := range r.served {
		if !concerned[gk.String()] && !r.lessons[gk.String()] {
			continue
		}
		// Replace the entry instead of changing it: another goroutine may still hold the old one.
		next := *e
		next.Kind = r.understood(e.Kind)
		r.served[gk] = &next
		if r.opening[gk] == e {
			r.opening[gk] = &next
		}
		changed = append(changed, next.Kind)
	}
	told := slices.Clone(r.told)
	r.mu.Unlock()
	for _, k := range changed {
		for _, tell := range told {
			tell(k)
		}
	}
}

// interpreted returns the current interpretation of a kind, in its served version. The caller holds
// mu.
func (r *registry) understood(k interpret.Kind) interpret.Kind {
	now, known := r.knowledge.Find(k.GroupKind())
	if !known {
		return k
	}
	now.GroupVersionKind, now.Resource, now.ClusterScoped = k.GroupVersionKind, k.Resource, k.ClusterScoped
	return now
}
