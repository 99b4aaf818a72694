package apiserver

import (
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/pkg/controlplane"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
	appsrest "k8s.io/kubernetes/pkg/registry/apps/rest"
	autoscalingrest "k8s.io/kubernetes/pkg/registry/autoscaling/rest"
	batchrest "k8s.io/kubernetes/pkg/registry/batch/rest"
	corerest "k8s.io/kubernetes/pkg/registry/core/rest"
	discoveryrest "k8s.io/kubernetes/pkg/registry/discovery/rest"
	networkingrest "k8s.io/kubernetes/pkg/registry/networking/rest"
	noderest "k8s.io/kubernetes/pkg/registry/node/rest"
	policyrest "k8s.io/kubernetes/pkg/registry/policy/rest"
	resourcerest "k8s.io/kubernetes/pkg/registry/resource/rest"
	schedulingrest "k8s.io/kubernetes/pkg/registry/scheduling/rest"
	storagerest "k8s.io/kubernetes/pkg/registry/storage/rest"
)

// resourceConfig enables the resources that upstream enables by default: those of a
// generic control plane or, with the workload APIs, of kube-apiserver. It leaves out
// resources that no workspace can implement.
func resourceConfig(cfg Config) *serverstorage.ResourceConfig {
	return ResourceConfig(cfg.WorkloadAPIs)
}

// ResourceConfig is resourceConfig for servers of other packages, with or without the workload APIs.
func ResourceConfig(workloads bool) *serverstorage.ResourceConfig {
	if !workloads {
		return controlplane.DefaultGenericAPIResourceConfigSource()
	}
	rc := controlplane.DefaultAPIResourceConfigSource()
	rc.DisableResources(
		// Health of a scheduler and a controller manager, which a workspace does not
		// run.
		corev1.SchemeGroupVersion.WithResource("componentstatuses"),
		// The members allocate cluster IPs.
		networkingv1.SchemeGroupVersion.WithResource("servicecidrs"),
		networkingv1.SchemeGroupVersion.WithResource("ipaddresses"),
	)
	return rc
}

// withWorkloads adds upstream's registries of the built-in workload groups to those of
// the generic control plane. The first of those serves the core group; it is replaced
// by one that also serves the core group's workload kinds.
func withWorkloads(
	c *controlplaneapiserver.CompletedConfig,
	client clientset.Interface,
	elsewhere Elsewhere,
	generic []controlplaneapiserver.RESTStorageProvider,
) ([]controlplaneapiserver.RESTStorageProvider, error) {
	authorizer := c.Generic.Authorization.Authorizer
	core := &coreProvider{
		generic:    c.NewCoreGenericConfig(),
		authorizer: authorizer,
		client:     client,
		elsewhere:  elsewhere,
	}
	// The order is that of discovery: if two groups have a resource of the same name,
	// the first gets the short name.
	providers := []controlplaneapiserver.RESTStorageProvider{core}
	for _, p := range generic {
		if p.GroupName() != corev1.GroupName {
			providers = append(providers, p)
		}
	}
	return append(providers, WorkloadProviders(authorizer, client)...), nil
}

// CoreProvider returns upstream's registries of the core group with its workload kinds. A request reaches what its context has elsewhere
// (WithElsewhere).
func CoreProvider(generic *corerest.GenericConfig, authorizer authorizer.Authorizer, client clientset.Interface) controlplaneapiserver.RESTStorageProvider {
	return &coreProvider{generic: generic, authorizer: authorizer, client: client, elsewhere: OfRequest{}}
}

// WorkloadProviders returns upstream's registries of the built-in workload groups, without the core group, in the order of
// discovery.
func WorkloadProviders(authorizer authorizer.Authorizer, client clientset.Interface) []controlplaneapiserver.RESTStorageProvider {
	return []controlplaneapiserver.RESTStorageProvider{
		autoscalingrest.RESTStorageProvider{},
		batchrest.RESTStorageProvider{},
		discoveryrest.StorageProvider{},
		networkingrest.RESTStorageProvider{},
		noderest.RESTStorageProvider{},
		policyrest.RESTStorageProvider{},
		schedulingrest.RESTStorageProvider{},
		withoutAttachments{},
		appsrest.StorageProvider{},
		resourcerest.RESTStorageProvider{NamespaceClient: client.CoreV1().Namespaces(), Authorizer: authorizer},
	}
}

// withoutAttachments serves the storage group without VolumeAttachments: volumes are
// attached in the members, where the nodes are. Upstream opens their storage even if
// they are disabled, and would never close it.
type withoutAttachments struct {
	storagerest.RESTStorageProvider
}

func (p withoutAttachments) NewRESTStorage(rc serverstorage.APIResourceConfigSource, opts generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error) {
	info, err := p.RESTStorageProvider.NewRESTStorage(rc, opts)
	for _, resources := range info.VersionedResourcesStorageMap {
		for _, path := range []string{"volumeattachments", "volumeattachments/status"} {
			if storage := resources[path]; storage != nil {
				storage.Destroy()
				delete(resources, path)
			}
		}
	}
	return info, err
}

// addWorkloadPriorities sets the order of the workload groups in the aggregator's
// discovery: kube-apiserver's, so that kubectl resolves a short name here as it does
// there. The aggregator would not register a missing group at all.
func addWorkloadPriorities(p map[schema.GroupVersion]controlplaneapiserver.APIServicePriority) {
	for gv, priority := range map[schema.GroupVersion]controlplaneapiserver.APIServicePriority{
		{Group: "apps", Version: "v1"}:              {Group: 17800, Version: 15},
		{Group: "autoscaling", Version: "v1"}:       {Group: 17500, Version: 15},
		{Group: "autoscaling", Version: "v2"}:       {Group: 17500, Version: 30},
		{Group: "batch", Version: "v1"}:             {Group: 17400, Version: 15},
		{Group: "networking.k8s.io", Version: "v1"}: {Group: 17200, Version: 15},
		{Group: "policy", Version: "v1"}:            {Group: 17100, Version: 15},
		{Group: "storage.k8s.io", Version: "v1"}:    {Group: 16800, Version: 15},
		{Group: "scheduling.k8s.io", Version: "v1"}: {Group: 16600, Version: 15},
		{Group: "node.k8s.io", Version: "v1"}:       {Group: 16300, Version: 15},
		{Group: "resource.k8s.io", Version: "v1"}:   {Group: 16200, Version: 21},
	} {
		p[gv] = priority
	}
}
