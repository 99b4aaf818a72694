package reach

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/proxy"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// ConnectService returns a handler that passes a request on to the proxy of a placed Service, in one of its clusters that
// answers. name may have a scheme and a port, as SCHEME:NAME:PORT.
func (r *Reach) ConnectService(ctx context.Context, namespace, name, path string, failed proxy.ErrorResponder) (http.Handler, error) {
	_, service, _, valid := utilnet.SplitSchemeNamePort(name)
	if !valid {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid service request %q: use NAME, NAME:PORT or SCHEME:NAME:PORT", name))
	}
	candidates, err := r.members.origins.clustersOf(ctx, namespace, service)
	if err != nil {
		return nil, err
	}
	if len(candidates) == 0 {
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("Service %q is in no cluster yet: `kubectl get resourcebinding %s -n %s` shows where it is to be",
			service, v1alpha1.BindingName(serviceKind(), service), namespace))
	}
	rand.Shuffle(len(candidates), func(i, j int) { candidates[i], candidates[j] = candidates[j], candidates[i] })
	var silent []string
	for _, cluster := range candidates {
		m, err := r.members.connected(ctx, cluster)
		if err != nil {
			silent = append(silent, fmt.Sprintf("%s: %v", cluster, err))
			continue
		}
		return m.handler("/api/v1/namespaces/"+url.PathEscape(namespace)+"/services/"+url.PathEscape(name)+"/proxy"+path, failed), nil
	}
	return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("no cluster with Service %q answers: %s", service, strings.Join(silent, "; ")))
}

// ConnectNode returns a handler that passes a request on to the proxy of a node, whose name is CLUSTER.NODE.
func (r *Reach) ConnectNode(ctx context.Context, name, path string, failed proxy.ErrorResponder) (http.Handler, error) {
	cluster, node, _ := strings.Cut(name, ".")
	m, err := r.members.connected(ctx, cluster)
	if apierrors.IsNotFound(err) || node == "" {
		return nil, apierrors.NewNotFound(corev1.Resource(Nodes), name)
	}
	if err != nil {
		return nil, unreachable(cluster, err)
	}
	return m.handler("/api/v1/nodes/"+url.PathEscape(node)+"/proxy"+path, failed), nil
}

// handler passes requests on to a path of the cluster.
func (m *member) handler(path string, failed proxy.ErrorResponder) http.Handler {
	return m.stream.proxy.Through(func(next http.RoundTripper) http.RoundTripper { return accepted{next} }).Handler(path, responder{m.cluster, failed})
}

func serviceKind() schema.GroupKind { return schema.GroupKind{Kind: "Service"} }

// clustersOf returns the clusters that have a copy of a Service, by their reports.
func (o *origins) clustersOf(ctx context.Context, namespace, service string) (out []string, err error) {
	client, err := o.client(namespace)
	if err != nil {
		return nil, err
	}
	item, err := client.Get(ctx, v1alpha1.BindingName(serviceKind(), service), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the ResourceBinding of Service %s/%s: %w", namespace, service, err)
	}
	b := &v1alpha1.ResourceBinding{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(item.Object, b); err != nil {
		return nil, fmt.Errorf("read the ResourceBinding of Service %s/%s: %w", namespace, service, err)
	}
	for _, share := range b.Spec.Clusters {
		if state, has := b.State(share.Name); has && state.UID != "" {
			out = append(out, share.Name)
		}
	}
	return out, nil
}
