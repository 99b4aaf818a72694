package interpret

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Kinds returns the built-in table, dependencies first. Applied in this order, no object waits for
// a later one.
func Kinds() []KindInfo {
	kinds := slices.Concat(clusterKinds(), configKinds(), networkKinds(), workloadKinds(), companionKinds(), gatewayKinds(), admissionKinds())
	for i := range kinds {
		kinds[i].Origin = OriginBuiltIn
	}
	return kinds
}

func kind(group, version, name string) schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: group, Version: version, Kind: name}
}

// API groups of rows and references.
const (
	appsGroup       = "apps"
	batchGroup      = "batch"
	rbacGroup       = "rbac.authorization.k8s.io"
	networkingGroup = "networking.k8s.io"
	gatewayGroup    = "gateway.networking.k8s.io"
	storageGroup    = "storage.k8s.io"
	schedulingGroup = "scheduling.k8s.io"
	nodeGroup       = "node.k8s.io"
	crdGroup        = "apiextensions.k8s.io"
	admissionGroup  = "admissionregistration.k8s.io"
	discoveryGroup  = "discovery.k8s.io"
	importsGroup    = "multicluster.x-k8s.io"
)

// clusterKinds are cluster-scoped, and follow the objects that need them.
func clusterKinds() []KindInfo {
	return []KindInfo{
		{GroupVersionKind: kind(crdGroup, "v1", "CustomResourceDefinition"), Resource: "customresourcedefinitions", ClusterScoped: true, KeepsData: true,
			health: definitionHealth, properties: definitionProperties, notGenerated: true, // its status here concerns only this control plane
			Descriptions: Descriptions{Health: "condition `Established`"}},
		{GroupVersionKind: kind(schedulingGroup, "v1", "PriorityClass"), Resource: "priorityclasses", ClusterScoped: true, notGenerated: true},
		{GroupVersionKind: kind(nodeGroup, "v1", "RuntimeClass"), Resource: "runtimeclasses", ClusterScoped: true, notGenerated: true},
		{GroupVersionKind: kind(storageGroup, "v1", "StorageClass"), Resource: "storageclasses", ClusterScoped: true,
			needs: storageClassNeeds, notGenerated: true,
			Descriptions: Descriptions{Needs: "the Secrets in its parameters"}},
		{GroupVersionKind: kind(networkingGroup, "v1", "IngressClass"), Resource: "ingressclasses", ClusterScoped: true, Configuration: true,
			needs:        ingressClassNeeds,
			Descriptions: Descriptions{Needs: "its parameters object"}},
		{GroupVersionKind: kind(gatewayGroup, "v1", "GatewayClass"), Resource: "gatewayclasses", ClusterScoped: true, Custom: true,
			needs: gatewayClassNeeds, health: conditionsHealth, aggregate: aggregateGeneric,
			Descriptions: Descriptions{Needs: "its parameters object, its CustomResourceDefinition", Health: wordsConditions, Status: wordsGeneric}},
		{GroupVersionKind: kind("", "v1", "PersistentVolume"), Resource: "persistentvolumes", ClusterScoped: true, KeepsData: true,
			needs: volumeObjectNeeds, follows: volumeFollows, share: shareVolume, health: volumeHealth, aggregate: aggregateVolume, notGenerated: true,
			Descriptions: Descriptions{Needs: "its StorageClass, the Secrets of its driver", Follows: "the claim in `claimRef`; its StorageClass",
				Left: "`uid` and `resourceVersion` of `claimRef`", Health: "phase", Status: "the worst phase"}},
		{GroupVersionKind: kind(rbacGroup, "v1", "ClusterRole"), Resource: "clusterroles", ClusterScoped: true,
			needs: roleNeeds, follows: clusterRoleFollows, chooses: clusterRoleChooses, properties: ownLabels, prepare: prepareClusterRole, notGenerated: true,
			Descriptions: Descriptions{Needs: wordsRoleNeeds + "; the ClusterRoles that it aggregates",
				Follows: "if it is aggregated to `admin`, `edit` or `view`, those CustomResourceDefinitions", Left: "`rules` of an aggregated role"}},
		{GroupVersionKind: kind(rbacGroup, "v1", "ClusterRoleBinding"), Resource: "clusterrolebindings", ClusterScoped: true,
			needs: roleBindingNeeds, follows: subjectsFollows, notGenerated: true,
			Descriptions: Descriptions{Needs: "its ClusterRole", Follows: wordsSubjects}},
	}
}

