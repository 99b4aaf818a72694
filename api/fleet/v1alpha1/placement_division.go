package v1alpha1

// ReplicaDivision is how replicas are divided among the chosen clusters.
//
// +kubebuilder:validation:XValidation:rule="(self.by == 'Weighted') == has(self.weights)",message="weights are required for by: Weighted, and not allowed otherwise"
// +kubebuilder:validation:XValidation:rule="!has(self.minPerCluster) || !has(self.maxPerCluster) || self.minPerCluster <= self.maxPerCluster",message="minPerCluster is more than maxPerCluster"
type ReplicaDivision struct {
	// +kubebuilder:default=Even
	By DivisionBy `json:"by"`
	// Weights of clusters. The first entry that selects a cluster is used. A cluster without one
	// has weight 0: it gets no replicas.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	Weights []ClusterWeight `json:"weights,omitempty"`
	// MinPerCluster is the smallest share. Fewer clusters get a share if shares would be smaller.
	// +optional
	// +kubebuilder:validation:Minimum=1
	MinPerCluster *int32 `json:"minPerCluster,omitempty"`
	// MaxPerCluster is the largest share. Replicas without a cluster wait.
	// +optional
	// +kubebuilder:validation:Minimum=1
	MaxPerCluster *int32 `json:"maxPerCluster,omitempty"`
}

// DivisionBy is the criterion for dividing replicas.
// +kubebuilder:validation:Enum=Even;Weighted;Capacity;Fewest
type DivisionBy string

// The values of DivisionBy.
const (
	// DivideEven: shares differ by at most one.
	DivideEven DivisionBy = "Even"
	// DivideWeighted: in proportion to the given weights.
	DivideWeighted DivisionBy = "Weighted"
	// DivideCapacity: new replicas are divided in proportion to free room. Existing replicas do not
	// move when the room changes.
	DivideCapacity DivisionBy = "Capacity"
	// DivideFewest: in as few clusters as have room for all. Existing replicas do not move.
	DivideFewest DivisionBy = "Fewest"
)

// ClusterWeight is the weight of the selected clusters.
type ClusterWeight struct {
	Clusters ClusterSelector `json:"clusters"`
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000
	Weight int32 `json:"weight"`
}
