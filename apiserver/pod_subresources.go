package apiserver

import (
	"context"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	noderest "k8s.io/kubernetes/pkg/registry/core/node/rest"
	podrest "k8s.io/kubernetes/pkg/registry/core/pod/rest"
	"k8s.io/kubernetes/pkg/registry/core/service"
)

// Subresources that connect to a running container. They stay in discovery with
// upstream's options, so that clients build the same request as for any cluster. They
// answer 501 with an alternative: a workspace has no kubelets. Each embeds upstream's
// storage for everything but the connection.
type (
	refusedLog          struct{ *podrest.LogREST }
	refusedExec         struct{ *podrest.ExecREST }
	refusedAttach       struct{ *podrest.AttachREST }
	refusedPortForward  struct{ *podrest.PortForwardREST }
	refusedPodProxy     struct{ *podrest.ProxyREST }
	refusedNodeProxy    struct{ *noderest.ProxyREST }
	refusedServiceProxy struct {
		*service.ProxyREST
		services rest.Getter
	}
)

func (r refusedLog) Get(ctx context.Context, name string, _ runtime.Object) (runtime.Object, error) {
	return nil, refuse(ctx, r.Store, "pods/log", name)
}

func (r refusedExec) Connect(ctx context.Context, name string, _ runtime.Object, _ rest.Responder) (http.Handler, error) {
	return nil, refuse(ctx, r.Store, "pods/exec", name)
}

func (r refusedAttach) Connect(ctx context.Context, name string, _ runtime.Object, _ rest.Responder) (http.Handler, error) {
	return nil, refuse(ctx, r.Store, "pods/attach", name)
}

func (r refusedPortForward) Connect(ctx context.Context, name string, _ runtime.Object, _ rest.Responder) (http.Handler, error) {
	return nil, refuse(ctx, r.Store, "pods/portforward", name)
}

func (r refusedPodProxy) Connect(ctx context.Context, name string, _ runtime.Object, _ rest.Responder) (http.Handler, error) {
	return nil, refuse(ctx, r.Store, "pods/proxy", name)
}

func (r refusedNodeProxy) Connect(ctx context.Context, name string, _ runtime.Object, _ rest.Responder) (http.Handler, error) {
	return nil, refuse(ctx, r.Store, "nodes/proxy", name)
}

func (r refusedServiceProxy) Connect(ctx context.Context, name string, _ runtime.Object, _ rest.Responder) (http.Handler, error) {
	return nil, refuse(ctx, r.services, "services/proxy", name)
}

type getter interface {
	Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error)
}

// noMembersHere explains why a server without Config.Elsewhere reaches no container.
const noMembersHere = "containers run in clusters, which this API does not reach: use kubectl with a kubeconfig of the cluster"

// ContainersInstead is what users of a workspace do that reaches no container.
const ContainersInstead = "use kubectl with a kubeconfig of the cluster, or have the workspace above place the objects (`spec.placement` of the Workspace)"

// NoMembersInWorkspace explains why a workspace reaches no container.
const NoMembersInWorkspace = "containers run in clusters, which this workspace does not reach: " + ContainersInstead

// refuse returns 404 if the object does not exist, and otherwise why it cannot be
// reached here.
func refuse(ctx context.Context, objects getter, resource, name string) error {
	return refuseFor(ctx, objects, resource, name, noMembersHere)
}

// refuseFor is refuse with another reason.
func refuseFor(ctx context.Context, objects getter, resource, name, why string) error {
	if _, err := objects.Get(ctx, name, &metav1.GetOptions{}); err != nil {
		return err
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusNotImplemented,
		Reason:  "NotImplemented",
		Message: fmt.Sprintf("%s of %q: %s", resource, name, why),
		Details: &metav1.StatusDetails{Name: name, Kind: resource},
	}}
}
