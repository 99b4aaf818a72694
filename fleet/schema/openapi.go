package schema

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// FromOpenAPI finds a type in the OpenAPI v3 document of its group and version. The document does
// not contain some names (singular, list kind, short names); the caller sets them from discovery.
//
// References are resolved in place. A recursive schema, or a constraint that no CRD can express,
// becomes a schema that accepts any content, and its path is added to Loose. Recursive schemas are
// kept in the definitions of the root, for UnknownPaths.
func FromOpenAPI(doc *spec3.OpenAPI, gvk schema.GroupVersionKind) (Type, error) {
	t := Type{Group: gvk.Group, Version: gvk.Version, Kind: gvk.Kind}
	if doc == nil || doc.Components == nil {
		return t, fmt.Errorf("read the OpenAPI document for %s: it has no schemas", gvk)
	}
	name := ""
	for _, candidate := range slices.Sorted(maps.Keys(doc.Components.Schemas)) {
		if slices.Contains(kindsIn(doc.Components.Schemas[candidate].Extensions), gvk) {
			name = candidate
			break
		}
	}
	if name == "" {
		return t, fmt.Errorf("read the OpenAPI document for %s: it has no schema for that kind", gvk)
	}
	r := &resolver{schemas: doc.Components.Schemas, native: strings.HasPrefix(name, "io.k8s.")}
	t.Schema = r.root(name)
	t.Loose = slices.Compact(slices.Sorted(slices.Values(r.loose)))
	served(&t, doc, gvk)
	return t, nil
}

// kindsIn reads x-kubernetes-group-version-kind: a list on a schema, a single entry on an
// operation.
func kindsIn(extensions spec.Extensions) []schema.GroupVersionKind {
	var found []schema.GroupVersionKind
	list, ok := extensions["x-kubernetes-group-version-kind"].([]any)
	if !ok {
		list = []any{extensions["x-kubernetes-group-version-kind"]}
	}
	for _, entry := range list {
		m, ok := entry.(map[string]any)
		if !ok {
			continue
		}
		group, _ := m["group"].(string)
		version, _ := m["version"].(string)
		kind, _ := m["kind"].(string)
		found = append(found, schema.GroupVersionKind{Group: group, Version: version, Kind: kind})
	}
	return found
}

// served reads from the paths of a document the plural name of a type, its scope, and its
// subresources.
func served(t *Type, doc *spec3.OpenAPI, gvk schema.GroupVersionKind) {
	if doc.Paths == nil {
		return
	}
	base := ""
	for path, item := range doc.Paths.Paths {
		if item.Get == nil || !slices.Contains(kindsIn(item.Get.Extensions), gvk) || !strings.HasSuffix(path, "/{name}") || strings.Contains(path, "/watch/") {
			continue
		}
		base = path
	}
	if base == "" {
		return
	}
	segments := strings.Split(base, "/")
	t.Plural = segments[len(segments)-2]
	t.Scope = apiextensionsv1.ClusterScoped
	if strings.Contains(base, "/namespaces/{namespace}/") {
		t.Scope = apiextensionsv1.NamespaceScoped
	}
	_, t.Status = doc.Paths.Paths[base+"/status"]
	if _, ok := doc.Paths.Paths[base+"/scale"]; ok {
		t.Scale = &apiextensionsv1.CustomResourceSubresourceScale{SpecReplicasPath: ".spec.replicas", StatusReplicasPath: ".status.replicas"}
	}
}

// A resolver converts the schemas of one document to structural ones.
type resolver struct {
	schemas map[string]*spec.Schema
	// native: the document is generated from Go types, as that of built-in kinds. Defaults that are
	// zero values, and empty objects, have no meaning there.
	native bool
	loose  []string
	// within are the references that lead to the current schema.
	within []string
	// again are the references that were found recursively.
	again map[string]bool
}

func (r *resolver) root(name string) *Props {
	r.within = []string{name}
	root := r.props("", r.schemas[name])
	root.Type = "object"
	// Every object has these; a CRD must not describe them in detail.
	if _, ok := root.Properties["metadata"]; ok {
		root.Properties["metadata"] = Props{Type: "object"}
	}
	root.Default = nil
	r.define(root)
	return root
}

