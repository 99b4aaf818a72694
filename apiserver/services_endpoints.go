package apiserver

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	api "k8s.io/kubernetes/pkg/apis/core"
	servicestore "k8s.io/kubernetes/pkg/registry/core/service/storage"
)

// endpointsTimeout bounds the deletion of the Endpoints of one Service.
const endpointsTimeout = 10 * time.Second

// withEndpoints deletes the Endpoints of each Service that it deletes, or another Service of that name would begin with them. Upstream does so
// in a hook without the context of the request, which says in which workspace they are.
type withEndpoints struct {
	storage.Interface
	endpoints servicestore.EndpointsStorage
}

// Delete implements storage.Interface. No dry run gets here.
func (s withEndpoints) Delete(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions, validate storage.ValidateObjectFunc, cached runtime.Object, opts storage.DeleteOptions) error {
	if err := s.Interface.Delete(ctx, key, out, preconditions, validate, cached, opts); err != nil {
		return err
	}
	service, ok := out.(*api.Service)
	if !ok {
		return nil
	}
	// The Service is deleted: its Endpoints are too, even if the client no longer waits.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endpointsTimeout)
	defer cancel()
	if _, _, err := s.endpoints.Delete(ctx, service.Name, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		utilruntime.HandleErrorWithContext(ctx, err, "The Endpoints of a deleted Service are left", "namespace", service.Namespace, "name", service.Name)
	}
	return nil
}