const wordsRoleNeeds = "the CustomResourceDefinitions of the resources that its rules may write, or read if they have no status; of a whole group with `*`"

const wordsSubjects = "the ServiceAccounts among its subjects"

// configKinds are the configuration and the permissions of workloads.
func configKinds() []KindInfo {
	return []KindInfo{
		{GroupVersionKind: kind("", "v1", "ServiceAccount"), Resource: "serviceaccounts", Configuration: true,
			needs: serviceAccountNeeds, prepare: prepareServiceAccount, notGenerated: true,
			Descriptions: Descriptions{Needs: "its Secrets", Left: "`secrets`"}},
		{GroupVersionKind: kind("", "v1", "ConfigMap"), Resource: "configmaps", Configuration: true, Opaque: true, notGenerated: true},
		{GroupVersionKind: kind("", "v1", "Secret"), Resource: "secrets", Configuration: true, notGenerated: true},
		{GroupVersionKind: kind("", "v1", "PersistentVolumeClaim"), Resource: "persistentvolumeclaims", KeepsData: true,
			needs: claimNeeds, prepare: prepareClaim, health: claimHealth, aggregate: aggregateClaim, notGenerated: true,
			Descriptions: Descriptions{Needs: "its StorageClass, its PersistentVolume", Left: "`volumeName` and annotations of the cluster where it was bound",
				Health: "phase", Status: "the worst phase; capacity of the first cluster"}},
		{GroupVersionKind: kind("", "v1", "LimitRange"), Resource: "limitranges", follows: everyWorkload, notGenerated: true,
			Descriptions: Descriptions{Follows: wordsEveryWorkload}},
		{GroupVersionKind: kind("", "v1", "ResourceQuota"), Resource: "resourcequotas", follows: everyWorkload, notGenerated: true,
			Descriptions: Descriptions{Follows: wordsEveryWorkload + "; it applies in each cluster separately"}},
		{GroupVersionKind: kind(rbacGroup, "v1", "Role"), Resource: "roles", Configuration: true, needs: roleNeeds, chooses: roleChooses, notGenerated: true,
			Descriptions: Descriptions{Needs: wordsRoleNeeds}},
		{GroupVersionKind: kind(rbacGroup, "v1", "RoleBinding"), Resource: "rolebindings", Configuration: true,
			needs: roleBindingNeeds, follows: subjectsFollows, notGenerated: true,
			Descriptions: Descriptions{Needs: "its Role or ClusterRole", Follows: wordsSubjects}},
	}
}

const wordsEveryWorkload = "every workload of its namespace"

// networkKinds determine how workloads are reached inside a cluster, and by which clients.
func networkKinds() []KindInfo {
	return []KindInfo{
		{GroupVersionKind: kind(networkingGroup, "v1", "NetworkPolicy"), Resource: "networkpolicies", Configuration: true, follows: networkPolicyFollows,
			Descriptions: Descriptions{Follows: "the workloads whose pods it selects"}},
		{GroupVersionKind: kind("", "v1", "Service"), Resource: "services", Configuration: true,
			follows: serviceFollows, prepare: prepareService, written: writtenService, health: serviceHealth, aggregate: aggregateService, notGenerated: true,
			Descriptions: Descriptions{Follows: "the workloads whose pods it selects; without a selector, " + wordsEveryWorkload,
				Left:   "`clusterIP` and node ports, unless the author set them",
				Health: "has an address, if it is a `LoadBalancer`", Status: "addresses of all clusters that answer"}},
		{GroupVersionKind: kind("", "v1", "Endpoints"), Resource: "endpoints", follows: endpointsFollows, prepare: prepareEndpoints, notGenerated: true,
			Descriptions: Descriptions{Follows: "the Service of its name", Left: "`targetRef`, `nodeName`"}},
		{GroupVersionKind: kind(discoveryGroup, "v1", "EndpointSlice"), Resource: "endpointslices", follows: endpointSliceFollows,
			Descriptions: Descriptions{Follows: "the Service in its label"}},
		{GroupVersionKind: kind(importsGroup, "v1beta1", "ServiceImport"), Resource: "serviceimports", Custom: true,
			follows: importFollows, share: shareImport,
			Descriptions: Descriptions{Follows: "the Service that is derived from it; only to clusters that serve its type", Left: "`ips`"}},
	}
}