// define adds the recursive schemas by name, so that UnknownPaths can follow them to any depth.
func (r *resolver) define(root *Props) {
	loose := r.loose // only paths from the root are reported
	for done := false; !done; {
		done = true
		for _, name := range slices.Sorted(maps.Keys(r.again)) {
			if _, ok := root.Definitions[name]; ok {
				continue
			}
			done = false
			if root.Definitions == nil {
				root.Definitions = apiextensionsv1.JSONSchemaDefinitions{}
			}
			r.within = []string{name}
			root.Definitions[name] = *r.props("", r.schemas[name])
		}
	}
	r.loose = loose
}

// reference returns the name of the schema that s references: directly, or by an allOf with one
// element, which documents use to add a description or a default.
func reference(s *spec.Schema) string {
	ref := s.Ref.String()
	if ref == "" && len(s.AllOf) == 1 {
		ref = s.AllOf[0].Ref.String()
	}
	_, name, _ := strings.Cut(ref, "#/components/schemas/")
	return name
}

func (r *resolver) any(path string, note bool) *Props {
	if note {
		r.loose = append(r.loose, path)
	}
	return anyProps()
}

func (r *resolver) props(path string, s *spec.Schema) *Props {
	if s == nil {
		return r.any(path, false)
	}
	if name := reference(s); name != "" {
		target, ok := r.schemas[name]
		if !ok {
			return r.any(path, true)
		}
		if slices.Contains(r.within, name) {
			return r.contained(path, name)
		}
		for _, form := range []string{"OrBool", "OrArray", "OrStringArray"} {
			// The document does not describe their contents.
			if of, ok := strings.CutSuffix(name, "JSONSchemaProps"+form); ok && r.schemas[of+"JSONSchemaProps"] != nil {
				return r.contained(path, of+"JSONSchemaProps")
			}
		}
		outer := r.within
		r.within = append(slices.Clip(r.within), name)
		defer func() { r.within = outer }()
		out := r.known(name)
		if out == nil {
			out = r.props(path, target)
			if r.native && out.Type == "object" && empty(&Props{Properties: out.Properties, AdditionalProperties: out.AdditionalProperties}) {
				out.XPreserveUnknownFields = nil // a Go type that has no fields yet
			}
		}
		out.Nullable = out.Nullable || s.Nullable
		out.Default = r.defaultOf(s)
		if s.Description != "" {
			out.Description = s.Description
		}
		return out
	}
	out := r.plain(path, s)
	r.structure(path, out, s)
	r.extensions(path, out, s)
	r.combinations(path, out, s)
	return out
}

// contained returns a schema for a recursive reference: it accepts anything, and has the name for
// UnknownPaths.
func (r *resolver) contained(path, name string) *Props {
	out := r.any(path, true)
	out.Ref = &name
	if r.again == nil {
		r.again = map[string]bool{}
	}
	r.again[name] = true
	return out
}

// known returns the Kubernetes types that have several forms in JSON.
func (r *resolver) known(name string) *Props {
	switch {
	case strings.HasSuffix(name, ".util.intstr.IntOrString"), strings.HasSuffix(name, ".api.resource.Quantity"):
		// A quantity may also be a number with a fraction. That is rare, and a narrower schema is
		// sound.
		return &Props{XIntOrString: true}
	case strings.HasSuffix(name, ".runtime.RawExtension"), strings.HasSuffix(name, ".meta.v1.FieldsV1"):
		out := anyProps()
		out.Type, out.Nullable = "object", false
		return out
	}
	return nil
}

