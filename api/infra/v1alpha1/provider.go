package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Provider is an installed plug-in of OpenTofu or Terraform. Its name becomes the API group that serves its
// types. Creating a Provider makes the servers run a program: whoever has this right can execute code there.
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

// ProviderSpec states which provider to install, from where, and how to run it.
//
// +kubebuilder:validation:XValidation:rule="has(self.origin.development) || (has(self.digests) && size(self.digests) > 0)",message="digests are required: the provider's zh: or h1: digest, as in a lock file of OpenTofu; only origin.development needs none"
// +kubebuilder:validation:XValidation:rule="!has(self.containment) || self.containment != 'None' || (!has(self.files) && !has(self.network))",message="containment None restricts nothing: remove files and network, or set containment to Default"
type ProviderSpec struct {
	// Source names the provider: HOST/NAMESPACE/TYPE as in OpenTofu, or NAMESPACE/TYPE in its registry.
	// +kubebuilder:validation:MinLength=3
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^([A-Za-z0-9.-]+(:[0-9]+)?/)?[A-Za-z0-9_-]+/[A-Za-z0-9_-]+$`
	Source string `json:"source"`
	// Version is the exact version to install.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?$`
	Version string `json:"version"`
	// Digests of the trusted packages, one for each platform that servers run on: "zh:" and the SHA-256 of
	// the zip, or "h1:" and the hash of its content. A package that matches none of them is not run.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=128
	// +kubebuilder:validation:items:Pattern=`^(zh:[0-9a-f]{64}|h1:[A-Za-z0-9+/]{43}=)$`
	Digests []string `json:"digests,omitempty"`
	// Origin is where the package is downloaded from.
	Origin ProviderOrigin `json:"origin"`
	// Types are the resource types and data sources to serve. A name may end with *. Default: all.
	// +optional
	// +listType=set
	// +kubebuilder:default={"*"}
	// +kubebuilder:validation:MaxItems=2048
	// +kubebuilder:validation:items:MaxLength=128
	// +kubebuilder:validation:items:Pattern=`^([a-z0-9_]+\*?|\*)$`
	Types []string `json:"types,omitempty"`
	// Limits on calls of the provider, in each server and for each configuration. ProviderConfigs with equal
	// configurations share them.
	// +optional
	// +kubebuilder:default={}
	Limits ProviderLimits `json:"limits,omitempty"`
	// Process configures the provider's process.
	// +optional
	// +kubebuilder:default={}
	Process ProviderProcess `json:"process,omitempty"`
	// Containment is whether the provider's process is contained. Default lets it reach its own package, its
	// working directory, what programs need of the system (libraries, certificate authorities, name
	// resolution, time zones), and Files; a server that cannot contain it does not run it. None gives it
	// the rights of the server's process: it can read the server's keys.
	// +optional
	// +kubebuilder:default=Default
	Containment ContainmentMode `json:"containment,omitempty"`
	// Files are further files and directories, on each server, that the provider may use.
	// +optional
	// +listType=map
	// +listMapKey=path
	// +kubebuilder:validation:MaxItems=32
	Files []ProviderFile `json:"files,omitempty"`
	// Network limits the provider's connections. Default: no limits.
	// +optional
	Network *ProviderNetwork `json:"network,omitempty"`
}

// ContainmentMode is how a provider's process is contained.
//
// +kubebuilder:validation:Enum=Default;None
type ContainmentMode string

// Modes of containment.
const (
	ContainmentDefault ContainmentMode = "Default"
	ContainmentNone    ContainmentMode = "None"
)

