package imports

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kjson "k8s.io/apimachinery/pkg/util/json"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/schema"
)

// typeOf converts the spec of an APIResourceImport or a NegotiatedAPIResource to a type. The
// schema is passed separately as JSON, because cached objects do not contain it.
func typeOf(spec *v1alpha1.CommonAPIResourceSpec, data []byte) (*schema.Type, error) {
	var props *apiextensionsv1.JSONSchemaProps
	if string(data) != noSchema {
		props = &apiextensionsv1.JSONSchemaProps{}
		if err := json.Unmarshal(data, props); err != nil {
			return nil, fmt.Errorf("read the schema: %w", err)
		}
	}
	out := &schema.Type{
		Group: spec.GroupVersion.Group, Version: spec.GroupVersion.Version,
		Kind: spec.Kind, ListKind: spec.ListKind, Plural: spec.Plural, Singular: spec.Singular,
		ShortNames: spec.ShortNames, Categories: spec.Categories,
		Scope: apiextensionsv1.ResourceScope(spec.Scope), Schema: props, Loose: spec.Loose,
	}
	for _, s := range spec.SubResources {
		switch s.Name {
		case v1alpha1.SubResourceStatus:
			out.Status = true
		case v1alpha1.SubResourceScale:
			out.Scale = &apiextensionsv1.CustomResourceSubresourceScale{
				SpecReplicasPath: s.SpecReplicasPath, StatusReplicasPath: s.StatusReplicasPath, LabelSelectorPath: s.LabelSelectorPath}
		}
	}
	for _, c := range spec.ColumnDefinitions {
		out.Columns = append(out.Columns, apiextensionsv1.CustomResourceColumnDefinition{
			Name: c.Name, Type: c.Type, Format: c.Format, Description: c.Description, Priority: c.Priority, JSONPath: c.JSONPath})
	}
	return out, nil
}

// specOf converts a type to its API representation, including the schema.
func specOf(t *schema.Type) (v1alpha1.CommonAPIResourceSpec, error) {
	data, err := canonical(t.Schema)
	if err != nil {
		return v1alpha1.CommonAPIResourceSpec{}, fmt.Errorf("encode the schema of %s.%s: %w", t.Plural, t.Group, err)
	}
	out := v1alpha1.CommonAPIResourceSpec{
		GroupVersion: v1alpha1.GroupVersion{Group: t.Group, Version: t.Version},
		Scope:        string(t.Scope),
		TypeNames: v1alpha1.TypeNames{Kind: t.Kind, ListKind: t.ListKind, Plural: t.Plural, Singular: t.Singular,
			ShortNames: t.ShortNames, Categories: t.Categories},
		OpenAPIV3Schema: runtime.RawExtension{Raw: data},
		Loose:           t.Loose[:min(len(t.Loose), maxLoose)],
	}
	if t.Status {
		out.SubResources = append(out.SubResources, v1alpha1.SubResource{Name: v1alpha1.SubResourceStatus})
	}
	if s := t.Scale; s != nil {
		out.SubResources = append(out.SubResources, v1alpha1.SubResource{Name: v1alpha1.SubResourceScale,
			SpecReplicasPath: s.SpecReplicasPath, StatusReplicasPath: s.StatusReplicasPath, LabelSelectorPath: s.LabelSelectorPath})
	}
	named := map[string]bool{}
	for _, c := range t.Columns {
		if named[c.Name] {
			continue // a CRD may repeat a name; here names are keys
		}
		named[c.Name] = true
		out.ColumnDefinitions = append(out.ColumnDefinitions, v1alpha1.ColumnDefinition{
			Name: c.Name, Type: c.Type, Format: c.Format, Description: c.Description, Priority: c.Priority, JSONPath: c.JSONPath})
	}
	return out, nil
}

// maxLoose limits the number of loose places in the spec: one is enough to know that there are
// any.
const maxLoose = 20

// noSchema represents the schema of a cluster that publishes none.
const noSchema = "{}"

// canonical returns the JSON of a schema as the API server stores it, so that an unchanged
// schema compares equal.
func canonical(props *apiextensionsv1.JSONSchemaProps) ([]byte, error) {
	if props == nil {
		return []byte(noSchema), nil
	}
	data, err := json.Marshal(props)
	if err != nil {
		return nil, err
	}
	var content any
	if err := kjson.Unmarshal(data, &content); err != nil {
		return nil, err
	}
	return json.Marshal(content)
}

// fromCRD returns the versions that a cluster serves by a CRD.
func fromCRD(crd *apiextensionsv1.CustomResourceDefinition) (out []servedType, err error) {
	for _, t := range schema.FromCRD(crd) {
		s, err := newServed(&t, v1alpha1.FromCRD)
		if err != nil {
			return nil, err
		}
		s.approved = crd.Annotations[apiextensionsv1.KubeAPIApprovedAnnotation]
		out = append(out, s)
	}
	return out, nil
}

// servedType is one version of a type as read from a cluster.
type servedType struct {
	spec   v1alpha1.CommonAPIResourceSpec
	source v1alpha1.SchemaSource
	// approved is the CRD's approval annotation, for groups of the Kubernetes community.
	approved string
	digest   string
}

func newServed(t *schema.Type, source v1alpha1.SchemaSource) (servedType, error) {
	spec, err := specOf(t)
	if err != nil {
		return servedType{}, err
	}
	digest, err := digestOf(&spec, spec.OpenAPIV3Schema.Raw)
	return servedType{spec: spec, source: source, digest: digest}, err
}

// digestOf returns a digest of one version of a type. The schema is passed separately, because
// cached specs do not contain it.
func digestOf(spec *v1alpha1.CommonAPIResourceSpec, schemaJSON []byte) (string, error) {
	rest := *spec
	rest.OpenAPIV3Schema = runtime.RawExtension{}
	data, err := json.Marshal(rest)
	if err != nil {
		return "", fmt.Errorf("digest the type %s: %w", spec.Plural, err)
	}
	sum := sha256.Sum256(bytes.Join([][]byte{data, schemaJSON}, []byte{0}))
	return hex.EncodeToString(sum[:16]), nil
}
