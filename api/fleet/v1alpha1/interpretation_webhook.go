package v1alpha1

// InterpretationWebhook answers questions about the objects of a kind. It speaks the protocol of
// Karmada's resource interpreter webhooks: ResourceInterpreterContext of config.karmada.io/v1alpha1.
type InterpretationWebhook struct {
	// URL of the webhook. The servers of Atoll have to reach it, clusters need not. It has the scheme
	// https, and no user, query or fragment. Services are not resolved: publish the webhook at an address.
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:Pattern=`^https://[^/?#@]+(/[^?#]*)?$`
	URL string `json:"url"`
	// CABundle has the certificate authorities, in PEM, that the webhook's certificate is checked with.
	// It defaults to those of the server's system.
	// +optional
	CABundle []byte `json:"caBundle,omitempty"`
	// TimeoutSeconds is how long one request may take.
	// +optional
	// +kubebuilder:default=10
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=30
	TimeoutSeconds *int32 `json:"timeoutSeconds,omitempty"`
	// Operations are the questions that the webhook answers.
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	Operations []InterpretationOperation `json:"operations"`
}

// DefaultWebhookTimeoutSeconds is how long one request may take by default.
const DefaultWebhookTimeoutSeconds = 10

// InterpretationOperation is a question to a webhook, with the name that it has in the protocol.
//
// +kubebuilder:validation:Enum=InterpretReplica;InterpretComponent;ReviseReplica;Retain;AggregateStatus;InterpretHealth;InterpretStatus;InterpretDependency
type InterpretationOperation string

// The questions.
const (
	// InterpretReplica: the replica count of an object, and what one replica requests.
	InterpretReplica InterpretationOperation = "InterpretReplica"
	// InterpretComponent: the parts of an object.
	InterpretComponent InterpretationOperation = "InterpretComponent"
	// ReviseReplica: the object with a cluster's share of the replicas.
	ReviseReplica InterpretationOperation = "ReviseReplica"
	// Retain: the object with the fields that the cluster sets itself.
	Retain InterpretationOperation = "Retain"
	// AggregateStatus: the object with the status that the clusters' statuses become.
	AggregateStatus InterpretationOperation = "AggregateStatus"
	// InterpretHealth: whether a cluster's object is healthy.
	InterpretHealth InterpretationOperation = "InterpretHealth"
	// InterpretStatus: the status of a cluster's object that is collected.
	InterpretStatus InterpretationOperation = "InterpretStatus"
	// InterpretDependency: the objects that have to be where the object is.
	InterpretDependency InterpretationOperation = "InterpretDependency"
)
