package reach

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
)

// PodLogs returns the logs of a container of a placed object, as its cluster sends them.
func (r *Reach) PodLogs(ctx context.Context, namespace, name string, o *corev1.PodLogOptions) (io.ReadCloser, error) {
	f, err := r.pod(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	client, err := f.stream.client()
	if err != nil {
		return nil, err
	}
	return client.Get().Namespace(namespace).Name(name).Resource(Pods).SubResource("log").VersionedParams(o, scheme.ParameterCodec).Stream(ctx)
}

// client returns a client whose answers are streams.
func (s *stream) client() (rest.Interface, error) {
	config := rest.CopyConfig(s.config)
	config.QPS = -1
	config.APIPath, config.GroupVersion, config.NegotiatedSerializer = "/api", &corev1.SchemeGroupVersion, scheme.Codecs.WithoutConversion()
	return rest.RESTClientForConfigAndClient(config, &http.Client{Transport: s.transport, CheckRedirect: refuseRedirect})
}

func refuseRedirect(*http.Request, []*http.Request) error {
	return fmt.Errorf("the cluster answered with a redirect, which is not followed: set clusters[].cluster.server in its kubeconfig to the address of the API server")
}

// ConnectPod returns a handler that passes a request for a subresource of a pod, such as exec, on to the cluster that runs
// it. path is the rest of the request's path: of a proxied request, what the container is asked for.
func (r *Reach) ConnectPod(ctx context.Context, namespace, name, subresource, path string, failed proxy.ErrorResponder) (http.Handler, error) {
	f, err := r.pod(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	return f.stream.handler("/api/v1/namespaces/"+url.PathEscape(namespace)+"/pods/"+url.PathEscape(name)+"/"+subresource+path, failed)
}

// handler passes requests on to a path of the cluster, with the credentials of the cluster's kubeconfig.
func (s *stream) handler(path string, failed proxy.ErrorResponder) (http.Handler, error) {
	base, _, err := rest.DefaultServerUrlFor(s.config)
	if err != nil {
		return nil, err
	}
	upgrade, err := s.upgrade()
	if err != nil {
		return nil, err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		location := *base
		location.Path, location.RawQuery = strings.TrimSuffix(base.Path, "/")+path, r.URL.RawQuery
		r = r.Clone(r.Context())
		stripIdentity(r.Header)
		h := proxy.NewUpgradeAwareHandler(&location, s.transport, false, false, failed)
		h.UpgradeTransport = upgrade
		h.UseLocationHost = true
		h.RejectForwardingRedirects = true
		h.ServeHTTP(w, r)
	}), nil
}

// upgrade returns the transport of connections that change their protocol. They are opened with HTTP/1.1.
func (s *stream) upgrade() (proxy.UpgradeRequestRoundTripper, error) {
	config, err := s.config.TransportConfig()
	if err != nil {
		return nil, err
	}
	tls, err := transport.TLSConfigFor(config)
	if err != nil {
		return nil, err
	}
	dial := &http.Transport{TLSClientConfig: tls, DialContext: s.config.Dial, Proxy: s.config.Proxy}
	wrapped, err := transport.HTTPWrappersForConfig(config, proxy.MirrorRequest)
	if err != nil {
		return nil, err
	}
	return proxy.NewUpgradeRequestRoundTripper(dial, wrapped), nil
}

// stripIdentity removes what a client says about who it is: the cluster is asked as Atoll, which has authorized the user.
func stripIdentity(h http.Header) {
	for name := range h {
		lower := strings.ToLower(name)
		if lower == "authorization" || lower == "cookie" || strings.HasPrefix(lower, "impersonate-") || strings.HasPrefix(lower, "x-remote-") {
			delete(h, name)
		}
	}
	stripToken(h)
}

// stripToken removes the token that a browser offers as a protocol of a WebSocket. The others are those that it speaks.
func stripToken(h http.Header) {
	const header, token = "Sec-Websocket-Protocol", "base64url.bearer.authorization.k8s.io."
	offered := strings.Split(strings.Join(h.Values(header), ","), ",")
	spoken := slices.DeleteFunc(slices.Clone(offered), func(p string) bool { return strings.HasPrefix(strings.TrimSpace(p), token) })
	if len(spoken) == len(offered) {
		return
	}
	h.Del(header)
	if len(spoken) > 0 {
		h.Set(header, strings.Join(spoken, ","))
	}
}

// DeletePod deletes a pod of a placed object in its cluster, whose controller replaces it.
func (r *Reach) DeletePod(ctx context.Context, namespace, name string, o metav1.DeleteOptions) (*corev1.Pod, error) {
	f, err := r.pod(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	if o.Preconditions == nil {
		o.Preconditions = &metav1.Preconditions{}
	}
	if uid := o.Preconditions.UID; uid == nil {
		o.Preconditions.UID = &f.pod.UID // the pod that was found, and no other of the name
	}
	if v := o.Preconditions.ResourceVersion; v != nil {
		of := MemberVersion(*v)
		o.Preconditions.ResourceVersion = &of
	}
	if err := f.rest.Delete().Namespace(namespace).Resource(Pods).Name(name).Body(&o).Do(ctx).Error(); err != nil {
		return nil, ofCluster(f.cluster, err)
	}
	pod := f.shown()
	r.number(pod, r.ledger.now())
	return pod, nil
}

// UpdatePod changes a pod of a placed object in its cluster, or one of its subresources that has the form of a pod. change
// gets the pod as Atoll shows it.
func (r *Reach) UpdatePod(ctx context.Context, namespace, name, subresource string, change func(*corev1.Pod) (*corev1.Pod, error), o metav1.UpdateOptions) (*corev1.Pod, error) {
	f, err := r.pod(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	pod, err := change(f.shown())
	if err != nil {
		return nil, err
	}
	if err := hide(pod, f.pod, f.cluster); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	patch, err := difference(f.pod, pod)
	if err != nil {
		return nil, err
	}
	out := &corev1.Pod{}
	err = f.rest.Patch(types.MergePatchType).Namespace(namespace).Resource(Pods).Name(name).SubResource(parts(subresource)...).
		VersionedParams(&metav1.PatchOptions{DryRun: o.DryRun, FieldManager: o.FieldManager, FieldValidation: o.FieldValidation}, scheme.ParameterCodec).
		Body(patch).Do(ctx).Into(out)
	if err != nil {
		return nil, ofCluster(f.cluster, err)
	}
	showPod(out, f.cluster)
	r.number(out, r.ledger.now())
	return out, nil
}

// difference returns the patch from one state of a pod to another. The cluster may have fields in it that this version does
// not know: an update would remove them.
func difference(before, after *corev1.Pod) ([]byte, error) {
	before, after = before.DeepCopy(), after.DeepCopy()
	before.ManagedFields, after.ManagedFields = nil, nil // the cluster keeps its own
	// An update with a version conflicts if the pod has changed since, and so does the patch. The UID is of the pod that
	// was found.
	version := after.ResourceVersion
	before.ResourceVersion, after.ResourceVersion, before.UID = "", version, ""
	from, err := json.Marshal(before)
	if err != nil {
		return nil, err
	}
	to, err := json.Marshal(after)
	if err != nil {
		return nil, err
	}
	return jsonpatch.CreateMergePatch(from, to)
}

func parts(subresource string) []string {
	if subresource == "" {
		return nil
	}
	return []string{subresource}
}

// ofCluster adds the cluster's name to its refusal.
func ofCluster(cluster string, err error) error {
	status, ok := err.(*apierrors.StatusError)
	if !ok {
		return fmt.Errorf("cluster %s: %w", cluster, err)
	}
	out := *status
	out.ErrStatus.Message = fmt.Sprintf("cluster %s: %s", cluster, out.ErrStatus.Message)
	return &out
}

// EvictPod evicts a pod of a placed object. Its cluster decides by the disruption budgets there.
func (r *Reach) EvictPod(ctx context.Context, namespace, name string, o *metav1.DeleteOptions) error {
	f, err := r.pod(ctx, namespace, name)
	if err != nil {
		return err
	}
	eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, DeleteOptions: o}
	err = f.rest.Post().Namespace(namespace).Resource(Pods).Name(name).SubResource("eviction").Body(eviction).Do(ctx).Error()
	if err != nil {
		return ofCluster(f.cluster, err)
	}
	return nil
}
