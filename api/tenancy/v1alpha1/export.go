package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// APIExportResource and APIBindingResource are the resources of APIExports and APIBindings.
var (
	APIExportResource  = schema.GroupVersionResource{Group: Group, Version: Version, Resource: "apiexports"}
	APIBindingResource = schema.GroupVersionResource{Group: Group, Version: Version, Resource: "apibindings"}
)

// BindVerb is the verb of RBAC for an APIExport by which a user may bind workspaces to it, and for clusters.fleet.atoll.dev by which a user may let
// workspaces use the clusters of the API that has their Workspaces.
const BindVerb = "bind"

// ViewVerb and ManageVerb are the verbs of RBAC for an APIExport by which a user may read, and change, the objects that its consumers have of
// the exported resources.
const (
	ViewVerb   = "view"
	ManageVerb = "manage"
)

// APIExport lets other workspaces use CustomResourceDefinitions of this one. They have objects of their own; the definitions are shared.
//
// Users with the verb bind for the APIExport, by the RBAC of this workspace, may create APIBindings to it.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,categories=tenancy
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type APIExport struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec APIExportSpec `json:"spec"`
}

// APIExportList is a list of APIExports.
//
// +kubebuilder:object:root=true
type APIExportList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []APIExport `json:"items"`
}

// APIExportSpec describes an export.
type APIExportSpec struct {
	// Resources are the exported resources. If one is removed, requests of consumers for it are 404. Their objects stay stored, and are
	// there again when it is exported again. Existing bindings do not get resources that are added.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	// +listType=map
	// +listMapKey=group
	// +listMapKey=resource
	Resources []ExportedResource `json:"resources"`
}

// ExportedResource is a resource that a CustomResourceDefinition defines.
type ExportedResource struct {
	// Group is the API group.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Group string `json:"group"`
	// Resource is the plural name, such as widgets.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Resource string `json:"resource"`
}

// APIBinding makes the resources of an APIExport of another workspace available in this one. It does not change: delete it and create
// another one. When it is deleted, the objects of the resources stay stored, and cannot be reached until there is a binding again.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,categories=tenancy
// +kubebuilder:printcolumn:name="Workspace",type=string,JSONPath=`.spec.export.path`
// +kubebuilder:printcolumn:name="Export",type=string,JSONPath=`.spec.export.name`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type APIBinding struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec APIBindingSpec `json:"spec"`
}

// APIBindingList is a list of APIBindings.
//
// +kubebuilder:object:root=true
type APIBindingList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []APIBinding `json:"items"`
}

// APIBindingSpec describes a binding.
type APIBindingSpec struct {
	Export ExportReference `json:"export"`
	// Resources are those that were exported when the binding was created. The server sets it.
	// +kubebuilder:validation:MaxItems=100
	// +listType=map
	// +listMapKey=group
	// +listMapKey=resource
	// +optional
	Resources []ExportedResource `json:"resources,omitempty"`
}

// ExportReference refers to an APIExport.
type ExportReference struct {
	// Path is the path of the workspace that has it, such as team-a:apis.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Path string `json:"path"`
	// Name is its name.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// WorkspaceUID is the UID of that workspace. The server sets it: a binding does not follow the path to another workspace that gets it
	// later.
	// +kubebuilder:validation:MaxLength=128
	// +optional
	WorkspaceUID string `json:"workspaceUID,omitempty"`
}
