package scheduler

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// schedulerTenants reads the caches of a scheduler. It is for one decision.
type schedulerTenants struct {
	*scheduler
	classes map[string]*unstructured.Unstructured // those that were read, nil if they do not exist
}

func (s *schedulerTenants) class(name string) (*unstructured.Unstructured, bool) {
	class, read := s.classes[name]
	if !read {
		class, _ = s.Objects.Get(classKind(), types.NamespacedName{Name: name})
		if s.classes == nil {
			s.classes = map[string]*unstructured.Unstructured{}
		}
		s.classes[name] = class
	}
	return class, class != nil
}

// boundTo leaves out objects with a newer decision than the cached one: they may be leaving already.
func (s *schedulerTenants) boundTo(cluster string) []*v1alpha1.ResourceBinding {
	return s.assumed.latestOf(s.Bindings.On(cluster))
}

func (s *schedulerTenants) bindingOf(o object) *v1alpha1.ResourceBinding {
	b, bound := s.Bindings.Get(o.binding())
	if !bound || boundBy(b) != o {
		return nil
	}
	return b
}

func (s *schedulerTenants) placed(o object) (Placed, bool) {
	k, served := s.Kinds.Get(o.GroupKind)
	obj, exists := s.Objects.Get(o.GroupKind, o.NamespacedName)
	return Placed{Kind: k, Object: obj}, served && exists
}

func (s *schedulerTenants) preemptorsOf(o object) (out []*v1alpha1.ResourceBinding) {
	out = s.assumed.preempting(o)
	for _, by := range s.preemptions.preemptorsOf(o) {
		if b := s.bindingOf(by); b != nil {
			out = append(out, b)
		}
	}
	return out
}

func (s *schedulerTenants) priorityOf(obj *unstructured.Unstructured) priority {
	return priorityOf(obj, s.class)
}

func (s *schedulerTenants) lastPriorityOf(o object) int32 {
	return priorityOfClass(s.preemptions.classOf(o), s.class).value
}

func (s *schedulerTenants) budgets(namespace string) (out []*unstructured.Unstructured) {
	for obj := range s.Objects.All(budgetKind(), namespace) {
		out = append(out, obj)
	}
	return out
}

// stateTenants reads a State. In it, every victim of a preview has left its cluster.
type stateTenants struct {
	*State
	on         map[string][]*v1alpha1.ResourceBinding // by cluster
	preemptors map[object][]*v1alpha1.ResourceBinding // by victim
	objects    map[object]Placed
	after      map[object]*v1alpha1.ResourceBinding // by the preview
}

func newStateTenants(s *State) *stateTenants {
	t := &stateTenants{State: s, on: map[string][]*v1alpha1.ResourceBinding{}, preemptors: map[object][]*v1alpha1.ResourceBinding{}, objects: make(map[object]Placed, len(s.Placed)), after: map[object]*v1alpha1.ResourceBinding{}}
	for _, p := range s.Placed {
		t.objects[refOf(p.Kind.GroupKind(), p.Object)] = p
	}
	for _, b := range s.bindings {
		for _, c := range b.Spec.Clusters {
			t.on[c.Name] = append(t.on[c.Name], b)
		}
		t.preempting(b)
	}
	return t
}

// preempting adds the victims of a binding's object.
func (t *stateTenants) preempting(b *v1alpha1.ResourceBinding) {
	if b.Spec.Preemption == nil {
		return
	}
	seen := map[object]bool{}
	for i := range b.Spec.Preemption.Victims {
		if v := victimOf(&b.Spec.Preemption.Victims[i]); !seen[v] {
			seen[v] = true
			t.preemptors[v] = append(t.preemptors[v], b)
		}
	}
}

func (t *stateTenants) boundTo(cluster string) []*v1alpha1.ResourceBinding {
	if len(t.after) == 0 {
		return t.on[cluster]
	}
	var out []*v1alpha1.ResourceBinding
	for _, b := range t.after {
		if _, has := b.Share(cluster); has {
			out = append(out, b)
		}
	}
	return out
}

func (t *stateTenants) bindingOf(o object) *v1alpha1.ResourceBinding {
	if b, decided := t.after[o]; decided {
		return b
	}
	return t.bindings[KeyOf(o.GroupKind, o.Namespace, o.Name)]
}

func (t *stateTenants) placed(o object) (Placed, bool) {
	p, exists := t.objects[o]
	return p, exists
}

func (t *stateTenants) preemptorsOf(o object) []*v1alpha1.ResourceBinding { return t.preemptors[o] }

func (t *stateTenants) priorityOf(obj *unstructured.Unstructured) priority {
	return priorityOf(obj, func(name string) (*unstructured.Unstructured, bool) {
		class, exists := t.classes[name]
		return class, exists
	})
}

func (t *stateTenants) lastPriorityOf(o object) int32 {
	p, exists := t.objects[o]
	if !exists {
		return 0
	}
	return t.priorityOf(p.Object).value
}

func (t *stateTenants) budgets(namespace string) []*unstructured.Unstructured {
	return t.disruptionBudgets[namespace]
}
