// Package v1alpha1 contains the API types of infrastructure: the Provider to install and its ProviderConfigs,
// the Plan of changes, the Approval of exactly that plan, the Apply that carries it out, the SyncPolicy that
// decides when, and the ResourceState of each resource. The resources themselves are kinds of their
// providers, in groups below ProvidersDomain.
//
// +kubebuilder:object:generate=true
// +groupName=infra.atoll.dev
package v1alpha1

//go:generate go tool controller-gen object paths=. crd:headerFile=crds/header.txt paths=. output:crd:dir=crds

import (
	"embed"
	"io/fs"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Group is the API group of infrastructure, and the prefix of its labels, annotations and finalizers.
const Group = "infra.atoll.dev"

// Version is the version of the types in this package.
const Version = "v1alpha1"

// ProvidersDomain is the parent domain of the providers' groups: kinds of the Provider aws are in
// aws.providers.atoll.dev.
const ProvidersDomain = "providers.atoll.dev"

// ProvidersVersion is the version of those groups. Schema versions of providers concern stored state, not the
// objects that users write.
const ProvidersVersion = "v1"

// The resources of the group, as clients address them.
var (
	ProviderResource          = schema.GroupVersionResource{Group: Group, Version: Version, Resource: "providers"}
	ProviderConfigResource    = schema.GroupVersionResource{Group: Group, Version: Version, Resource: "providerconfigs"}
	PlanResource              = schema.GroupVersionResource{Group: Group, Version: Version, Resource: "plans"}
	ApprovalResource          = schema.GroupVersionResource{Group: Group, Version: Version, Resource: "approvals"}
	ApplyResource             = schema.GroupVersionResource{Group: Group, Version: Version, Resource: "applies"}
	SyncPolicyResource        = schema.GroupVersionResource{Group: Group, Version: Version, Resource: "syncpolicies"}
	ClusterSyncPolicyResource = schema.GroupVersionResource{Group: Group, Version: Version, Resource: "clustersyncpolicies"}
	PlanChangesResource       = schema.GroupVersionResource{Group: Group, Version: Version, Resource: "planchanges"}
	PlanSecretsResource       = schema.GroupVersionResource{Group: Group, Version: Version, Resource: "plansecrets"}
	ResourceStateResource     = schema.GroupVersionResource{Group: Group, Version: Version, Resource: "resourcestates"}
)

//go:embed crds/*.yaml
var crds embed.FS

// CRDs returns the CustomResourceDefinitions of the group, each as YAML.
func CRDs() ([][]byte, error) {
	names, err := fs.Glob(crds, "crds/*.yaml")
	if err != nil {
		return nil, err
	}
	out := make([][]byte, 0, len(names))
	for _, name := range names {
		data, err := crds.ReadFile(name)
		if err != nil {
			return nil, err
		}
		out = append(out, data)
	}
	return out, nil
}
