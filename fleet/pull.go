package fleet

import (
	"encoding/json"
	"errors"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// ErrTransform is returned when an object cannot be transformed for a cluster. The error that it is
// wrapped with names the reason.
var ErrTransform = errors.New("cannot transform the object for the cluster")

// SourceObject is the metadata of a binding's object that a syncer needs, apart from the content to
// apply.
type SourceObject struct {
	UID        types.UID `json:"uid"`
	Generation int64     `json:"generation,omitempty"`
	// Deleting: the object has a deletion timestamp.
	Deleting bool `json:"deleting,omitempty"`
	// Adopt: a syncer may take over an existing object of the same name in a cluster.
	Adopt bool `json:"adopt,omitempty"`
}

// Observation is what the syncer of a cluster in mode Pull observes of the cluster.
type Observation struct {
	Ready bool `json:"ready"`
	// Reason and Message are those of the Cluster's condition Ready.
	Reason  string `json:"reason"`
	Message string `json:"message,omitempty"`
	// Version and ID are empty until they are known.
	Version string `json:"version,omitempty"`
	ID      string `json:"id,omitempty"`
	// Claim is the control plane that the cluster belongs to; nil until it is known.
	Claim *v1alpha1.ClusterClaim `json:"claim,omitempty"`
	// Fences: the syncer stops replicas when it has no contact.
	Fences bool `json:"fences,omitempty"`
	// RemovesNamespaces: the syncer removes the fleet's empty namespaces from the cluster when that leaves, and then
	// NamespacesRemoved is the UID of its Cluster. NamespacesMessage is why it could not remove them.
	RemovesNamespaces bool      `json:"removesNamespaces,omitempty"`
	NamespacesRemoved types.UID `json:"namespacesRemoved,omitempty"`
	NamespacesMessage string    `json:"namespacesMessage,omitempty"`
	// Nodes and their resources; nil until they have been counted.
	Nodes       *v1alpha1.NodeCount `json:"nodes,omitempty"`
	Capacity    corev1.ResourceList `json:"capacity,omitempty"`
	Allocatable corev1.ResourceList `json:"allocatable,omitempty"`
	// NodeShapes are nil until nodes and pods have been read.
	NodeShapes *v1alpha1.NodeShapes `json:"nodeShapes,omitempty"`
	// PendingPods are those that have had no node for a while.
	PendingPods []v1alpha1.PendingPods `json:"pendingPods,omitempty"`
	// NamespaceQuotas are those of all namespaces of the cluster.
	NamespaceQuotas []v1alpha1.NamespaceQuota `json:"namespaceQuotas,omitempty"`
}

// ObservationOf decodes the observation in a heartbeat.
func ObservationOf(lease *coordinationv1.Lease) (Observation, error) {
	var o Observation
	if err := json.Unmarshal([]byte(lease.Annotations[v1alpha1.ObservationAnnotation]), &o); err != nil {
		return o, fmt.Errorf("decode the observation in lease %s/%s: %w", lease.Namespace, lease.Name, err)
	}
	return o, nil
}

// TypesReport is what the syncer of a cluster in mode Pull reports of the cluster's types: which
// API groups exist. It sends the content of a group separately, and only if the servers do not have
// it.
type TypesReport struct {
	// Groups to report, by name; "" is the core group.
	Groups map[string]GroupDigest `json:"groups"`
	// Message says why the types cannot be read now. The groups are then those of the last
	// successful read.
	Message string `json:"message,omitempty"`
	// Others are groups that the cluster serves without CustomResourceDefinitions.
	Others []string `json:"others,omitempty"`
}

// GroupDigest identifies the content of a group.
type GroupDigest struct {
	Digest string `json:"digest"`
	// Size of the content in bytes, as sent.
	Size int `json:"size"`
}

// TypesWanted is the reply to a TypesReport: what the servers also need.
type TypesWanted struct {
	// Missing are the groups whose content they do not have.
	Missing []string `json:"missing,omitempty"`
	// InFull are those of Others that a policy names in full, so their types are needed too.
	InFull []string `json:"inFull,omitempty"`
}

// GroupReport is the content of one API group that a cluster serves.
type GroupReport struct {
	Group string `json:"group"`
	// Content is for the type import controller: gzipped JSON.
	Content []byte `json:"content"`
}
