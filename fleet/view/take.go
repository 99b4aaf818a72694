package view

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// takeCluster takes in a change of the Cluster.
func (v *Remote) takeCluster(c change) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if c.gone {
		v.self = nil
		return nil
	}
	if c.object == nil {
		return nil // its only one is never left out of what is listed
	}
	self := &v1alpha1.Cluster{}
	if err := json.Unmarshal(c.object, self); err != nil {
		return fmt.Errorf("read the Cluster of the view: %w", err)
	}
	v.self = self
	return nil
}

// takeNamespace takes in a change of a namespace.
func (v *Remote) takeNamespace(c change) error {
	v.mu.Lock()
	switch {
	case c.all != nil:
		maps.DeleteFunc(v.namespaces, func(name string, _ *BoundNamespace) bool { return !c.all[types.NamespacedName{Name: name}] })
	case c.gone:
		delete(v.namespaces, c.key.Name)
	default:
		ns := &BoundNamespace{}
		if err := json.Unmarshal(c.object, ns); err != nil || ns.Kind != boundNamespace {
			v.mu.Unlock()
			return errors.Join(fmt.Errorf("read namespace %s of the view", c.key.Name), err)
		}
		v.namespaces[c.key.Name] = ns
	}
	tell := slices.Collect(maps.Values(v.subscribers))
	v.mu.Unlock()
	if c.key.Name != "" {
		for _, notify := range tell {
			notify(types.NamespacedName{Namespace: c.key.Name})
		}
	}
	return nil
}

// takeLesson takes in a change of what is taught about kinds. All objects are looked at
// again: whichever they concern may be meant otherwise now.
func (v *Remote) takeLesson(c change) error {
	v.mu.Lock()
	before := len(v.lessons)
	switch {
	case c.all != nil:
		maps.DeleteFunc(v.lessons, func(name string, _ *v1alpha1.ResourceInterpretation) bool {
			return !c.all[types.NamespacedName{Name: name}]
		})
		if before == len(v.lessons) {
			v.mu.Unlock()
			return nil
		}
	case c.gone:
		delete(v.lessons, c.key.Name)
	default:
		in := &v1alpha1.ResourceInterpretation{}
		if err := json.Unmarshal(c.object, in); err != nil || in.Kind != lessonKind {
			v.mu.Unlock()
			return errors.Join(fmt.Errorf("read %s %s of the view", lessonKind, c.key.Name), err)
		}
		v.lessons[c.key.Name] = in
	}
	taught, _ := interpret.Lessons(slices.Collect(maps.Values(v.lessons)))
	v.knowledge = interpret.BuiltIn().Taught(taught...)
	keys, tell := slices.Collect(maps.Keys(v.bound)), slices.Collect(maps.Values(v.subscribers))
	v.mu.Unlock()
	for _, key := range keys {
		for _, notify := range tell {
			notify(key)
		}
	}
	return nil
}

// takeBound takes in a change of a binding.
func (v *Remote) takeBound(c change) error {
	v.mu.Lock()
	var keys []types.NamespacedName
	switch {
	case c.all != nil:
		for key := range v.bound {
			if !c.all[key] {
				delete(v.bound, key)
				keys = append(keys, key)
			}
		}
	case c.gone:
		delete(v.bound, c.key)
		keys = append(keys, c.key)
	default:
		o := &BoundObject{}
		if err := json.Unmarshal(c.object, o); err != nil || o.Kind != boundObjectKind {
			v.mu.Unlock()
			return errors.Join(fmt.Errorf("read binding %s of the view", c.key), err)
		}
		v.bound[c.key] = o
		keys = append(keys, c.key)
	}
	tell := slices.Collect(maps.Values(v.subscribers))
	v.mu.Unlock()
	for _, key := range keys {
		for _, notify := range tell {
			notify(key)
		}
	}
	return nil
}
