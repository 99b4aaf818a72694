package v1alpha1

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Preemption is the room that objects of lower priority make in clusters. It ends when the object
// is healthy there, or after five minutes. Until then the victims do not return, and no further
// objects make room.
type Preemption struct {
	// Priority of the pods that need the room.
	Priority int32 `json:"priority"`
	// Time when the victims were chosen.
	Time metav1.Time `json:"time"`
	// Clusters are those where room is made, until the object is placed there.
	// +listType=map
	// +listMapKey=name
	Clusters []PreemptedCluster `json:"clusters"`
	// Victims are the objects that make it.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1000
	Victims []PreemptionVictim `json:"victims"`
}

// PreemptedCluster is a cluster where room is made for an object.
type PreemptedCluster struct {
	Name string `json:"name"`
	// Replicas is the share of the object for which there is room then; absent if the cluster runs
	// the whole object.
	// +optional
	Replicas *int32 `json:"replicas,omitempty"`
}

// PreemptionVictim is an object that makes room in a cluster.
type PreemptionVictim struct {
	// Kind of the object, with its group: Deployment.apps.
	Kind string `json:"kind"`
	// +optional
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	Cluster   string `json:"cluster"`
	// Replicas that leave; absent if the object leaves as a whole.
	// +optional
	Replicas *int32 `json:"replicas,omitempty"`
	// Left is how many of its replicas the cluster may have until the preemption ends.
	Left int32 `json:"left"`
}

// String describes a victim: 2 replicas of Deployment.apps shop/web in east.
func (v PreemptionVictim) String() string {
	out := v.Kind + " " + v.Name
	if v.Namespace != "" {
		out = v.Kind + " " + v.Namespace + "/" + v.Name
	}
	switch {
	case v.Replicas != nil && *v.Replicas == 1:
		out = "1 replica of " + out
	case v.Replicas != nil:
		out = fmt.Sprintf("%d replicas of %s", *v.Replicas, out)
	}
	return out + " in " + v.Cluster
}
