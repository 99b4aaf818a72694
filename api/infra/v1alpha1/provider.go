package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Provider is a plug-in of OpenTofu or Terraform that is installed. Its name is
// that of the group in which its types are served. Creating one has the servers run
// a program: who may, may execute code there.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,path=providers,singular=provider,categories=infra
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$')",message="the name becomes part of an API group: at most 40 lower-case letters, digits and dashes, beginning with a letter"
// +kubebuilder:printcolumn:name="Source",type=string,JSONPath=`.spec.source`
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.spec.version`
// +kubebuilder:printcolumn:name="Installed",type=string,JSONPath=`.status.conditions[?(@.type=="Installed")].status`
// +kubebuilder:printcolumn:name="Served",type=string,JSONPath=`.status.conditions[?(@.type=="Served")].status`
// +kubebuilder:printcolumn:name="Types",type=integer,JSONPath=`.status.resourceTypes`
// +kubebuilder:printcolumn:name="Reason",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Installed")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Provider struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ProviderSpec `json:"spec"`
	// +optional
	Status ProviderStatus `json:"status,omitempty"`
}

// ProviderList is a list of Providers.
//
// +kubebuilder:object:root=true
type ProviderList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Provider `json:"items"`
}

// ProviderSpec is which provider, where it comes from, and how it may act.
//
// +kubebuilder:validation:XValidation:rule="has(self.origin.development) || (has(self.digests) && size(self.digests) > 0)",message="digests are required: the provider's zh: or h1: digest, as in a lock file of OpenTofu; only origin.development goes without"
type ProviderSpec struct {
	// Source names the provider: HOST/NAMESPACE/TYPE, as OpenTofu does, or
	// NAMESPACE/TYPE of its registry.
	// +kubebuilder:validation:MinLength=3
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^([A-Za-z0-9.-]+(:[0-9]+)?/)?[A-Za-z0-9_-]+/[A-Za-z0-9_-]+$`
	Source string `json:"source"`
	// Version is exactly the one to install.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?$`
	Version string `json:"version"`
	// Digests of the packages that are trusted, one for each platform that servers run on: "zh:" and the
	// SHA-256 of the zip, or "h1:" and the hash of its content. What matches none of
	// them is not run.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=128
	// +kubebuilder:validation:items:Pattern=`^(zh:[0-9a-f]{64}|h1:[A-Za-z0-9+/]{43}=)$`
	Digests []string `json:"digests,omitempty"`
	// Origin is where the package comes from.
	Origin ProviderOrigin `json:"origin"`
	// Types are the resource types and data sources that are served: names, of which
	// the last character may be a *. All, unless said.
	// +optional
	// +listType=set
	// +kubebuilder:default={"*"}
	// +kubebuilder:validation:MaxItems=2048
	// +kubebuilder:validation:items:MaxLength=128
	// +kubebuilder:validation:items:Pattern=`^([a-z0-9_]+\*?|\*)$`
	Types []string `json:"types,omitempty"`
	// Limits on what is asked of the provider, in each server and for each
	// ProviderConfig.
	// +optional
	// +kubebuilder:default={}
	Limits ProviderLimits `json:"limits,omitempty"`
	// Process is how its program is run.
	// +optional
	// +kubebuilder:default={}
	Process ProviderProcess `json:"process,omitempty"`
}

// ProviderOrigin is one place.
//
// +kubebuilder:validation:XValidation:rule="[has(self.filesystemMirror), has(self.networkMirror), has(self.registry), has(self.development)].filter(x, x).size() == 1",message="name exactly one of filesystemMirror, networkMirror, registry and development"
type ProviderOrigin struct {
	// FilesystemMirror is a directory on each server, laid out as OpenTofu's.
	// +optional
	FilesystemMirror *FilesystemMirror `json:"filesystemMirror,omitempty"`
	// NetworkMirror speaks the provider network mirror protocol.
	// +optional
	NetworkMirror *NetworkMirror `json:"networkMirror,omitempty"`
	// Registry is the one that the source's host leads to.
	// +optional
	Registry *ProviderRegistry `json:"registry,omitempty"`
	// Development runs a program that lies on the server, unchecked. Servers refuse it
	// unless they were started to allow it.
	// +optional
	Development *DevelopmentBinary `json:"development,omitempty"`
}

// FilesystemMirror is a directory of packages.
type FilesystemMirror struct {
	// Path on the server, below one that it was started to allow.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^/`
	Path string `json:"path"`
}

// NetworkMirror is a server of packages.
type NetworkMirror struct {
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^https://`
	URL string `json:"url"`
}

// ProviderRegistry has nothing to be said.
type ProviderRegistry struct{}

