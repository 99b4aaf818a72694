package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Workspace is an isolated Kubernetes-style API: it has objects, RBAC, ServiceAccounts and namespaces of its own. It is served below
// /clusters/NAME/ of the server, or below /clusters/PARENT:NAME/ if its object is in the workspace PARENT. A workspace that no client
// uses costs nothing but the space of its objects.
//
// Its name is in paths, so it is a DNS label.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=ws,categories=tenancy
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Owner",type=string,JSONPath=`.spec.owner.username`
// +kubebuilder:printcolumn:name="Path",type=string,JSONPath=`.status.path`
// +kubebuilder:printcolumn:name="Type",type=string,JSONPath=`.spec.type`,priority=1
// +kubebuilder:printcolumn:name="Objects",type=integer,JSONPath=`.status.usage.objects`,priority=1
// +kubebuilder:printcolumn:name="Bytes",type=string,JSONPath=`.status.usage.bytes`,priority=1
// +kubebuilder:printcolumn:name="Workspaces",type=integer,JSONPath=`.status.usage.workspaces`,priority=1
// +kubebuilder:printcolumn:name="Definitions",type=integer,JSONPath=`.status.usage.definitions`,priority=1
// +kubebuilder:printcolumn:name="Expressions",type=integer,JSONPath=`.status.usage.expressions`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$') && self.metadata.name.size() <= 63",message="a workspace's name is in paths: use at most 63 lower-case letters, digits and -, without a dot"
type Workspace struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec WorkspaceSpec `json:"spec,omitempty"`
	// +optional
	Status WorkspaceStatus `json:"status,omitempty"`
}

// WorkspaceList is a list of Workspaces.
//
// +kubebuilder:object:root=true
type WorkspaceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Workspace `json:"items"`
}

// WorkspaceSpec describes a workspace.
//
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.placement) || has(self.placement)",message="placement cannot be removed: delete the workspace, or create another one"
// +kubebuilder:validation:XValidation:rule="has(self.source) == has(oldSelf.source) && (!has(self.source) || self.source == oldSelf.source)",message="source does not change: create another workspace"
type WorkspaceSpec struct {
	// Owner is the user who created the workspace. The server sets it. The owner gets the role cluster-admin in the workspace when
	// it is created; what happens to that role later is up to its administrators.
	// +optional
	Owner *WorkspaceOwner `json:"owner,omitempty"`
	// Limits bound what the workspace stores. Its own users cannot change them.
	// +optional
	Limits *WorkspaceLimits `json:"limits,omitempty"`
	// Type is the name of the WorkspaceType, in the API of this Workspace, that the workspace begins with. If it is empty, it is set to
	// default, if there is a type of that name. It does not change.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Type string `json:"type,omitempty"`
	// Initial is what the type had when the Workspace was created. The server sets it, and creates the workspace from it. So a change or the
	// deletion of the type does not concern a workspace that is being created. It does not change: the workspace may have other contents by now.
	// +optional
	Initial *WorkspaceContents `json:"initial,omitempty"`
	// Source is where the objects of the workspace come from. It does not change.
	// +optional
	Source *WorkspaceSource `json:"source,omitempty"`
	// Placement is where the objects of the workspace run. Without it, they run in the clusters of the workspace itself, if it has any. To set or change it, a user
	// needs the verb bind for clusters.fleet.atoll.dev in the API that has the Workspace. It can be added later, and not be removed.
	// +optional
	Placement *WorkspacePlacement `json:"placement,omitempty"`
	// MovedTo is set while the workspace moves to another path. It is not served any more, and its object is removed when it is served there.
	// Only the server sets it.
	// +optional
	MovedTo *WorkspaceDestination `json:"movedTo,omitempty"`
}

// WorkspaceSource is where the objects of a new workspace come from: another workspace as it is at one moment, a backup, or another
// workspace that moves here. Workspaces in the source are not copied; they move with it.
//
// +kubebuilder:validation:XValidation:rule="[has(self.name), has(self.backup) && self.backup, has(self.moveFrom)].filter(x, x).size() == 1",message="source needs exactly one of name, backup: true and moveFrom"
type WorkspaceSource struct {
	// Name is the name of a Workspace in the API that has the new one. To copy it, a user needs all permissions in it (the verb * for
	// all resources).
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +optional
	Name string `json:"name,omitempty"`
	// Backup means that the objects come from a backup, which atoll workspace restore sends. Only users in the group system:masters may
	// set it.
	// +optional
	Backup bool `json:"backup,omitempty"`
	// MoveFrom is the path of a workspace, such as team-a:staging, that gets this name and place instead of its own. Everything in it stays,
	// the workspaces in it included; nothing is copied. The user needs the verb delete for its Workspace, in the API that has it. The new
	// Workspace has the owner and the limits of the former one.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +optional
	MoveFrom string `json:"moveFrom,omitempty"`
	// UID is that of the Workspace with that name or path. The server sets it: another workspace that gets the name later is not the source.
	// +kubebuilder:validation:MaxLength=128
	// +optional
	UID string `json:"uid,omitempty"`
}

