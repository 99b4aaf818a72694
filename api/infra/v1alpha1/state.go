package v1alpha1

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// ResourceState is what is known of one resource that a provider made: everything,
// secrets too, which is why it is an object of its own, with its own right to be read.
// Its name is PLURAL.PROVIDER.NAME of the object that it is of. It is Atoll's:
// whoever edits it does what "tofu state push" does.
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
	// Object is whose it is.
	Object StateOwner `json:"object"`
	// Type as the provider calls it.
	Type string `json:"type"`
	// Provider is the name of the Provider, ProviderConfig of the one that made it.
	Provider string `json:"provider"`
	// +optional
	ProviderConfig string `json:"providerConfig,omitempty"`
	// Current is the resource, if there is one.
	// +optional
	Current *ResourceValue `json:"current,omitempty"`
	// Deposed are predecessors that were replaced, and are still to be deleted.
	// +optional
	// +listType=map
	// +listMapKey=key
	Deposed []DeposedResource `json:"deposed,omitempty"`
	// Settled stands for all that the resource was last found to need no change from: what was
	// written, with all values filled in, the provider and its configuration. As long as that
	// is the same, the provider need not be asked again.
	// +optional
	Settled string `json:"settled,omitempty"`
	// Written is what was written when the resource was last made or changed: the object's spec, as JSON. It is what
	// a rollback goes back to.
	// +optional
	Written []byte `json:"written,omitempty"`
	// Refreshed is when the provider was last asked what became of the resource.
	// +optional
	Refreshed *metav1.MicroTime `json:"refreshed,omitempty"`
	// Pending is a change that was begun and of which no end is known.
	// +optional
	Pending *PendingChange `json:"pending,omitempty"`
	// Carried is what the last Apply that changed something of it has carried out, so that it is not carried
	// out again when the Apply goes on after a crash.
	// +optional
	Carried *CarriedOut `json:"carried,omitempty"`
}

// StateOwner is the object that a state is of.
type StateOwner struct {
	Group string `json:"group"`
	Kind  string `json:"kind"`
	Name  string `json:"name"`
	UID   string `json:"uid"`
	// Generation of the object that was last applied.
	// +optional
	Generation int64 `json:"generation,omitempty"`
}

// ResourceValue is a resource as the provider knows it.
type ResourceValue struct {
	// SchemaVersion is that of the form of Value.
	SchemaVersion int64 `json:"schemaVersion"`
	// Value is the whole, as JSON.
	Value []byte `json:"value"`
	// Private is the provider's own.
	// +optional
	Private []byte `json:"private,omitempty"`
	// Identity is what the provider knows it by, as JSON.
	// +optional
	Identity []byte `json:"identity,omitempty"`
	// Sensitive are the paths in Value that got their values from secrets.
	// +optional
	// +listType=atomic
	Sensitive []string `json:"sensitive,omitempty"`
	// Dependencies are the names of the ResourceStates that it was made from: they are
	// deleted after it.
	// +optional
	// +listType=atomic
	Dependencies []string `json:"dependencies,omitempty"`
	// CreateBeforeDestroy is how it is to be replaced.
	// +optional
	CreateBeforeDestroy bool `json:"createBeforeDestroy,omitempty"`
	// Tainted is of one that was not made wholly: the next plan replaces it.
	// +optional
	Tainted bool `json:"tainted,omitempty"`
}

// DeposedResource is one that was replaced.
type DeposedResource struct {
	// Key tells one from another.
	Key           string `json:"key"`
	ResourceValue `json:",inline"`
}

// PendingChange is written before a provider is asked to change something, and taken
// away with the outcome. What is found pending after a crash may have happened.
type PendingChange struct {
	// Apply by name and UID, and the server that carries it out.
	Apply    string `json:"apply"`
	ApplyUID string `json:"applyUID"`
	Server   string `json:"server"`
	// Call names the call of the provider: the same one is never made twice.
	Call string `json:"call"`
	// Action is create, update or delete; Deposed the key of what is deleted, if not the current
	// resource.
	Action string `json:"action"`
	// +optional
	Deposed string           `json:"deposed,omitempty"`
	Since   metav1.MicroTime `json:"since"`
	// Uncertain says that the Apply has ended with it, and that the provider did not say whether it
	// did it: what is there has to be looked for.
	// +optional
	Uncertain bool `json:"uncertain,omitempty"`
}

// CarriedOut is what one Apply has done.
type CarriedOut struct {
	ApplyUID string `json:"applyUID"`
	// +optional
	// +listType=map
	// +listMapKey=call
	Steps []CarriedStep `json:"steps,omitempty"`
}

// CarriedStep is a step that has come to an end.
type CarriedStep struct {
	// Call is how the call of the provider was named; steps that make none have a name, too.
	Call string `json:"call"`
	// Action is what was done.
	Action string `json:"action"`
	// Problem is what went wrong, without secrets; empty if nothing did.
	// +optional
	Problem string `json:"problem,omitempty"`
}

// StateName is what the ResourceState of an object is called.
func StateName(plural, provider, name string) string {
	full := plural + "." + provider + "." + name
	if len(full) <= validation.DNS1123SubdomainMaxLength {
		return full
	}
	sum := sha256.Sum256([]byte(full))
	end := "-" + hex.EncodeToString(sum[:16])
	return strings.TrimRight(full[:validation.DNS1123SubdomainMaxLength-len(end)], "-.") + end
}
