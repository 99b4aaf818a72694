package schema

import (
	"encoding/json"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// extensions converts the x-kubernetes-* extensions of CRDs and of Go types.
func (r *resolver) extensions(path string, out *Props, s *spec.Schema) {
	flag := func(name string) bool { b, _ := s.Extensions["x-kubernetes-"+name].(bool); return b }
	text := func(name string) string { t, _ := s.Extensions["x-kubernetes-"+name].(string); return t }
	out.XIntOrString = flag("int-or-string") || s.Format == "int-or-string"
	out.XEmbeddedResource = flag("embedded-resource")
	if flag("preserve-unknown-fields") {
		yes := true
		out.XPreserveUnknownFields = &yes
	}
	if kind := text("map-type"); kind != "" {
		out.XMapType = &kind
	}
	if rules, ok := s.Extensions["x-kubernetes-validations"]; ok && !reread(rules, &out.XValidations) {
		r.loose = append(r.loose, path)
	}
	var keys []string
	if !reread(s.Extensions["x-kubernetes-list-map-keys"], &keys) {
		keys = nil
	}
	kind := text("list-type")
	if kind == "" && slices.Contains(strings.Split(text("patch-strategy"), ","), "merge") {
		if key := text("patch-merge-key"); key != "" {
			kind, keys = "map", []string{key}
		} else if out.Items != nil && flat(out.Items.Schema) {
			kind = "set"
		}
	}
	r.listType(out, s, kind, keys)
}

// listType sets how a list is merged, if a CRD allows it: the keys of a map must be required or
// have a default. A default that is a zero value counts here.
func (r *resolver) listType(out *Props, s *spec.Schema, kind string, keys []string) {
	if kind == "" || out.Type != "array" || out.Items == nil {
		return
	}
	if kind == "map" {
		items := out.Items.Schema
		for _, key := range keys {
			k, ok := items.Properties[key]
			if !ok {
				return
			}
			if raw := r.rawDefault(s.Items.Schema, key); k.Default == nil && raw != nil && !slices.Contains(items.Required, key) {
				k.Default = raw
				items.Properties[key] = k
			}
			if k.Default == nil && !slices.Contains(items.Required, key) {
				return
			}
		}
		out.XListMapKeys = keys
	}
	out.XListType = &kind
}

// rawDefault returns the default of a property as in the document.
func (r *resolver) rawDefault(s *spec.Schema, property string) *jsonValue {
	if name := reference(s); name != "" && r.schemas[name] != nil {
		s = r.schemas[name]
	}
	if p, ok := s.Properties[property]; ok && p.Default != nil {
		v := encoded(p.Default)
		return &v
	}
	return nil
}

// defaultOf: a document that is generated from Go types has the zero value as the default of every
// non-pointer field.
func (r *resolver) defaultOf(s *spec.Schema) *jsonValue {
	v := encoded(s.Default)
	zero := slices.Contains([]string{"{}", `""`, "0", "false", "[]"}, string(v.Raw))
	if s.Default == nil || r.native && zero {
		return nil
	}
	return &v
}

func encoded(v any) jsonValue {
	raw, err := json.Marshal(v)
	if err != nil {
		return jsonValue{Raw: []byte("null")}
	}
	return apiextensionsv1.JSON{Raw: raw}
}

// reread decodes an untyped value into a typed one.
func reread(from, into any) bool {
	raw, err := json.Marshal(from)
	return err == nil && json.Unmarshal(raw, into) == nil
}
