package apiserver

import (
	"fmt"
	"maps"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	clientset "k8s.io/client-go/kubernetes"
	api "k8s.io/kubernetes/pkg/apis/core"
	kubeletclient "k8s.io/kubernetes/pkg/kubelet/client"
	endpointstore "k8s.io/kubernetes/pkg/registry/core/endpoint/storage"
	eventstore "k8s.io/kubernetes/pkg/registry/core/event/storage"
	limitrangestore "k8s.io/kubernetes/pkg/registry/core/limitrange/storage"
	nodestore "k8s.io/kubernetes/pkg/registry/core/node/storage"
	pvstore "k8s.io/kubernetes/pkg/registry/core/persistentvolume/storage"
	pvcstore "k8s.io/kubernetes/pkg/registry/core/persistentvolumeclaim/storage"
	podstore "k8s.io/kubernetes/pkg/registry/core/pod/storage"
	podtemplatestore "k8s.io/kubernetes/pkg/registry/core/podtemplate/storage"
	rcstore "k8s.io/kubernetes/pkg/registry/core/replicationcontroller/storage"
	corerest "k8s.io/kubernetes/pkg/registry/core/rest"
	servicestore "k8s.io/kubernetes/pkg/registry/core/service/storage"
)

// coreProvider serves the core group: the part that a pure control plane has, and
// upstream's registries of the workload kinds.
type coreProvider struct {
	generic    *corerest.GenericConfig
	authorizer authorizer.Authorizer
	client     clientset.Interface
	elsewhere  Elsewhere // may be nil
}

func (p *coreProvider) GroupName() string { return p.generic.GroupName() }

func (p *coreProvider) NewRESTStorage(rc serverstorage.APIResourceConfigSource, opts generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error) {
	info, err := p.generic.NewRESTStorage(rc, opts)
	if err != nil {
		return info, err
	}
	workloads, err := p.workloadStorage(opts)
	if err != nil {
		return info, fmt.Errorf("open the storage of the core workload kinds: %w", err)
	}
	core := info.VersionedResourcesStorageMap["v1"]
	if core == nil {
		core = map[string]rest.Storage{}
		info.VersionedResourcesStorageMap["v1"] = core
	}
	if events, ok := core["events"].(*eventstore.REST); ok && p.elsewhere != nil {
		core["events"] = newEventsElsewhere(events, p.elsewhere)
	}
	for path, storage := range workloads {
		if rc.ResourceEnabled(corev1.SchemeGroupVersion.WithResource(path)) {
			core[path] = storage
		} else {
			storage.Destroy()
		}
	}
	return info, nil
}

// workloadStorage maps each resource and subresource to its storage.
func (p *coreProvider) workloadStorage(opts generic.RESTOptionsGetter) (map[string]rest.Storage, error) {
	// The API server does not connect to nodes. The transport is never used, because
	// all requests that would use it are rejected (pod_subresources.go).
	var noTransport http.RoundTripper

	nodes, err := nodestore.NewStorage(opts, kubeletclient.KubeletClientConfig{}, noTransport)
	if err != nil {
		return nil, err
	}
	pods, err := podstore.NewStorage(opts, nodes.KubeletConnectionInfo, noTransport, p.client.PolicyV1(), p.authorizer)
	if err != nil {
		return nil, err
	}
	endpoints, err := endpointstore.NewREST(opts)
	if err != nil {
		return nil, err
	}
	services, serviceStatus, serviceProxy, err := servicestore.NewREST(opts, api.IPv4Protocol, nil, noPorts{}, endpoints, pods.Pod, noTransport)
	if err != nil {
		return nil, err
	}
	podTemplates, err := podtemplatestore.NewREST(opts)
	if err != nil {
		return nil, err
	}
	limitRanges, err := limitrangestore.NewREST(opts)
	if err != nil {
		return nil, err
	}
	volumes, volumeStatus, err := pvstore.NewREST(opts)
	if err != nil {
		return nil, err
	}
	claims, claimStatus, err := pvcstore.NewREST(opts)
	if err != nil {
		return nil, err
	}
	controllers, err := rcstore.NewStorage(opts)
	if err != nil {
		return nil, err
	}

	storage := map[string]rest.Storage{
		"pods":                     pods.Pod,
		"pods/status":              pods.Status,
		"pods/binding":             pods.Binding,
		"pods/eviction":            pods.Eviction,
		"pods/ephemeralcontainers": pods.EphemeralContainers,
		"pods/resize":              pods.Resize,
		"pods/log":                 refusedLog{pods.Log},
		"pods/exec":                refusedExec{pods.Exec},
		"pods/attach":              refusedAttach{pods.Attach},
		"pods/portforward":         refusedPortForward{pods.PortForward},
		"pods/proxy":               refusedPodProxy{pods.Proxy},
		"bindings":                 pods.LegacyBinding,

		"services":        ownServices(services, endpoints),
		"services/status": serviceStatus,
		"services/proxy":  refusedServiceProxy{serviceProxy, services},
		"endpoints":       endpoints,

		"nodes":        nodes.Node,
		"nodes/status": nodes.Status,
		"nodes/proxy":  refusedNodeProxy{nodes.Proxy},

		"podtemplates":                  podTemplates,
		"replicationcontrollers":        controllers.Controller,
		"replicationcontrollers/status": controllers.Status,
		"replicationcontrollers/scale":  controllers.Scale,
		"limitranges":                   limitRanges,
		"persistentvolumes":             volumes,
		"persistentvolumes/status":      volumeStatus,
		"persistentvolumeclaims":        claims,
		"persistentvolumeclaims/status": claimStatus,
	}
	if p.elsewhere != nil {
		maps.Copy(storage, podsAndParts(pods, p.elsewhere, p.authorizer))
		storage["nodes"] = newNodesElsewhere(nodes.Node, p.elsewhere)
		proxies := proxyConnector{p.elsewhere, p.authorizer}
		storage["nodes/proxy"] = nodeProxyElsewhere{nodes.Proxy, proxies}
		storage["services/proxy"] = serviceProxyElsewhere{serviceProxy, services, proxies}
	}
	return storage, nil
}
