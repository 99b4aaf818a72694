package apiserver

import (
	"context"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	api "k8s.io/kubernetes/pkg/apis/core"
	svcreg "k8s.io/kubernetes/pkg/registry/core/service"
	"k8s.io/kubernetes/pkg/registry/core/service/portallocator"
	servicestore "k8s.io/kubernetes/pkg/registry/core/service/storage"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// ownServices changes upstream's storage of Services: their Endpoints are deleted with them, and nothing is allocated. A Service of
// a workspace keeps the addresses and node ports that its author set. It gets no node
// ports, and an address only for clients that wait for one (v1alpha1.ServiceAddress):
// each member allocates its own.
//
// Upstream allocates, and sets IP families, in hooks of the generic store. They run
// before validation, which accepts a Service without addresses.
func ownServices(services *servicestore.REST, endpoints servicestore.EndpointsStorage) *servicestore.REST {
	services.Store.BeginCreate = func(_ context.Context, obj runtime.Object, _ *metav1.CreateOptions) (genericregistry.FinishFunc, error) {
		setAddresses(obj.(*api.Service))
		return func(context.Context, bool) {}, nil
	}
	services.Store.BeginUpdate = func(_ context.Context, obj, old runtime.Object, _ *metav1.UpdateOptions) (genericregistry.FinishFunc, error) {
		keepClusterIPs(obj.(*api.Service), old.(*api.Service))
		setAddresses(obj.(*api.Service))
		return func(context.Context, bool) {}, nil
	}
	services.Store.Decorator = nil
	services.Store.AfterDelete = nil
	services.Store.Storage.Storage = withEndpoints{services.Store.Storage.Storage, endpoints}
	services.Store.CreateStrategy = unallocatedStrategy{svcreg.Strategy}
	services.Store.UpdateStrategy = unallocatedStrategy{svcreg.Strategy}
	return services
}

// unallocatedStrategy is upstream's, but does not require the one allocated field that
// validation demands: the node port for health checks of load balancers with the
// traffic policy Local.
type unallocatedStrategy struct{ rest.RESTCreateUpdateStrategy }

func (s unallocatedStrategy) Validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	return withoutMissingPort(s.RESTCreateUpdateStrategy.Validate(ctx, obj))
}

func (s unallocatedStrategy) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	return withoutMissingPort(s.RESTCreateUpdateStrategy.ValidateUpdate(ctx, obj, old))
}

func withoutMissingPort(errs field.ErrorList) field.ErrorList {
	return slices.DeleteFunc(errs, func(err *field.Error) bool {
		return err.Type == field.ErrorTypeRequired && err.Field == "spec.healthCheckNodePort"
	})
}

// syncClusterIPs makes the singular and the plural field agree. Validation requires
// that even of clients that know only one of them.
func syncClusterIPs(svc *api.Service) {
	switch {
	case svc.Spec.ClusterIP != "" && len(svc.Spec.ClusterIPs) == 0:
		svc.Spec.ClusterIPs = []string{svc.Spec.ClusterIP}
	case svc.Spec.ClusterIP == "" && len(svc.Spec.ClusterIPs) > 0:
		svc.Spec.ClusterIP = svc.Spec.ClusterIPs[0]
	}
}

// setAddresses gives a Service that would have addresses in a cluster one for each of
// its IP families, and makes the singular and the plural field agree.
func setAddresses(svc *api.Service) {
	syncClusterIPs(svc)
	if svc.Spec.Type == api.ServiceTypeExternalName || svc.Spec.ClusterIP != "" {
		return
	}
	families := svc.Spec.IPFamilies
	if len(families) == 0 {
		families = []api.IPFamily{api.IPv4Protocol}
	}
	for _, family := range families {
		svc.Spec.ClusterIPs = append(svc.Spec.ClusterIPs, v1alpha1.ServiceAddress(svc.Namespace, svc.Name, family == api.IPv6Protocol))
	}
	svc.Spec.ClusterIP = svc.Spec.ClusterIPs[0]
}

// keepClusterIPs keeps the addresses in an update that omits them, as on a real
// cluster, where they are immutable.
func keepClusterIPs(svc, old *api.Service) {
	if svc.Spec.Type == api.ServiceTypeExternalName || old.Spec.Type == api.ServiceTypeExternalName {
		return
	}
	if svc.Spec.ClusterIP == "" && len(svc.Spec.ClusterIPs) == 0 {
		svc.Spec.ClusterIP, svc.Spec.ClusterIPs = old.Spec.ClusterIP, old.Spec.ClusterIPs
	}
}

// noPorts replaces upstream's allocator of node ports, which its storage closes with itself.
type noPorts struct{}

var _ portallocator.Interface = noPorts{}

func (noPorts) Allocate(int) error         { return nil }
func (noPorts) AllocateNext() (int, error) { return 0, portallocator.ErrFull }
func (noPorts) Release(int) error          { return nil }
func (noPorts) ForEach(func(int))          {}
func (noPorts) Has(int) bool               { return false }
func (noPorts) Destroy()                   {}
func (noPorts) EnableMetrics()             {}
