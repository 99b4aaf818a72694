package v1alpha1

// WorkspacePlacement is where the objects of a workspace run.
//
// +kubebuilder:validation:XValidation:rule="self.from == oldSelf.from",message="from does not change: create another workspace"
type WorkspacePlacement struct {
	// From is Parent: the objects of the workspace run in the clusters of the API that has its Workspace, and the policies there
	// decide where. For each namespace of the workspace with objects that can run, that API gets a namespace with copies of them.
	From PlacementSource `json:"from"`
	// NamespaceLabels are labels of these namespaces, such as pod-security.kubernetes.io/enforce. The users of the workspace cannot change
	// them.
	// +kubebuilder:validation:MaxProperties=32
	// +optional
	NamespaceLabels map[string]string `json:"namespaceLabels,omitempty"`
}

// PlacementSource is whose clusters run the objects of a workspace.
//
// +kubebuilder:validation:Enum=Parent
type PlacementSource string

// PlacedByParent means the clusters of the API that has the Workspace.
const PlacedByParent PlacementSource = "Parent"

// WorkspacePlacedCondition is the condition that says whether the parent has copies of all objects that it is to place.
const WorkspacePlacedCondition = "Placed"

// Marks of the namespaces in the parent, and of the copies in them. The server ignores these marks on the objects of the workspace itself.
const (
	// ChildLabel is the name of the Workspace, and ChildUIDLabel its UID.
	ChildLabel    = Group + "/child"
	ChildUIDLabel = Group + "/child-uid"
	// SourceNamespaceAnnotation is, on a namespace of the parent, the name of the namespace in the workspace.
	SourceNamespaceAnnotation = Group + "/source-namespace"
	// SourceUIDAnnotation, SourceGenerationAnnotation and SourceDigestAnnotation are, on a copy, the UID and the generation of its source,
	// and a digest of the content that was copied.
	SourceUIDAnnotation        = Group + "/source-uid"
	SourceGenerationAnnotation = Group + "/source-generation"
	SourceDigestAnnotation     = Group + "/source-digest"
)

// PlacementRole is the name of the ClusterRole, in the parent, that says which objects of workspaces it places: those that it permits
// to create. Each workspace has it in its own namespaces of the parent, and nowhere else.
const PlacementRole = "atoll:workspace-placement"

// PlacementUsers begins the names of the users that write the copies: the name of the Workspace follows. No client is one.
const PlacementUsers = "system:workspace:"