// ProviderFile is a file, or a directory with everything in it.
type ProviderFile struct {
	// Path on each server. It must exist there, must not lead through symbolic links, and must neither
	// contain the server's data directory nor be in it.
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^/`
	// +kubebuilder:validation:XValidation:rule="!self.contains('//') && !self.contains('/./') && !self.contains('/../') && !self.endsWith('/') && !self.endsWith('/.') && !self.endsWith('/..')",message="must be a clean path: without //, . and .. in it, and without / at the end"
	Path string `json:"path"`
	// Access is ReadOnly, which includes running programs, or ReadWrite. The provider's user needs the
	// permission of the file system, too: see status.containment.user.
	// +optional
	// +kubebuilder:default=ReadOnly
	Access FileAccess `json:"access,omitempty"`
}

// FileAccess is what a provider may do with a file or directory.
//
// +kubebuilder:validation:Enum=ReadOnly;ReadWrite
type FileAccess string

// Kinds of access to files.
const (
	FileReadOnly  FileAccess = "ReadOnly"
	FileReadWrite FileAccess = "ReadWrite"
)

// ProviderNetwork limits the connections of a provider.
type ProviderNetwork struct {
	// TCPPorts are the only ports to which the provider can open TCP connections, at any address; none if
	// it is empty. It does not limit UDP. It requires Linux 6.7: status.containment shows whether it is
	// enforced.
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:Minimum=1
	// +kubebuilder:validation:items:Maximum=65535
	TCPPorts []int32 `json:"tcpPorts"`
}

// ProviderOrigin is one place to download from.
//
// +kubebuilder:validation:XValidation:rule="[has(self.filesystemMirror), has(self.networkMirror), has(self.registry), has(self.development)].filter(x, x).size() == 1",message="set exactly one of filesystemMirror, networkMirror, registry and development"
type ProviderOrigin struct {
	// FilesystemMirror is a directory on each server, in OpenTofu's layout.
	// +optional
	FilesystemMirror *FilesystemMirror `json:"filesystemMirror,omitempty"`
	// NetworkMirror is a server of the provider network mirror protocol.
	// +optional
	NetworkMirror *NetworkMirror `json:"networkMirror,omitempty"`
	// Registry is the registry at the source's host.
	// +optional
	Registry *ProviderRegistry `json:"registry,omitempty"`
	// Development runs a program on the server's disk without verification. Servers reject it unless they
	// were started to allow it.
	// +optional
	Development *DevelopmentBinary `json:"development,omitempty"`
}

// FilesystemMirror is a directory of packages.
type FilesystemMirror struct {
	// Path on the server, below a directory that its flags allow.
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

// ProviderRegistry has no options.
type ProviderRegistry struct{}

// DevelopmentBinary is the path of a program.
type DevelopmentBinary struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^/`
	Path string `json:"path"`
}

// ProviderLimits protect a provider and the API behind it from overload.
type ProviderLimits struct {
	// Parallelism is how many calls may reach the provider's API concurrently. The same number of calls that
	// only validate or upgrade, within the provider, may run in addition.
	// +optional
	// +kubebuilder:default=10
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	Parallelism int32 `json:"parallelism,omitempty"`
	// RequestsPerMinute is how many calls in a minute may reach the provider's API; 0 means no limit.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000
	RequestsPerMinute int32 `json:"requestsPerMinute,omitempty"`
	// CallTimeout limits a call that changes nothing. When it expires, the provider's process is killed.
	// +optional
	// +kubebuilder:default="5m"
	CallTimeout metav1.Duration `json:"callTimeout,omitempty"`
	// ApplyTimeout limits a call that changes a resource.
	// +optional
	// +kubebuilder:default="2h"
	ApplyTimeout metav1.Duration `json:"applyTimeout,omitempty"`
}

// ProviderProcess configures a provider's process.
type ProviderProcess struct {
	// IdleTimeout is after what time an idle process is stopped.
	// +optional
	// +kubebuilder:default="5m"
	IdleTimeout metav1.Duration `json:"idleTimeout,omitempty"`
	// CallsBeforeRestart is after how many calls a process is replaced: some providers leak memory with each
	// call.
	// +optional
	// +kubebuilder:default=20000
	// +kubebuilder:validation:Minimum=100
	CallsBeforeRestart int32 `json:"callsBeforeRestart,omitempty"`
	// Environment adds variables to the process's minimal environment. Do not put credentials here: a
	// ProviderConfig takes those from Secrets.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Environment []EnvironmentVariable `json:"environment,omitempty"`
}

