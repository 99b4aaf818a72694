package expr

import (
	"cmp"
	"strings"

	"github.com/zclconf/go-cty/cty"
)

// RefKind is the kind of object that a reference names.
type RefKind uint8

const (
	// Resource is an object of a provider's resource type.
	Resource RefKind = iota
	// Data is an object of a provider's data source.
	Data
	// Kubernetes is any other object of the API.
	Kubernetes
)

// Ref names the referenced object. It is comparable, so it can be a map key.
type Ref struct {
	Kind RefKind
	// APIVersion is the `group/version` of a Kubernetes object as written. It is empty if it was
	// left out, and always empty for a provider's types.
	APIVersion string
	// Type is the provider's name of the type, or the kind of a Kubernetes object.
	Type string
	// Namespace is always set. By default it is the namespace of the object that contains the
	// reference. It has no meaning if the kind turns out to be cluster-scoped.
	Namespace string
	Name      string
}

// String formats the reference with its namespace.
func (r Ref) String() string {
	return `namespace["` + r.Namespace + `"].` + r.local()
}

// Compare orders references as addresses in a plan are ordered: by namespace, type and name.
func (r Ref) Compare(other Ref) int {
	return cmp.Or(
		cmp.Compare(r.Namespace, other.Namespace), cmp.Compare(r.Type, other.Type), cmp.Compare(r.Name, other.Name),
		cmp.Compare(r.Kind, other.Kind), cmp.Compare(r.APIVersion, other.APIVersion),
	)
}

// local formats the reference for use in the object's own namespace.
func (r Ref) local() string {
	switch {
	case r.Kind == Data:
		return `data.` + r.Type + `["` + r.Name + `"]`
	case r.Kind == Kubernetes && r.APIVersion != "":
		return `k8s["` + r.APIVersion + `"].` + r.Type + `["` + r.Name + `"]`
	case r.Kind == Kubernetes:
		return `k8s.` + r.Type + `["` + r.Name + `"]`
	}
	return r.Type + `["` + r.Name + `"]`
}

// Reference is one use of an object: the object, and the part that is used, as far as the text
// shows it. Path is empty if the whole object is used or the part depends on values.
type Reference struct {
	Ref
	// Path is shared and must not be changed. A step written with a dot is an attribute in it, even
	// if the value turns out to be a map.
	Path cty.Path
}

// String formats the reference with its namespace and path.
func (r Reference) String() string { return r.Ref.String() + pathText(r.Path) }

// pathText formats a path for use after a name.
func pathText(path cty.Path) string {
	var out strings.Builder
	for _, step := range path {
		switch s := step.(type) {
		case cty.GetAttrStep:
			out.WriteString("." + s.Name)
		case cty.IndexStep:
			if s.Key.Type() == cty.String {
				out.WriteString(`["` + s.Key.AsString() + `"]`)
			} else {
				out.WriteString("[" + s.Key.AsBigFloat().Text('f', -1) + "]")
			}
		}
	}
	return out.String()
}
