// Package v1alpha1 holds the nouns of infrastructure: the Provider that is
// installed and the ProviderConfig by which it acts, the Plan that says what would be done,
// the Approval of exactly that, the Apply that does it, the SyncPolicy that decides
// when, and the ResourceState of each resource. The resources themselves are kinds
// of their providers, in groups below ProvidersDomain.
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

// Group is the API group of infrastructure. Labels, annotations and finalizers of
// it start with it.
const Group = "infra.atoll.dev"

// Version is the version of the types in this package.
const Version = "v1alpha1"

// ProvidersDomain is below what each provider's kinds are: those of the Provider
// called aws are in aws.providers.atoll.dev.
const ProvidersDomain = "providers.atoll.dev"

// ProvidersVersion is the version of those groups. Providers have versions of
// their schemas, but those are of stored state, not of what people write.
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

// CRDs gives the CustomResourceDefinitions of the group, each as YAML.
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
