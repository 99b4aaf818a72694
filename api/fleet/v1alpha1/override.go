package v1alpha1

import "k8s.io/apimachinery/pkg/runtime"

// OverridePolicy changes objects for certain clusters.
type OverridePolicy struct {
	// Clusters that it applies to; all if omitted.
	// +optional
	Clusters *ClusterSelector `json:"clusters,omitempty"`
	// Kinds of objects that it applies to, as in a policy's selector; all objects of the policy if
	// omitted.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=317
	Kinds []string `json:"kinds,omitempty"`
	// Replicas in such a cluster: the share of a divided object, or the count of a duplicated one.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Replicas *int32 `json:"replicas,omitempty"`

	Override `json:",inline"`
}

// Override is a change of an object for a cluster. Images are applied first, then variables, then
// the patch, and then the patches of texts.
type Override struct {
	// Images replaces parts of the images of all containers.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Images []ImageOverride `json:"images,omitempty"`
	// Env sets variables in containers.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=128
	Env []EnvOverride `json:"env,omitempty"`
	// JSONPatch is RFC 6902, for the object as the cluster would get it. Its identity (kind, name,
	// namespace) cannot change.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	JSONPatch []PatchOperation `json:"jsonPatch,omitempty"`
	// Text patches the contents of fields whose text is JSON or YAML, such as the files in a ConfigMap.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Text []TextOverride `json:"text,omitempty"`
}

// TextOverride patches the JSON or YAML in the text of a field.
type TextOverride struct {
	// Path of the field as in RFC 6901, with ~1 for / in a key: /data/app.yaml. In a Secret, the text in
	// /data is decoded first, and encoded again.
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^(/[^/]*)+$`
	// +kubebuilder:validation:XValidation:rule="self.startsWith('/metadata/annotations/') || !(self.startsWith('/metadata') || self.startsWith('/status') || self.startsWith('/kind') || self.startsWith('/apiVersion'))",message="the identity and status of an object cannot be overridden; in metadata, only annotations can"
	Path string `json:"path"`
	// JSONPatch is RFC 6902, for the content. Its paths begin at the top of the content. YAML is written
	// again, without its comments.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	JSONPatch []TextOperation `json:"jsonPatch"`
}

// TextOperation is one operation of RFC 6902 in a text.
//
// +kubebuilder:validation:XValidation:rule="(self.op in ['move', 'copy']) == has(self.from)",message="from is required for move and copy, and not allowed for other operations"
type TextOperation struct {
	// +kubebuilder:validation:Enum=add;remove;replace;move;copy;test
	Op string `json:"op"`
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^(/[^/]*)+$`
	Path string `json:"path"`
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^(/[^/]*)+$`
	From string `json:"from,omitempty"`
	// Value for add, replace and test. It can have any type.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Schemaless
	Value *runtime.RawExtension `json:"value,omitempty"`
}

// ImageOverride replaces parts of image names: registry/repository:tag.
//
// +kubebuilder:validation:XValidation:rule="has(self.registry) || has(self.repository) || has(self.tag)",message="set registry, repository or tag"
type ImageOverride struct {
	// Image selects images by registry (docker.io), repository (library/nginx) or both
	// (docker.io/library/nginx); all images if omitted. Images without a registry are in docker.io,
	// as usual.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Image string `json:"image,omitempty"`
	// Registry to use instead: registry.eu.example.com:5000/mirror.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Registry string `json:"registry,omitempty"`
	// Repository to use instead.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Repository string `json:"repository,omitempty"`
	// Tag to use instead of the tag or digest.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	Tag string `json:"tag,omitempty"`
}

// EnvOverride sets an environment variable.
type EnvOverride struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// +optional
	// +kubebuilder:validation:MaxLength=32768
	Value string `json:"value,omitempty"`
	// Containers that get it; all, including init containers, if omitted.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=63
	Containers []string `json:"containers,omitempty"`
}

// PatchOperation is one operation of RFC 6902.
//
// +kubebuilder:validation:XValidation:rule="(self.op in ['move', 'copy']) == has(self.from)",message="from is required for move and copy, and not allowed for other operations"
type PatchOperation struct {
	// +kubebuilder:validation:Enum=add;remove;replace;move;copy;test
	Op string `json:"op"`
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^(/[^/]*)+$`
	// +kubebuilder:validation:XValidation:rule="self.startsWith('/metadata/labels') || self.startsWith('/metadata/annotations') || !(self.startsWith('/metadata') || self.startsWith('/status') || self.startsWith('/kind') || self.startsWith('/apiVersion'))",message="the identity and status of an object cannot be overridden; in metadata, only labels and annotations can"
	Path string `json:"path"`
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^(/[^/]*)+$`
	From string `json:"from,omitempty"`
	// Value for add, replace and test. It can have any type.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Schemaless
	Value *runtime.RawExtension `json:"value,omitempty"`
}
