package v1alpha1

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// ResourceState is the complete state of one resource, including secrets. It is an object of its own, so that
// reading it requires a separate right. Its name is PLURAL.PROVIDER.NAME of the object that it belongs to.
// Atoll owns it: to edit it is like "tofu state push".
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Namespaced,path=resourcestates,singular=resourcestate
// +kubebuilder:printcolumn:name="Type",type=string,JSONPath=`.spec.type`
// +kubebuilder:printcolumn:name="Provider",type=string,JSONPath=`.spec.provider`
// +kubebuilder:printcolumn:name="Pending",type=string,JSONPath=`.spec.pending.action`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ResourceState struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ResourceStateSpec `json:"spec"`
}

// ResourceStateList is a list of ResourceStates.
//
// +kubebuilder:object:root=true
type ResourceStateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ResourceState `json:"items"`
}

// ResourceStateSpec is the state.
type ResourceStateSpec struct {
	// Object is the object that the state belongs to.
	Object StateOwner `json:"object"`
	// Type is the provider's name of the type.
	Type string `json:"type"`
	// Provider is the name of the Provider; ProviderConfig names the configuration that created the resource.
	Provider string `json:"provider"`
	// +optional
	ProviderConfig string `json:"providerConfig,omitempty"`
	// Configured is true if that ProviderConfig existed. Without it, the provider would use its defaults, and
	// so another target.
	// +optional
	Configured bool `json:"configured,omitempty"`
	// Current is the resource, if it exists.
	// +optional
	Current *ResourceValue `json:"current,omitempty"`
	// Deposed are replaced predecessors that are still to be deleted.
	// +optional
	// +listType=map
	// +listMapKey=key
	Deposed []DeposedResource `json:"deposed,omitempty"`
	// Settled is a hash of the inputs for which the resource was last found to need no change: the evaluated
	// spec, the provider and its configuration. While it is unchanged, the provider need not plan the
	// resource again.
	// +optional
	Settled string `json:"settled,omitempty"`
	// Written is the last applied spec of the object, as JSON. A rollback restores it.
	// +optional
	Written []byte `json:"written,omitempty"`
	// Applied describes the object as it was last applied. Policies judge a plan by these labels and by the
	// present ones, so that no one leaves a policy in the change that it is about. It is missing if an earlier
	// version applied the object.
	// +optional
	Applied *AppliedObject `json:"applied,omitempty"`
	// Refreshed is when the provider last read the resource.
	// +optional
	Refreshed *metav1.MicroTime `json:"refreshed,omitempty"`
	// Pending is a change that has begun and whose outcome is unknown.
	// +optional
	Pending *PendingChange `json:"pending,omitempty"`
	// Carried lists the steps that the last Apply has finished, so that it does not repeat them when it
	// resumes after a crash.
	// +optional
	Carried *CarriedOut `json:"carried,omitempty"`
	// MovedFrom is the state that this one continues, for an object with spec.movedFrom. While that state
	// still exists, it describes the same resource, and is only removed.
	// +optional
	MovedFrom *MovedState `json:"movedFrom,omitempty"`
	// MovingTo is the object that takes the resource over. An Apply writes it before it creates the new state,
	// so that no plan made before can change the resource under its old name.
	// +optional
	MovingTo *MovedState `json:"movingTo,omitempty"`
	// FormerNames are the names that the state had in this namespace. Dependencies of other states use them.
	// +optional
	// +listType=set
	FormerNames []string `json:"formerNames,omitempty"`
}

// AppliedObject is the part of an object by which policies select it.
type AppliedObject struct {
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
}

// MovedState identifies the other state of a move by its object.
type MovedState struct {
	Namespace string `json:"namespace"`
	// Type is the provider's name of the type, and Name the name of the object.
	Type string `json:"type"`
	Name string `json:"name"`
	// UID is the UID of the other state, if it exists already.
	// +optional
	UID string `json:"uid,omitempty"`
}

// HasResource reports whether anything of the resource may exist.
func (s *ResourceStateSpec) HasResource() bool {
	return s.Current != nil || len(s.Deposed) > 0 || s.Pending != nil
}

// StateOwner identifies the object that a state belongs to.
type StateOwner struct {
	Group string `json:"group"`
	Kind  string `json:"kind"`
	Name  string `json:"name"`
	UID   string `json:"uid"`
	// Generation is the last applied generation of the object.
	// +optional
	Generation int64 `json:"generation,omitempty"`
}

// ResourceValue is a resource as its provider reported it.
type ResourceValue struct {
	// SchemaVersion is the version of the schema that Value follows.
	SchemaVersion int64 `json:"schemaVersion"`
	// Value is the complete value, as JSON.
	Value []byte `json:"value"`
	// Private is opaque data of the provider.
	// +optional
	Private []byte `json:"private,omitempty"`
	// Identity is the provider's identity of the resource, as JSON.
	// +optional
	Identity []byte `json:"identity,omitempty"`
	// Sensitive are the paths in Value whose values come from secrets.
	// +optional
	// +listType=atomic
	Sensitive []string `json:"sensitive,omitempty"`
	// Dependencies are the names of the ResourceStates that it was created from: they are deleted after it.
	// +optional
	// +listType=atomic
	Dependencies []string `json:"dependencies,omitempty"`
	// CreateBeforeDestroy states that a replacement is created before the resource is deleted.
	// +optional
	CreateBeforeDestroy bool `json:"createBeforeDestroy,omitempty"`
	// Tainted marks a resource that was created only in part: the next plan replaces it.
	// +optional
	Tainted bool `json:"tainted,omitempty"`
}

// DeposedResource is a replaced predecessor.
type DeposedResource struct {
	// Key identifies a predecessor.
	Key           string `json:"key"`
	ResourceValue `json:",inline"`
}

// PendingChange is written before a provider is called for a change, and removed with the outcome. A change
// that is pending after a crash may have happened.
type PendingChange struct {
	// Apply and ApplyUID identify the Apply; Server is the server that carries it out.
	Apply    string `json:"apply"`
	ApplyUID string `json:"applyUID"`
	Server   string `json:"server"`
	// Call identifies the call of the provider: the same call is never made twice.
	Call string `json:"call"`
	// Action is create, update or delete. Deposed is the key of the predecessor to delete, if it is not the
	// current resource.
	Action string `json:"action"`
	// +optional
	Deposed string           `json:"deposed,omitempty"`
	Since   metav1.MicroTime `json:"since"`
	// Uncertain is true if the Apply has ended without an answer of the provider: whether the change happened
	// has to be checked.
	// +optional
	Uncertain bool `json:"uncertain,omitempty"`
}

// CarriedOut lists the finished steps of one Apply.
type CarriedOut struct {
	ApplyUID string `json:"applyUID"`
	// +optional
	// +listType=map
	// +listMapKey=call
	Steps []CarriedStep `json:"steps,omitempty"`
}

// CarriedStep is a finished step.
type CarriedStep struct {
	// Call identifies the step; it is the provider call's name, if there is a call.
	Call string `json:"call"`
	// Action is the action that was carried out.
	Action string `json:"action"`
	// Problem is the error without secrets; empty after a success.
	// +optional
	Problem string `json:"problem,omitempty"`
}

// StateName returns the name of an object's ResourceState.
func StateName(plural, provider, name string) string {
	full := plural + "." + provider + "." + name
	if len(full) <= validation.DNS1123SubdomainMaxLength {
		return full
	}
	sum := sha256.Sum256([]byte(full))
	end := "-" + hex.EncodeToString(sum[:16])
	return strings.TrimRight(full[:validation.DNS1123SubdomainMaxLength-len(end)], "-.") + end
}
