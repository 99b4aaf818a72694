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

// ErrImpossible: an object cannot be made as a cluster should have it. What it is
// wrapped with says why, for people.
var ErrImpossible = errors.New("it cannot be made as the cluster should have it")

// Source is what a syncer has to know of the object that a binding is about,
// besides what is to be applied.
type Source struct {
	UID        types.UID `json:"uid"`
	Generation int64     `json:"generation,omitempty"`
	// Deleting: somebody has deleted it, and it is on its way out.
	Deleting bool `json:"deleting,omitempty"`
	// Adopt: a syncer may take over what has its name in a cluster.
	Adopt bool `json:"adopt,omitempty"`
}

// Observation is what the syncer of a cluster in mode Pull sees of the cluster.
type Observation struct {
	Ready bool `json:"ready"`
	// Reason and Message as of the Cluster's condition Ready.
	Reason  string `json:"reason"`
	Message string `json:"message,omitempty"`
	// Version and ID are empty as long as they are not known.
	Version string `json:"version,omitempty"`
	ID      string `json:"id,omitempty"`
	// Nodes and what they have; nil as long as they have not been counted.
	Nodes       *v1alpha1.NodeCount `json:"nodes,omitempty"`
	Capacity    corev1.ResourceList `json:"capacity,omitempty"`
	Allocatable corev1.ResourceList `json:"allocatable,omitempty"`
}

// ObservationOf reads what a heartbeat says.
func ObservationOf(lease *coordinationv1.Lease) (Observation, error) {
	var o Observation
	if err := json.Unmarshal([]byte(lease.Annotations[v1alpha1.ObservationAnnotation]), &o); err != nil {
		return o, fmt.Errorf("read what lease %s/%s says of its cluster: %w", lease.Namespace, lease.Name, err)
	}
	return o, nil
}

// Wait returns when the caches have stopped, for whoever ended the context that the
// Term was made with.
func (t *Term) Wait() { t.wait() }

// TypesReport is what the syncer of a cluster in mode Pull has read of the types that
// the cluster serves: which API groups there are. What is in them it reports one by one,
// as far as the servers do not have it.
type TypesReport struct {
	// Groups of which there is something to report, by name; "" is the core group.
	Groups map[string]GroupDigest `json:"groups"`
	// Message says why the types cannot be read now, for people. The groups are then as
	// they last were.
	Message string `json:"message,omitempty"`
	// Others are groups that the cluster serves without CustomResourceDefinitions.
	Others []string `json:"others,omitempty"`
}

// GroupDigest tells one content of a group from another.
type GroupDigest struct {
	Digest string `json:"digest"`
	// Size of the content in bytes, as it is sent.
	Size int `json:"size"`
}

// TypesWanted is the answer: what the servers want to know besides.
type TypesWanted struct {
	// Missing are the groups whose content they do not have.
	Missing []string `json:"missing,omitempty"`
	// InFull are the Others that a policy names in full, so that types of theirs are
	// wanted too.
	InFull []string `json:"inFull,omitempty"`
}

// GroupReport is what a cluster serves of one API group.
type GroupReport struct {
	Group string `json:"group"`
	// Content is for the controller of types: gzipped JSON.
	Content []byte `json:"content"`
}
