package reference

import (
	"strings"

	"github.com/zclconf/go-cty/cty"
)

// Kind is what sort of thing a reference is to.
type Kind uint8

const (
	// Resource is an object of a provider's resource type.
	Resource Kind = iota
	// Data is an object of a provider's data source.
	Data
	// Kubernetes is any other object of the API.
	Kubernetes
)

// Ref names the object that is referred to. It is comparable, so that it can be
// the key of a map.
type Ref struct {
	Kind Kind
	// Group is `group/version` of a Kubernetes object, as written; empty if left out,
	// and always empty for a provider's types.
	Group string
	// Type is the provider's own name of the type, or a Kubernetes object's kind.
	Type string
	// Namespace is never left out: what is written without one is in the namespace of the
	// object that it is written in. It means nothing if the kind turns out to have none.
	Namespace string
	Name      string
}

// String is the reference as it would be written, with its namespace.
func (r Ref) String() string {
	return `namespace["` + r.Namespace + `"].` + r.local()
}

// local is the reference as it would be written in the object's own namespace.
func (r Ref) local() string {
	switch {
	case r.Kind == Data:
		return `data.` + r.Type + `["` + r.Name + `"]`
	case r.Kind == Kubernetes && r.Group != "":
		return `k8s["` + r.Group + `"].` + r.Type + `["` + r.Name + `"]`
	case r.Kind == Kubernetes:
		return `k8s.` + r.Type + `["` + r.Name + `"]`
	}
	return r.Type + `["` + r.Name + `"]`
}

// Reference is one use of an object: the object, and which part of it, as far as the
// text tells. Path is empty if all of the object is used, or nobody can say.
type Reference struct {
	Ref
	// Path is shared by many: nobody changes it. What is read with a dot is an attribute in it,
	// though the value may turn out to be a map.
	Path cty.Path
}

// String is the reference as it would be written, with its namespace and path.
func (r Reference) String() string { return r.Ref.String() + pathText(r.Path) }

// pathText is a path as it is written after a name.
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
