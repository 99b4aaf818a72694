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

// handleCluster applies a change of the Cluster.
func (v *Remote) handleCluster(c change) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if c.removed {
		v.self = nil
		return nil
	}
	if c.object == nil {
		return nil // the only Cluster is in every list
	}
	self := &v1alpha1.Cluster{}
	if err := json.Unmarshal(c.object, self); err != nil {
		return fmt.Errorf("decode the Cluster of the view: %w", err)
	}
	v.self = self
	return nil
}

// handleNamespace applies a change of a namespace.
func (v *Remote) handleNamespace(c change) error {
	v.mu.Lock()
	switch {
	case c.listed != nil:
		maps.DeleteFunc(v.namespaces, func(name string, _ *BoundNamespace) bool { return !c.listed[types.NamespacedName{Name: name}] })
	case c.removed:
		delete(v.namespaces, c.key.Name)
	default:
		ns := &BoundNamespace{}
		if err := json.Unmarshal(c.object, ns); err != nil || ns.Kind != boundNamespace {
			v.mu.Unlock()
			return errors.Join(fmt.Errorf("decode namespace %s of the view", c.key.Name), err)
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

// handleInterpretation applies a change of a ResourceInterpretation. It notifies of all
// bindings: the interpretation of any of their objects may have changed.
func (v *Remote) handleInterpretation(c change) error {
	v.mu.Lock()
	before := len(v.interpretations)
	switch {
	case c.listed != nil:
		maps.DeleteFunc(v.interpretations, func(name string, _ *v1alpha1.ResourceInterpretation) bool {
			return !c.listed[types.NamespacedName{Name: name}]
		})
		if before == len(v.interpretations) {
			v.mu.Unlock()
			return nil
		}
	case c.removed:
		delete(v.interpretations, c.key.Name)
	default:
		in := &v1alpha1.ResourceInterpretation{}
		if err := json.Unmarshal(c.object, in); err != nil || in.Kind != interpretationKind {
			v.mu.Unlock()
			return errors.Join(fmt.Errorf("decode %s %s of the view", interpretationKind, c.key.Name), err)
		}
		v.interpretations[c.key.Name] = in
	}
	customizations, _ := interpret.Customizations(slices.Collect(maps.Values(v.interpretations)))
	v.knowledge = v.knowledge.WithCustomizations(customizations...)
	keys, tell := slices.Collect(maps.Keys(v.bound)), slices.Collect(maps.Values(v.subscribers))
	v.mu.Unlock()
	for _, key := range keys {
		for _, notify := range tell {
			notify(key)
		}
	}
	return nil
}

// handleBound applies a change of a binding.
func (v *Remote) handleBound(c change) error {
	v.mu.Lock()
	var keys []types.NamespacedName
	switch {
	case c.listed != nil:
		for key := range v.bound {
			if !c.listed[key] {
				delete(v.bound, key)
				keys = append(keys, key)
			}
		}
	case c.removed:
		delete(v.bound, c.key)
		keys = append(keys, c.key)
	default:
		o := &BoundObject{}
		if err := json.Unmarshal(c.object, o); err != nil || o.Kind != boundObjectKind {
			v.mu.Unlock()
			return errors.Join(fmt.Errorf("decode binding %s of the view", c.key), err)
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
