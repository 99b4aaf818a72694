// Package grants decides which objects of another namespace a spec may refer to. The owner of that
// namespace grants it with ReferenceGrants, as in Gateway API.
//
// It is pure: the grants come as arguments.
package grants

import (
	"fmt"
	"slices"
	"strings"
)

// The group, version and kind of a ReferenceGrant, and its resource.
const (
	Group    = "gateway.networking.k8s.io"
	Version  = "v1beta1"
	Kind     = "ReferenceGrant"
	Resource = "referencegrants"
)

// Spec is the spec of a ReferenceGrant: any object that one entry of From describes may refer to any
// object of the grant's namespace that one entry of To describes.
type Spec struct {
	From []From `json:"from"`
	To   []To   `json:"to"`
}

// From is a kind of objects in a namespace that may refer to others.
type From struct {
	// Group is empty for Kubernetes' core group.
	Group     string `json:"group"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
}

// To describes the objects that may be referred to: all of a kind, or one of them.
type To struct {
	Group string `json:"group"`
	Kind  string `json:"kind"`
	// Name is empty for all objects of the kind.
	Name string `json:"name,omitempty"`
}

// Access is what a reference to an object of another namespace may take.
type Access int

const (
	// None: the object may not be referred to.
	None Access = iota
	// Public: all values except sensitive ones.
	Public
	// All: sensitive values too. Only a grant that names the object gives it, because a grant for all
	// objects of a kind also covers those that are created later.
	All
)

// Decide returns what from may take of an object, by all grants of the object's namespace. to has the
// object's name.
func Decide(all []Spec, from From, to To) Access {
	access := None
	for _, grant := range all {
		if !slices.Contains(grant.From, from) {
			continue
		}
		for _, one := range grant.To {
			switch {
			case one.Group != to.Group || one.Kind != to.Kind:
			case one.Name == "":
				access = max(access, Public)
			case one.Name == to.Name:
				return All
			}
		}
	}
	return access
}

// Refusal returns why from may not refer to an object of a namespace, and which grant would allow it.
// The text is the same whether or not the object exists.
func Refusal(from From, namespace string, to To) string {
	return fmt.Sprintf("namespace %s does not grant %s of namespace %s a reference to %s %s: %s",
		namespace, kindName(from.Group, from.Kind), from.Namespace, kindName(to.Group, to.Kind), to.Name, remedy(from, namespace, to))
}

// SensitiveRefusal returns why from may not take a sensitive value of an object that it may refer to.
func SensitiveRefusal(from From, namespace string, to To) string {
	return fmt.Sprintf("the value is sensitive, and no grant of namespace %s names %s %s: %s", namespace, kindName(to.Group, to.Kind), to.Name, remedy(from, namespace, to))
}

func remedy(from From, namespace string, to To) string {
	return fmt.Sprintf("create a %s (%s/%s) in namespace %s with spec {from: [{group: %s, kind: %s, namespace: %s}], to: [{group: %s, kind: %s, name: %s}]}",
		Kind, Group, Version, namespace, quoted(from.Group), from.Kind, from.Namespace, quoted(to.Group), to.Kind, to.Name)
}

// quoted returns a group as YAML.
func quoted(group string) string {
	if group == "" {
		return `""`
	}
	return group
}

func kindName(group, kind string) string { return strings.TrimSuffix(kind+"."+group, ".") }
