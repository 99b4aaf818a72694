package apiserver

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// metricsScheme returns the types of metrics.k8s.io. Nothing stores them, so there is no internal version.
func metricsScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	if err := metricsv1beta1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	return scheme, scheme.SetVersionPriority(metricsv1beta1.SchemeGroupVersion)
}

// metricsGroup serves metrics.k8s.io, which other clusters have from metrics-server: what pods and nodes use that exist
// elsewhere.
//
// The group has no APIService. A user may store one of its name, to install metrics-server in clusters; Atoll would overwrite
// it at the next start, here and in the clusters.
type metricsGroup struct {
	scheme    *runtime.Scheme
	elsewhere Elsewhere    // nil: the group is not served
	handler   http.Handler // set before requests are served
}

func (g *metricsGroup) GroupName() string { return metricsv1beta1.GroupName }

func (g *metricsGroup) NewRESTStorage(serverstorage.APIResourceConfigSource, generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error) {
	info := genericapiserver.NewDefaultAPIGroupInfo(metricsv1beta1.GroupName, g.scheme, metav1.ParameterCodec, serializer.NewCodecFactory(g.scheme))
	info.VersionedResourcesStorageMap[metricsv1beta1.SchemeGroupVersion.Version] = map[string]rest.Storage{
		"pods": metricsElsewhere{
			resource: "pods", kind: "PodMetrics", namespaced: true, elsewhere: g.elsewhere,
			new: func() runtime.Object { return &metricsv1beta1.PodMetrics{} }, newList: func() runtime.Object { return &metricsv1beta1.PodMetricsList{} },
		},
		"nodes": metricsElsewhere{
			resource: "nodes", kind: "NodeMetrics", elsewhere: g.elsewhere,
			new: func() runtime.Object { return &metricsv1beta1.NodeMetrics{} }, newList: func() runtime.Object { return &metricsv1beta1.NodeMetricsList{} },
		},
	}
	return info, nil
}

// before serves the group ahead of the aggregating server, which would send its requests to the Service of such an APIService.
func (g *metricsGroup) before(next http.Handler) http.Handler {
	const root = "/apis/" + metricsv1beta1.GroupName
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g.handler != nil && (r.URL.Path == root || strings.HasPrefix(r.URL.Path, root+"/")) {
			g.handler.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// attach has the server of built-in kinds serve the group, if it is served.
func (g *metricsGroup) attach(builtins *genericapiserver.GenericAPIServer) {
	if g.elsewhere == nil {
		return
	}
	g.handler = builtins.UnprotectedHandler()
	// As the APIService of metrics-server: kubectl's "pods" are those of the core group.
	builtins.AggregatedDiscoveryGroupManager.SetGroupVersionPriority(metav1.GroupVersion(metricsv1beta1.SchemeGroupVersion), 100, 100)
}

// groups returns the entry in the list of all groups, if the group is served.
func (g *metricsGroup) groups() []metav1.APIGroup {
	if g.elsewhere == nil {
		return nil
	}
	version := metav1.GroupVersionForDiscovery{GroupVersion: metricsv1beta1.SchemeGroupVersion.String(), Version: metricsv1beta1.SchemeGroupVersion.Version}
	return []metav1.APIGroup{{Name: metricsv1beta1.GroupName, Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version}}
}

// metricsElsewhere is the storage of one resource. Like metrics-server, it has get and list only: the controllers that delete,
// collect or count objects leave it alone.
type metricsElsewhere struct {
	resource, kind string
	namespaced     bool
	elsewhere      Elsewhere
	new, newList   func() runtime.Object
}

var (
	_ rest.KindProvider         = metricsElsewhere{}
	_ rest.Storage              = metricsElsewhere{}
	_ rest.Getter               = metricsElsewhere{}
	_ rest.Lister               = metricsElsewhere{}
	_ rest.Scoper               = metricsElsewhere{}
	_ rest.SingularNameProvider = metricsElsewhere{}
)

func (m metricsElsewhere) New() runtime.Object     { return m.new() }
func (m metricsElsewhere) NewList() runtime.Object { return m.newList() }
func (m metricsElsewhere) Destroy()                {}
func (m metricsElsewhere) Kind() string            { return m.kind }
func (m metricsElsewhere) NamespaceScoped() bool   { return m.namespaced }
func (m metricsElsewhere) GetSingularName() string { return "" } // as metrics-server: "pod" is a pod

func (m metricsElsewhere) List(ctx context.Context, o *metainternalversion.ListOptions) (runtime.Object, error) {
	if seesStoreAlone(ctx, m.elsewhere) {
		return m.newList(), nil
	}
	options, err := externalOptions(o)
	if err != nil {
		return nil, err
	}
	list, warnings, err := m.elsewhere.Metrics(ctx, m.resource, request.NamespaceValue(ctx), options)
	if err != nil {
		return nil, err
	}
	warn(ctx, warnings)
	return list, nil
}

func (m metricsElsewhere) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	if seesStoreAlone(ctx, m.elsewhere) {
		return nil, apierrors.NewNotFound(metricsv1beta1.Resource(m.resource), name)
	}
	obj, warnings, err := m.elsewhere.MetricsOf(ctx, m.resource, request.NamespaceValue(ctx), name)
	if err != nil {
		return nil, err
	}
	warn(ctx, warnings)
	return obj, nil
}

// ConvertToTable returns metrics-server's columns, a resource each, and the cluster.
func (m metricsElsewhere) ConvertToTable(_ context.Context, object, _ runtime.Object) (*metav1.Table, error) {
	items := []runtime.Object{object}
	if meta.IsListType(object) {
		var err error
		if items, err = meta.ExtractList(object); err != nil {
			return nil, err
		}
	}
	resources := map[corev1.ResourceName]bool{}
	for _, item := range items {
		total, _ := usageOf(item)
		for name := range total {
			resources[name] = true
		}
	}
	names := slices.Sorted(maps.Keys(resources))
	table := &metav1.Table{ColumnDefinitions: []metav1.TableColumnDefinition{{Name: "Name", Type: "string", Format: "name", Description: "Name of the resource"}}}
	for _, name := range names {
		table.ColumnDefinitions = append(table.ColumnDefinitions, metav1.TableColumnDefinition{Name: string(name), Type: "string", Format: "quantity"})
	}
	table.ColumnDefinitions = append(table.ColumnDefinitions, metav1.TableColumnDefinition{Name: "Window", Type: "string", Format: "duration"}, clusterColumn())
	for _, item := range items {
		of, err := meta.Accessor(item)
		if err != nil {
			return nil, err
		}
		total, window := usageOf(item)
		cells := []any{of.GetName()}
		for _, name := range names {
			amount := total[name]
			cells = append(cells, amount.String())
		}
		cells = append(cells, window.Duration.String(), of.GetLabels()[v1alpha1.ClusterLabel])
		table.Rows = append(table.Rows, metav1.TableRow{Cells: cells, Object: runtime.RawExtension{Object: item}})
	}
	return table, nil
}

// usageOf returns what a node uses, or all containers of a pod together, and in which time.
func usageOf(item runtime.Object) (corev1.ResourceList, metav1.Duration) {
	switch of := item.(type) {
	case *metricsv1beta1.NodeMetrics:
		return of.Usage, of.Window
	case *metricsv1beta1.PodMetrics:
		total := corev1.ResourceList{}
		for _, c := range of.Containers {
			for name, amount := range c.Usage {
				sum := total[name]
				sum.Add(amount)
				total[name] = sum
			}
		}
		return total, of.Window
	}
	return nil, metav1.Duration{}
}