// DevelopmentBinary is a program.
type DevelopmentBinary struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^/`
	Path string `json:"path"`
}

// ProviderLimits keep a provider, and what it calls, from being overrun.
type ProviderLimits struct {
	// Parallelism is how many calls there are at a time that can reach what the provider manages.
	// Beside them there are as many that validate or upgrade, which a provider does by itself.
	// +optional
	// +kubebuilder:default=10
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	Parallelism int32 `json:"parallelism,omitempty"`
	// RequestsPerMinute is how many calls there are in a minute that can reach what the provider
	// manages; 0 is without a bound.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000
	RequestsPerMinute int32 `json:"requestsPerMinute,omitempty"`
	// CallTimeout is how long a call that changes nothing may take: then the provider's process
	// is ended.
	// +optional
	// +kubebuilder:default="5m"
	CallTimeout metav1.Duration `json:"callTimeout,omitempty"`
	// ApplyTimeout is how long a change may take.
	// +optional
	// +kubebuilder:default="2h"
	ApplyTimeout metav1.Duration `json:"applyTimeout,omitempty"`
}

// ProviderProcess is how a provider's program is run.
type ProviderProcess struct {
	// IdleTimeout is when a process is stopped that nobody asks anything.
	// +optional
	// +kubebuilder:default="5m"
	IdleTimeout metav1.Duration `json:"idleTimeout,omitempty"`
	// CallsBeforeRestart is after how many calls a process is replaced: some lose
	// memory with every one.
	// +optional
	// +kubebuilder:default=20000
	// +kubebuilder:validation:Minimum=100
	CallsBeforeRestart int32 `json:"callsBeforeRestart,omitempty"`
	// Environment is what the process finds in its environment besides the least that a
	// program needs. It is no place for credentials: a ProviderConfig takes those from Secrets.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Environment []EnvironmentVariable `json:"environment,omitempty"`
}

// EnvironmentVariable is one of a process.
type EnvironmentVariable struct {
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[A-Za-z_][A-Za-z0-9_]*$`
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('TF_') && !self.startsWith('LD_') && self != 'PATH'",message="TF_*, LD_* and PATH are Atoll's to set"
	Name string `json:"name"`
	// +kubebuilder:validation:MaxLength=4096
	Value string `json:"value"`
}

// ProviderStatus is what became of it.
type ProviderStatus struct {
	// ObservedGeneration is the spec that this is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Group is where its types are served.
	// +optional
	Group string `json:"group,omitempty"`
	// Digest is that of the content that runs ("h1:…").
	// +optional
	Digest string `json:"digest,omitempty"`
	// Protocol is the version of the plug-in protocol that it speaks: 5 or 6.
	// +optional
	Protocol int32 `json:"protocol,omitempty"`
	// ResourceTypes and DataSources are how many of them are served.
	// +optional
	ResourceTypes int32 `json:"resourceTypes,omitempty"`
	// +optional
	DataSources int32 `json:"dataSources,omitempty"`
	// Signature says whose signature of the package was found to be good, if any.
	// +optional
	Signature string `json:"signature,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Conditions of a Provider, and why they are as they are.
const (
	// ProviderInstalled: its files are there, and are those that were trusted.
	ProviderInstalled = "Installed"
	// ProviderServed: its types are served.
	ProviderServed = "Served"
	// ProviderInUse is of a Provider that is to be deleted: what of its types is still there.
	ProviderInUse = "InUse"

	ReasonInstalled      = "Installed"
	ReasonInstalling     = "Installing"
	ReasonInvalid        = "Invalid"
	ReasonNotFound       = "NotFound"
	ReasonDigestMismatch = "DigestMismatch"
	ReasonBadPackage     = "BadPackage"
	ReasonUnreachable    = "Unreachable"
	ReasonNotAllowed     = "NotAllowed"
	ReasonDoesNotStart   = "DoesNotStart"
	ReasonServed         = "Served"
	ReasonNotInstalled   = "NotInstalled"
	ReasonNoTypes        = "NoTypes"
	ReasonTypeTaken      = "TypeTaken"
	ReasonGroupTaken     = "GroupTaken"
	ReasonObjectsExist   = "ObjectsExist"
	ReasonStatesExist    = "StatesExist"
)

// ProviderInUseFinalizer keeps a Provider as long as objects or states of its types are stored:
// without it nobody could read or delete them.
const ProviderInUseFinalizer = Group + "/in-use"

// ProviderConfig is how a provider acts for a namespace: where, and as whom.
// Objects use the one that is called like their Provider unless their spec.provider
// names another.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,path=providerconfigs,singular=providerconfig,categories=infra
// +kubebuilder:printcolumn:name="Provider",type=string,JSONPath=`.spec.provider`
// +kubebuilder:printcolumn:name="Configured",type=string,JSONPath=`.status.conditions[?(@.type=="Configured")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Configured")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ProviderConfig struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ProviderConfigSpec `json:"spec"`
	// +optional
	Status ProviderConfigStatus `json:"status,omitempty"`
}

// ProviderConfigList is a list of ProviderConfigs.
//
// +kubebuilder:object:root=true
type ProviderConfigList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ProviderConfig `json:"items"`
}

// ProviderConfigSpec is a provider's configuration.
type ProviderConfigSpec struct {
	// Provider is the name of the Provider.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=40
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="the provider of a ProviderConfig does not change: make another"
	Provider string `json:"provider"`
	// Configuration is what the provider is configured with, under its own names. Any
	// argument takes {secretKeyRef: {name, key}} of this namespace; a sensitive one nothing else.
	// +optional
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	Configuration *runtime.RawExtension `json:"configuration,omitempty"`
}

// ProviderConfigStatus is what the provider says to it.
type ProviderConfigStatus struct {
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Conditions of a ProviderConfig, and why they are as they are.
const (
	// ProviderConfigured: the provider takes this configuration.
	ProviderConfigured = "Configured"

	ReasonConfigured        = "Configured"
	ReasonConfigRefused     = "Refused"
	ReasonConfigUnavailable = "Unavailable"
)
