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

// CommonAPIResourceSpec is one version of a type: what an APIResourceImport and a
// NegotiatedAPIResource say alike. The names of the fields are kcp's.
type CommonAPIResourceSpec struct {
	GroupVersion GroupVersion `json:"groupVersion"`
	// Scope is Namespaced or Cluster.
	// +kubebuilder:validation:Enum=Namespaced;Cluster
	Scope string `json:"scope"`

	TypeNames `json:",inline"`

	// OpenAPIV3Schema is a structural schema, as a CustomResourceDefinition has it.
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Type=object
	// +structType=atomic
	OpenAPIV3Schema runtime.RawExtension `json:"openAPIV3Schema"`
	// Loose are the places where the schema lets more through than the cluster does: what
	// an OpenAPI document says there, no structural schema can. Such a type is compatible
	// with nothing.
	// +optional
	// +listType=atomic
	Loose []string `json:"loose,omitempty"`
	// SubResources are status and scale, where the type has them.
	// +optional
	// +listType=map
	// +listMapKey=name
	SubResources []SubResource `json:"subResources,omitempty"`
	// ColumnDefinitions are what kubectl get prints beside the name.
	// +optional
	// +listType=map
	// +listMapKey=name
	ColumnDefinitions []ColumnDefinition `json:"columnDefinitions,omitempty"`
}

// GroupVersion is an API group, empty for the core group, and a version of it.
type GroupVersion struct {
	// +optional
	Group   string `json:"group,omitempty"`
	Version string `json:"version"`
}

// TypeNames are what a type is called.
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

// SubResource is a part of an object with an endpoint of its own.
type SubResource struct {
	// Name is status or scale.
	// +kubebuilder:validation:Enum=status;scale
	Name string `json:"name"`
	// SpecReplicasPath, StatusReplicasPath and LabelSelectorPath say where scale finds
	// what it reads and writes, as in a CustomResourceDefinition.
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

// Resource gives what clients address objects of the type by.
func (s *CommonAPIResourceSpec) Resource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: s.GroupVersion.Group, Version: s.GroupVersion.Version, Resource: s.Plural}
}

// GroupVersionKind gives the kind that objects of the type name.
func (s *CommonAPIResourceSpec) GroupVersionKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: s.GroupVersion.Group, Version: s.GroupVersion.Version, Kind: s.Kind}
}

// SchemaUpdateStrategy says what an import may do to the negotiated type.
// +kubebuilder:validation:Enum=UpdateNever;UpdateUnpublished;UpdatePublished
type SchemaUpdateStrategy string

// The values of SchemaUpdateStrategy; they are kcp's.
const (
	// UpdateNever: the import is checked and narrows nothing.
	UpdateNever SchemaUpdateStrategy = "UpdateNever"
	// UpdateUnpublished (the default): it narrows the negotiated type as long as that
	// is not published.
	UpdateUnpublished SchemaUpdateStrategy = "UpdateUnpublished"
	// UpdatePublished: it narrows a published type too. Objects that exist may
	// then have values that nobody could write anew.
	UpdatePublished SchemaUpdateStrategy = "UpdatePublished"
)

// Allows tells whether an import with this strategy may narrow the negotiated type.
func (s SchemaUpdateStrategy) Allows(published bool) bool {
	switch s {
	case UpdateNever:
		return false
	case UpdatePublished:
		return true
	}
	return !published
}

// ImportName gives the name of the APIResourceImport of a type in a cluster:
// widgets.east.v1.example.com, and for the core group pods.east.v1.core. Where that
// would not be a name, it ends in a hash of the parts.
func ImportName(resource schema.GroupVersionResource, cluster string) string {
	return typeName(resource.Resource, cluster, resource.Version, groupName(resource.Group))
}

// NegotiatedName gives the name of the NegotiatedAPIResource of a type:
// widgets.v1.example.com, and for the core group pods.v1.core.
func NegotiatedName(resource schema.GroupVersionResource) string {
	return typeName(resource.Resource, resource.Version, groupName(resource.Group))
}

func groupName(group string) string {
	if group == "" {
		return CoreGroup
	}
	return group
}

// CoreGroup is what the core group is called where a name cannot be empty.
const CoreGroup = "core"

// typeName joins the parts. None but the group may contain a dot, or two types could
// share a name; a Cluster's name may, so that the hash tells those apart.
func typeName(parts ...string) string {
	name := strings.Join(parts, ".")
	dotted := slices.ContainsFunc(parts[:len(parts)-1], func(p string) bool { return strings.Contains(p, ".") })
	if !dotted && len(validation.IsDNS1123Subdomain(name)) == 0 {
		return name
	}
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return "h-" + hex.EncodeToString(sum[:16])
}
