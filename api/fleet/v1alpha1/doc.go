// Package v1alpha1 has the API types of the fleet. A Cluster is a registered member. A
// ResourceBinding is where one object runs, why, and each cluster's report. Placement and
// ClusterPlacement are the policies for that. A FleetQuota limits what a namespace uses. A SharedAPI
// makes clusters serve API groups of the control plane. An APIResourceImport is a type as one
// cluster serves it, a NegotiatedAPIResource is the type that all clusters accept, and a TypePolicy
// publishes it. A ClusterTaintPolicy adds taints to Clusters while conditions hold. A ScaleSchedule
// sets replicas and bounds of autoscalers at certain times. A VolumePolicy says whether objects with volumes of
// some StorageClasses may move.
//
// +kubebuilder:object:generate=true
// +groupName=fleet.atoll.dev
package v1alpha1

//go:generate go tool controller-gen object paths=. crd:headerFile=crds/header.txt paths=. output:crd:dir=crds

import (
	"embed"
	"io/fs"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Group is the API group of the fleet. Labels, annotations and finalizers of
// the fleet start with it.
const Group = "fleet.atoll.dev"

// Version is the version of the types in this package.
const Version = "v1alpha1"

// The resources of the group.
var (
	ClusterResource                = schema.GroupVersionResource{Group: Group, Version: Version, Resource: "clusters"}
	ClusterTaintPolicyResource     = schema.GroupVersionResource{Group: Group, Version: Version, Resource: "clustertaintpolicies"}
	ClusterResourceBindingResource = schema.GroupVersionResource{Group: Group, Version: Version, Resource: "clusterresourcebindings"}
	ResourceBindingResource        = schema.GroupVersionResource{Group: Group, Version: Version, Resource: "resourcebindings"}
	ResourceInterpretationResource = schema.GroupVersionResource{Group: Group, Version: Version, Resource: "resourceinterpretations"}
	SharedAPIResource              = schema.GroupVersionResource{Group: Group, Version: Version, Resource: "sharedapis"}

	APIResourceImportResource     = schema.GroupVersionResource{Group: Group, Version: Version, Resource: "apiresourceimports"}
	NegotiatedAPIResourceResource = schema.GroupVersionResource{Group: Group, Version: Version, Resource: "negotiatedapiresources"}
	TypePolicyResource            = schema.GroupVersionResource{Group: Group, Version: Version, Resource: "typepolicies"}

	ScaleScheduleResource    = schema.GroupVersionResource{Group: Group, Version: Version, Resource: "scaleschedules"}
	FleetQuotaResource       = schema.GroupVersionResource{Group: Group, Version: Version, Resource: "fleetquotas"}
	PlacementResource        = schema.GroupVersionResource{Group: Group, Version: Version, Resource: "placements"}
	ClusterPlacementResource = schema.GroupVersionResource{Group: Group, Version: Version, Resource: "clusterplacements"}
	VolumePolicyResource     = schema.GroupVersionResource{Group: Group, Version: Version, Resource: "volumepolicies"}
)

//go:embed crds/*.yaml
var crds embed.FS

// RootResources are the resources of the group that only the root has, and no workspace.
var RootResources = []schema.GroupVersionResource{SharedAPIResource, FleetQuotaResource, APIResourceImportResource, NegotiatedAPIResourceResource, TypePolicyResource}

// CRDs returns the CustomResourceDefinitions of the group, each as YAML.
func CRDs() ([][]byte, error) { return crdsWithout(nil) }

// WorkspaceCRDs returns the CustomResourceDefinitions of the group that workspaces have, each as YAML.
func WorkspaceCRDs() ([][]byte, error) { return crdsWithout(RootResources) }

func crdsWithout(omitted []schema.GroupVersionResource) ([][]byte, error) {
	names, err := fs.Glob(crds, "crds/*.yaml")
	if err != nil {
		return nil, err
	}
	out := make([][]byte, 0, len(names))
	for _, name := range names {
		if slices.ContainsFunc(omitted, func(r schema.GroupVersionResource) bool { return name == "crds/"+Group+"_"+r.Resource+".yaml" }) {
			continue
		}
		data, err := crds.ReadFile(name)
		if err != nil {
			return nil, err
		}
		out = append(out, data)
	}
	return out, nil
}
