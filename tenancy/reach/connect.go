package reach

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/utils/ptr"

	"github.com/atoll-dev/atoll/fleet"
	members "github.com/atoll-dev/atoll/fleet/reach"
)

// pod returns a pod as the child sees it, and its namespace in the parent.
func (p *Parent) pod(ctx context.Context, namespace, name string) (*corev1.Pod, *owned, error) {
	obj, of, err := p.get(ctx, members.Pods, namespace, name)
	if err != nil {
		return nil, nil, err
	}
	return obj.(*corev1.Pod), of, nil
}

// PodLogs implements apiserver.Elsewhere.
func (p *Parent) PodLogs(ctx context.Context, namespace, name string, o *corev1.PodLogOptions) (io.ReadCloser, error) {
	of, err := p.find(ctx, namespace)
	if err != nil {
		return nil, err
	}
	if of == nil {
		return nil, apierrors.NewNotFound(corev1.Resource(members.Pods), name)
	}
	log, err := p.core.Get().Namespace(of.above).Resource(members.Pods).Name(name).SubResource("log").VersionedParams(o, parameters).Stream(ctx)
	return log, ofParent(err)
}

// ConnectPod implements apiserver.Elsewhere.
func (p *Parent) ConnectPod(ctx context.Context, namespace, name, subresource, path string, _ proxy.ErrorResponder) (http.Handler, error) {
	_, of, err := p.pod(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	return p.through(of, members.Pods, name, subresource, path)
}

// ConnectService implements apiserver.Elsewhere.
func (p *Parent) ConnectService(ctx context.Context, namespace, name, path string, _ proxy.ErrorResponder) (http.Handler, error) {
	of, err := p.find(ctx, namespace)
	if err != nil {
		return nil, err
	}
	if of == nil {
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("Service %q is in no cluster yet: the workspace above does not have namespace %s: see the condition Placed of the Workspace", name, namespace))
	}
	return p.through(of, "services", name, "proxy", path)
}

// ConnectNode implements apiserver.Elsewhere. Workspaces do not have nodes.
func (*Parent) ConnectNode(_ context.Context, name, _ string, _ proxy.ErrorResponder) (http.Handler, error) {
	return nil, apierrors.NewNotFound(corev1.Resource(members.Nodes), name)
}

// ConnectCluster implements apiserver.Elsewhere. The clusters are those of the parent.
func (*Parent) ConnectCluster(_ context.Context, cluster, _ string, _ proxy.ErrorResponder) (http.Handler, error) {
	return nil, apierrors.NewNotFound(corev1.Resource("clusters"), cluster)
}

// through returns a handler that passes a request on to a subresource of an object of the parent. Nothing of it is buffered.
func (p *Parent) through(of *owned, resource, name, subresource, rest string) (http.Handler, error) {
	// A proxy between here and a container may understand these as the path of another object.
	if slices.ContainsFunc(strings.Split(rest, "/"), func(part string) bool { return part == "." || part == ".." }) {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the path %q has a segment . or ..: name the path without them", rest))
	}
	path := "/api/v1/namespaces/" + of.above + "/" + resource + "/" + name + "/" + subresource + rest
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		in := r.Clone(r.Context())
		fleet.StripIdentity(in.Header)
		in.URL = &url.URL{Path: path, RawQuery: r.URL.RawQuery}
		in.RequestURI = in.URL.RequestURI()
		p.Handler.ServeHTTP(w, in)
	}), nil
}

// DeletePod implements apiserver.Elsewhere.
func (p *Parent) DeletePod(ctx context.Context, namespace, name string, o metav1.DeleteOptions) (*corev1.Pod, error) {
	pod, of, err := p.pod(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	o.Preconditions = preconditions(o.Preconditions, pod)
	if err := p.core.Delete().Namespace(of.above).Resource(members.Pods).Name(name).Body(&o).Do(ctx).Error(); err != nil {
		return nil, ofParent(err)
	}
	p.union.Number(pod)
	return pod, nil
}

// preconditions returns those of the parent: it is about the pod that was found, and no other of the name. The version is that of the pod in its cluster.
func preconditions(of *metav1.Preconditions, pod *corev1.Pod) *metav1.Preconditions {
	out := of.DeepCopy()
	if out == nil {
		out = &metav1.Preconditions{}
	}
	if out.UID == nil {
		out.UID = ptr.To(pod.UID)
	}
	if out.ResourceVersion != nil {
		out.ResourceVersion = ptr.To(members.MemberVersion(*out.ResourceVersion))
	}
	return out
}

// UpdatePod implements apiserver.Elsewhere: the role of the child's user has no such verb.
func (p *Parent) UpdatePod(ctx context.Context, namespace, name, _ string, _ func(*corev1.Pod) (*corev1.Pod, error), _ metav1.UpdateOptions) (*corev1.Pod, error) {
	if _, _, err := p.pod(ctx, namespace, name); err != nil {
		return nil, err
	}
	return nil, apierrors.NewForbidden(corev1.Resource(members.Pods), name,
		fmt.Errorf("pods in the clusters of the workspace above are not changed from here: change the object that they belong to"))
}

// EvictPod implements apiserver.Elsewhere. The cluster of the pod decides by the disruption budgets there.
func (p *Parent) EvictPod(ctx context.Context, namespace, name string, o *metav1.DeleteOptions) error {
	pod, of, err := p.pod(ctx, namespace, name)
	if err != nil {
		return err
	}
	options := o.DeepCopy()
	options.Preconditions = preconditions(options.Preconditions, pod)
	eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: of.above, Name: name}, DeleteOptions: options}
	return ofParent(p.core.Post().Namespace(of.above).Resource(members.Pods).Name(name).SubResource("eviction").Body(eviction).Do(ctx).Error())
}