// WorkspaceDestination is where a workspace moves to.
type WorkspaceDestination struct {
	// Path is the path of the new Workspace.
	// +kubebuilder:validation:MaxLength=512
	Path string `json:"path"`
	// UID is its UID.
	// +kubebuilder:validation:MaxLength=128
	UID string `json:"uid"`
}

// BackupsPath is the prefix of the paths of backups of workspaces: GET of a path below it answers with a backup, and PUT restores one.
const BackupsPath = "/services/workspace-backups/"

// WorkspaceOwner is the user who created a workspace.
type WorkspaceOwner struct {
	// Username is the user's name.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Username string `json:"username"`
	// UID is the user's unique identifier, if the authenticator has one.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	UID string `json:"uid,omitempty"`
	// Groups are the groups that the user was in.
	// +kubebuilder:validation:MaxItems=10000
	// +listType=atomic
	// +optional
	Groups []string `json:"groups,omitempty"`
}

// WorkspacePhase is where a workspace is in its life.
//
// +kubebuilder:validation:Enum=Pending;Ready;Terminating
type WorkspacePhase string

const (
	// WorkspacePending means that it is not complete yet.
	WorkspacePending WorkspacePhase = "Pending"
	// WorkspaceReady means that it is served.
	WorkspaceReady WorkspacePhase = "Ready"
	// WorkspaceTerminating means that it is no longer served, and its objects are being removed.
	WorkspaceTerminating WorkspacePhase = "Terminating"
)

// WorkspaceFinalizer keeps a Workspace until its objects are removed.
const WorkspaceFinalizer = Group + "/objects"

// WorkspaceAnnotation is the annotation of an object in a list or watch over many workspaces: the path of its workspace. It is not stored.
const WorkspaceAnnotation = Group + "/workspace"

// NotInWorkspaces is the cause of a Status for a part of the root's API that workspaces do not have. The message of the cause is what to do instead.
const NotInWorkspaces metav1.CauseType = "NotInWorkspaces"

// WorkspaceStatus is what the server reports.
type WorkspaceStatus struct {
	// Phase summarizes the conditions.
	// +optional
	Phase WorkspacePhase `json:"phase,omitempty"`
	// Path is the path below which the workspace is served, such as /clusters/team-a.
	// +optional
	Path string `json:"path,omitempty"`
	// Due is set while controllers have to finish something in the workspace, such as the deletion of a namespace. It is the time and
	// the server of the request that left it.
	// +optional
	Due string `json:"due,omitempty"`
	// DueBelow is the same for the workspaces in this one, at any depth, by their paths. Only Workspaces of the root have it.
	// +kubebuilder:validation:MaxProperties=5000
	// +optional
	DueBelow map[string]string `json:"dueBelow,omitempty"`
	// PlacementDue is set while the workspace above has to take over changes of its objects, or their statuses have to come back. It is like Due.
	// +optional
	PlacementDue string `json:"placementDue,omitempty"`
	// PlacementDueBelow is the same for the workspaces in this one, at any depth, by their paths. Only Workspaces of the root have it.
	// +kubebuilder:validation:MaxProperties=5000
	// +optional
	PlacementDueBelow map[string]string `json:"placementDueBelow,omitempty"`
	// Usage is the part of its limits that the workspace uses. It is refreshed while the workspace is in use, every ten minutes, and afterwards.
	// +optional
	Usage *WorkspaceUsage `json:"usage,omitempty"`
	// Changes are the paths of workspaces in this one, at any depth, in which Workspaces have been created or deleted a moment ago, each
	// with an identifier of the change. Only Workspaces of the root have it: the server continues from it after a crash.
	// +kubebuilder:validation:MaxProperties=1000
	// +optional
	Changes map[string]string `json:"changes,omitempty"`
	// Fleets are the paths of workspaces with Clusters or Providers: this one, and the workspaces in it at any depth, each with an identifier of its latest
	// one. Only Workspaces of the root have it: a server runs the controllers of these, also if no client uses the workspaces.
	// +kubebuilder:validation:MaxProperties=1000
	// +optional
	Fleets map[string]string `json:"fleets,omitempty"`
	// Conditions: Ready, and with spec.placement also Placed.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// WorkspaceReadyCondition is the condition that says whether a workspace is served.
const WorkspaceReadyCondition = "Ready"