// EnvironmentVariable is a variable of the process's environment.
type EnvironmentVariable struct {
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[A-Za-z_][A-Za-z0-9_]*$`
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('TF_') && !self.startsWith('LD_') && self != 'PATH'",message="TF_*, LD_* and PATH are reserved for Atoll"
	Name string `json:"name"`
	// +kubebuilder:validation:MaxLength=4096
	Value string `json:"value"`
}

// ProviderStatus is the observed state of a Provider.
type ProviderStatus struct {
	// ObservedGeneration is the generation of the spec that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Group is the API group that serves its types.
	// +optional
	Group string `json:"group,omitempty"`
	// Digest is the digest of the running content ("h1:…").
	// +optional
	Digest string `json:"digest,omitempty"`
	// Protocol is the version of the plug-in protocol that the provider speaks: 5 or 6.
	// +optional
	Protocol int32 `json:"protocol,omitempty"`
	// ResourceTypes and DataSources count the served types.
	// +optional
	ResourceTypes int32 `json:"resourceTypes,omitempty"`
	// +optional
	DataSources int32 `json:"dataSources,omitempty"`
	// Containment is how the provider is contained on the server that condition Installed names. Other
	// servers can have other kernels.
	// +optional
	Containment *ProviderContainment `json:"containment,omitempty"`
	// Signature names the key whose signature of the package was verified, if any.
	// +optional
	Signature string `json:"signature,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ProviderContainment is how a provider is contained on a server.
type ProviderContainment struct {
	// User is the UID:GID that the provider runs as; empty is the server's own user.
	// +optional
	User string `json:"user,omitempty"`
	// Enforced are the parts that hold: Files, SystemCalls, User (it is not the server's own), Signals,
	// AbstractSockets and TCPPorts.
	// +optional
	// +listType=set
	Enforced []string `json:"enforced,omitempty"`
	// NotEnforced are the parts that the server's kernel or user cannot enforce.
	// +optional
	// +listType=set
	NotEnforced []string `json:"notEnforced,omitempty"`
}

// Condition types and reasons of a Provider.
const (
	// ProviderInstalled: the package is installed and matches a trusted digest.
	ProviderInstalled = "Installed"
	// ProviderServed: its types are served.
	ProviderServed = "Served"
	// ProviderInUse: the Provider is being deleted while objects or states of its types remain.
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
	ReasonNotContained   = "NotContained"
	ReasonServed         = "Served"
	ReasonNotInstalled   = "NotInstalled"
	ReasonNoTypes        = "NoTypes"
	ReasonTypeTaken      = "TypeTaken"
	ReasonGroupTaken     = "GroupTaken"
	ReasonObjectsExist   = "ObjectsExist"
	ReasonStatesExist    = "StatesExist"
)

// ProviderInUseFinalizer keeps a Provider while objects or states of its types are stored: without it they
// could not be read or deleted.
const ProviderInUseFinalizer = Group + "/in-use"

// ProviderConfigFinalizer keeps a ProviderConfig while resources that were created with it exist: without it
// the provider would look for them at its default address.
const ProviderConfigFinalizer = Group + "/resources"

// ProviderConfig configures a provider for a namespace: its endpoint and credentials. Objects use the one
// with the name of their Provider, unless their spec.provider names another.
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
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="the provider of a ProviderConfig is immutable: create another"
	Provider string `json:"provider"`
	// Configuration contains the provider's arguments, under its own names. Any argument takes {secretKeyRef:
	// {name, key}} of this namespace; a sensitive one accepts nothing else.
	// +optional
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	Configuration *runtime.RawExtension `json:"configuration,omitempty"`
}

// ProviderConfigStatus is the observed state of a ProviderConfig.
type ProviderConfigStatus struct {
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Condition types and reasons of a ProviderConfig.
const (
	// ProviderConfigured: the provider accepts this configuration.
	ProviderConfigured = "Configured"
	// ProviderConfigInUse: the ProviderConfig is deleted, but resources that were created with it exist.
	ProviderConfigInUse = "InUse"

	ReasonConfigured        = "Configured"
	ReasonConfigRefused     = "Refused"
	ReasonConfigUnavailable = "Unavailable"
)
