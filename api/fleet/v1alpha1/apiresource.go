package v1alpha1

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
)

// CommonAPIResourceSpec is one version of a type. APIResourceImport and NegotiatedAPIResource share
// these fields. Their names are kcp's.
type CommonAPIResourceSpec struct {
	GroupVersion GroupVersion `json:"groupVersion"`
	// Scope is Namespaced or Cluster.
	// +kubebuilder:validation:Enum=Namespaced;Cluster
	Scope string `json:"scope"`

	TypeNames `json:",inline"`

	// OpenAPIV3Schema is a structural schema, as in a CustomResourceDefinition.
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Type=object
	// +structType=atomic
	OpenAPIV3Schema runtime.RawExtension `json:"openAPIV3Schema"`
	// Loose lists the places where the schema accepts more than the cluster does, because no
	// structural schema can express the constraint of the OpenAPI document. Such a type is
	// compatible with nothing.
	// +optional
	// +listType=atomic
	Loose []string `json:"loose,omitempty"`
	// SubResources are status and scale, if the type has them.
	// +optional
	// +listType=map
	// +listMapKey=name
	SubResources []SubResource `json:"subResources,omitempty"`
	// ColumnDefinitions are the columns that kubectl get prints beside the name.
	// +optional
	// +listType=map
	// +listMapKey=name
	ColumnDefinitions []ColumnDefinition `json:"columnDefinitions,omitempty"`
}

// GroupVersion is an API group (empty for the core group) and a version.
type GroupVersion struct {
	// +optional
	Group   string `json:"group,omitempty"`
	Version string `json:"version"`
}

// TypeNames are the names of a type.
type TypeNames struct {
	Plural string `json:"plural"`
	// +optional
	Singular string `json:"singular,omitempty"`
	// +optional
	// +listType=atomic
	ShortNames []string `json:"shortNames,omitempty"`
	Kind       string   `json:"kind"`
	// +optional
	ListKind string `json:"listKind,omitempty"`
	// +optional
	// +listType=atomic
	Categories []string `json:"categories,omitempty"`
}

// SubResource is a part of an object with its own endpoint.
type SubResource struct {
	// Name is status or scale.
	// +kubebuilder:validation:Enum=status;scale
	Name string `json:"name"`
	// SpecReplicasPath, StatusReplicasPath and LabelSelectorPath are the fields of subresource
	// scale, as in a CustomResourceDefinition.
	// +optional
	SpecReplicasPath string `json:"specReplicasPath,omitempty"`
	// +optional
	StatusReplicasPath string `json:"statusReplicasPath,omitempty"`
	// +optional
	LabelSelectorPath *string `json:"labelSelectorPath,omitempty"`
}

// The names of subresources.
const (
	SubResourceStatus = "status"
	SubResourceScale  = "scale"
)

// ColumnDefinition is a column that kubectl get prints.
type ColumnDefinition struct {
	Name string `json:"name"`
	Type string `json:"type"`
	// +optional
	Format string `json:"format,omitempty"`
	// +optional
	Description string `json:"description,omitempty"`
	// +optional
	Priority int32  `json:"priority,omitempty"`
	JSONPath string `json:"jsonPath"`
}

// Resource returns the resource of the type.
func (s *CommonAPIResourceSpec) Resource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: s.GroupVersion.Group, Version: s.GroupVersion.Version, Resource: s.Plural}
}

// GroupVersionKind returns the kind of the type's objects.
func (s *CommonAPIResourceSpec) GroupVersionKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: s.GroupVersion.Group, Version: s.GroupVersion.Version, Kind: s.Kind}
}

// SchemaUpdateStrategy is how far an import may change the negotiated type.
// +kubebuilder:validation:Enum=UpdateNever;UpdateUnpublished;UpdatePublished
type SchemaUpdateStrategy string

// The values of SchemaUpdateStrategy; they are kcp's.
const (
	// UpdateNever: the import is checked, and does not narrow the negotiated type.
	UpdateNever SchemaUpdateStrategy = "UpdateNever"
	// UpdateUnpublished (the default): the import narrows the negotiated type until that is
	// published.
	UpdateUnpublished SchemaUpdateStrategy = "UpdateUnpublished"
	// UpdatePublished: the import also narrows a published type. Existing objects may then have
	// values that are no longer valid.
	UpdatePublished SchemaUpdateStrategy = "UpdatePublished"
)

// Allows reports whether an import with this strategy may narrow the negotiated type.
func (s SchemaUpdateStrategy) Allows(published bool) bool {
	switch s {
	case UpdateNever:
		return false
	case UpdatePublished:
		return true
	}
	return !published
}

// ImportName returns the name of the APIResourceImport of a type in a cluster:
// widgets.east.v1.example.com, and pods.east.v1.core for the core group. If that is not a valid or
// unambiguous name, it returns one with a hash of the parts.
func ImportName(resource schema.GroupVersionResource, cluster string) string {
	return typeName(resource.Resource, cluster, resource.Version, groupName(resource.Group))
}

// NegotiatedName returns the name of the NegotiatedAPIResource of a type: widgets.v1.example.com,
// and pods.v1.core for the core group.
func NegotiatedName(resource schema.GroupVersionResource) string {
	return typeName(resource.Resource, resource.Version, groupName(resource.Group))
}

func groupName(group string) string {
	if group == "" {
		return CoreGroup
	}
	return group
}

// CoreGroup is the name of the core group where a name must not be empty.
const CoreGroup = "core"

// typeName joins the parts. Only the group may contain a dot, or two types could share a name. A
// Cluster's name may contain one, and then the hash makes the name unique.
func typeName(parts ...string) string {
	name := strings.Join(parts, ".")
	dotted := slices.ContainsFunc(parts[:len(parts)-1], func(p string) bool { return strings.Contains(p, ".") })
	if !dotted && len(validation.IsDNS1123Subdomain(name)) == 0 {
		return name
	}
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return "h-" + hex.EncodeToString(sum[:16])
}