// plain copies the keywords that mean the same in both formats.
func (r *resolver) plain(path string, s *spec.Schema) *Props {
	out := &Props{
		Description: s.Description, Format: s.Format, Nullable: s.Nullable, Pattern: s.Pattern, Required: slices.Clone(s.Required),
		Maximum: s.Maximum, ExclusiveMaximum: s.ExclusiveMaximum, Minimum: s.Minimum, ExclusiveMinimum: s.ExclusiveMinimum,
		MaxLength: s.MaxLength, MinLength: s.MinLength, MaxItems: s.MaxItems, MinItems: s.MinItems, MultipleOf: s.MultipleOf,
		MaxProperties: s.MaxProperties, MinProperties: s.MinProperties, Default: r.defaultOf(s),
	}
	if len(s.Type) == 1 {
		out.Type = s.Type[0]
	} else if len(s.Type) > 1 {
		r.loose = append(r.loose, path)
	}
	for _, v := range s.Enum {
		out.Enum = append(out.Enum, encoded(v))
	}
	if s.UniqueItems {
		r.loose = append(r.loose, path)
	}
	return out
}

func (r *resolver) structure(path string, out *Props, s *spec.Schema) {
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		sub := s.Properties[name]
		if out.Properties == nil {
			out.Properties = map[string]Props{}
		}
		out.Properties[name] = *r.props(path+"."+name, &sub)
	}
	if extra := s.AdditionalProperties; extra != nil && len(out.Properties) == 0 {
		out.AdditionalProperties = &apiextensionsv1.JSONSchemaPropsOrBool{Allows: extra.Allows}
		if extra.Schema != nil {
			out.AdditionalProperties.Allows = true
			out.AdditionalProperties.Schema = r.props(path+"[*]", extra.Schema)
		}
	}
	if s.Items != nil && s.Items.Schema != nil {
		out.Items = &apiextensionsv1.JSONSchemaPropsOrArray{Schema: r.props(path+"[*]", s.Items.Schema)}
	}
	yes := true
	switch {
	case out.Type == "" && (len(out.Properties) > 0 || out.AdditionalProperties != nil):
		out.Type = "object"
	case out.Type == "" && out.Items != nil:
		out.Type = "array"
	case out.Type == "array" && out.Items == nil:
		out.Items = &apiextensionsv1.JSONSchemaPropsOrArray{Schema: anyProps()}
	case out.Type == "" && out.Format != "int-or-string", r.native && out.Type == "object" && len(out.Properties) == 0 && out.AdditionalProperties == nil:
		out.XPreserveUnknownFields = &yes
		out.Nullable = out.Nullable || out.Type == ""
	}
}

// combinations copies the combinations that a structural schema may have.
func (r *resolver) combinations(path string, out *Props, s *spec.Schema) {
	if out.XIntOrString {
		out.Type, out.XPreserveUnknownFields = "", nil
		return // its types are expressed by a combination
	}
	copied := func(list []spec.Schema) []Props {
		var all []Props
		for i := range list {
			q := combinedProps(&list[i])
			if q == nil {
				r.loose = append(r.loose, path)
				return nil
			}
			all = append(all, *q)
		}
		return all
	}
	out.AllOf, out.AnyOf, out.OneOf = copied(s.AllOf), copied(s.AnyOf), copied(s.OneOf)
	if s.Not != nil {
		if out.Not = combinedProps(s.Not); out.Not == nil {
			r.loose = append(r.loose, path)
		}
	}
}

// combinedProps converts a schema inside a combination. It returns nil if a CRD cannot express it
// there.
func combinedProps(s *spec.Schema) *Props {
	r := &resolver{}
	if reference(s) != "" || len(s.Type) > 0 || s.AdditionalProperties != nil || s.Nullable || s.Default != nil {
		return nil
	}
	out := r.plain("", s)
	for name, sub := range s.Properties {
		q := combinedProps(&sub)
		if q == nil {
			return nil
		}
		if out.Properties == nil {
			out.Properties = map[string]Props{}
		}
		out.Properties[name] = *q
	}
	if s.Items != nil && s.Items.Schema != nil {
		q := combinedProps(s.Items.Schema)
		if q == nil {
			return nil
		}
		out.Items = &apiextensionsv1.JSONSchemaPropsOrArray{Schema: q}
	}
	r.combinations("", out, s)
	if len(r.loose) > 0 {
		return nil
	}
	return out
}
