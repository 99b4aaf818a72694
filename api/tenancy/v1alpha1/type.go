package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// WorkspaceTypeResource is the resource of WorkspaceTypes.
var WorkspaceTypeResource = schema.GroupVersionResource{Group: Group, Version: Version, Resource: "workspacetypes"}

const (
	// UseVerb is the verb of RBAC for a WorkspaceType by which a user may create workspaces with it.
	UseVerb = "use"
	// DefaultWorkspaceType is the name of the type of Workspaces that name none. Every user with permission to create Workspaces may use it.
	DefaultWorkspaceType = "default"
)

// WorkspaceType is what new workspaces begin with: limits, namespaces, access and APIs. It is for Workspaces that are created in the same
// API, the root or a workspace. They name it in spec.type; those that name none have the type default, if it exists.
//
// A change or deletion of a type does not change workspaces that exist.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=wstype,categories=tenancy
// +kubebuilder:printcolumn:name="Description",type=string,JSONPath=`.spec.description`
// +kubebuilder:printcolumn:name="Objects",type=integer,JSONPath=`.spec.limits.objects`
// +kubebuilder:printcolumn:name="Bytes",type=string,JSONPath=`.spec.limits.bytes`
// +kubebuilder:printcolumn:name="Workspaces",type=integer,JSONPath=`.spec.limits.workspaces`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type WorkspaceType struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec WorkspaceTypeSpec `json:"spec,omitempty"`
}

// WorkspaceTypeList is a list of WorkspaceTypes.
//
// +kubebuilder:object:root=true
type WorkspaceTypeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []WorkspaceType `json:"items"`
}

// WorkspaceTypeSpec describes a type of workspaces.
type WorkspaceTypeSpec struct {
	// Description is a sentence for users who choose a type.
	// +kubebuilder:validation:MaxLength=256
	// +optional
	Description string `json:"description,omitempty"`
	// Limits are the defaults of the fields of spec.limits that a Workspace leaves out. A Workspace may set larger ones.
	// +optional
	Limits *WorkspaceLimits `json:"limits,omitempty"`

	// Placement is spec.placement of a Workspace that leaves it out. Users of the type need no further permission for it. A user who sets or changes it
	// needs the verb bind for clusters.fleet.atoll.dev.
	// +optional
	Placement *WorkspacePlacement `json:"placement,omitempty"`

	WorkspaceContents `json:",inline"`
}

// WorkspaceContents is what a workspace begins with, besides the namespaces and roles that every workspace has.
type WorkspaceContents struct {
	// Namespaces are created in the workspace.
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=name
	// +optional
	Namespaces []InitialNamespace `json:"namespaces,omitempty"`
	// Access gives users and groups ClusterRoles in the workspace.
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=role
	// +optional
	Access []InitialAccess `json:"access,omitempty"`
	// APIs are the APIExports that the workspace is bound to. The APIBindings have their names. A user who writes a type with APIs needs the
	// verb bind for each of them, when the list changes.
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=name
	// +optional
	APIs []InitialAPI `json:"apis,omitempty"`
}

// InitialNamespace is a namespace that a workspace begins with.
type InitialNamespace struct {
	// Name is its name.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// +kubebuilder:validation:MaxProperties=32
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
	// +kubebuilder:validation:MaxProperties=32
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
}

// InitialAccess gives users and groups a ClusterRole of the workspace, by the ClusterRoleBinding workspace-type:ROLE. Later the
// administrators of the workspace may change or delete it.
type InitialAccess struct {
	// Role is the name of the ClusterRole, such as view.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=200
	Role string `json:"role"`
	// Users are names of users who are the same in all workspaces.
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=1024
	// +listType=atomic
	// +optional
	Users []string `json:"users,omitempty"`
	// Groups are names of groups.
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=1024
	// +listType=atomic
	// +optional
	Groups []string `json:"groups,omitempty"`
}

// InitialAPI refers to an APIExport that a workspace is bound to.
type InitialAPI struct {
	ExportReference `json:",inline"`
	// Resources are those that were exported when the list of APIs was written. The server sets it.
	// +kubebuilder:validation:MaxItems=100
	// +listType=map
	// +listMapKey=group
	// +listMapKey=resource
	// +optional
	Resources []ExportedResource `json:"resources,omitempty"`
}
