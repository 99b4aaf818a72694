package apiserver

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/apis/policy"
	podrest "k8s.io/kubernetes/pkg/registry/core/pod/rest"
	podstore "k8s.io/kubernetes/pkg/registry/core/pod/storage"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// Subresources of pods that run in member clusters. Each embeds upstream's storage for its options and its documentation.
type (
	logElsewhere struct {
		*podrest.LogREST
		connector
	}
	execElsewhere struct {
		*podrest.ExecREST
		connector
	}
	attachElsewhere struct {
		*podrest.AttachREST
		connector
	}
	portForwardElsewhere struct {
		*podrest.PortForwardREST
		connector
	}
	podProxyElsewhere struct {
		*podrest.ProxyREST
		connector
	}
	evictionElsewhere struct {
		*podstore.EvictionREST
		stored    rest.NamedCreater // of the pods that are stored
		elsewhere Elsewhere
	}
	ephemeralContainersElsewhere struct {
		*podstore.EphemeralContainersREST
		elsewhere Elsewhere
	}
)

var (
	_ rest.GetterWithOptions = logElsewhere{}
	_ rest.Connecter         = execElsewhere{}
	_ rest.NamedCreater      = evictionElsewhere{}
	_ rest.Patcher           = ephemeralContainersElsewhere{}
)

// podsAndParts returns the storage of pods, and of their subresources that reach member clusters.
func podsAndParts(pods podstore.PodStorage, elsewhere Elsewhere, a authorizer.Authorizer) map[string]rest.Storage {
	connect := connector{elsewhere, pods.Pod, a}
	return map[string]rest.Storage{
		"pods":                     newPodsElsewhere(pods.Pod, elsewhere),
		"pods/log":                 logElsewhere{pods.Log, connect},
		"pods/exec":                execElsewhere{pods.Exec, connect},
		"pods/attach":              attachElsewhere{pods.Attach, connect},
		"pods/portforward":         portForwardElsewhere{pods.PortForward, connect},
		"pods/proxy":               podProxyElsewhere{pods.Proxy, connect},
		"pods/eviction":            evictionElsewhere{pods.Eviction, pods.Eviction, elsewhere},
		"pods/ephemeralcontainers": ephemeralContainersElsewhere{pods.EphemeralContainers, elsewhere},
	}
}

// Get returns an object whose content is the log.
func (r logElsewhere) Get(ctx context.Context, name string, options runtime.Object) (runtime.Object, error) {
	o, ok := options.(*api.PodLogOptions)
	if !ok {
		return nil, fmt.Errorf("invalid options of a log: %T", options)
	}
	// Whether a cluster can separate the streams depends on its feature gates. If no stream is named, none must be passed on: a
	// cluster that cannot would reject it.
	if errs := validation.ValidatePodLogOptions(o, o.Stream != nil); len(errs) > 0 {
		return nil, apierrors.NewInvalid(api.Kind("PodLogOptions"), name, errs)
	}
	if !reaches(ctx, r.elsewhere) {
		return nil, refuseFor(ctx, r.stored, "pods/log", name, NoMembersInWorkspace)
	}
	asked, err := convert(o, &corev1.PodLogOptions{})
	if err != nil {
		return nil, err
	}
	log, err := r.elsewhere.PodLogs(ctx, request.NamespaceValue(ctx), name, asked)
	if err != nil {
		return nil, r.explain(ctx, name, err)
	}
	return &podLog{log, o.Follow}, nil
}

// podLog is a log that is sent as it comes.
type podLog struct {
	content io.ReadCloser
	follow  bool
}

var _ rest.ResourceStreamer = (*podLog)(nil)

func (l *podLog) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }
func (l *podLog) DeepCopyObject() runtime.Object   { return l }

func (l *podLog) InputStream(context.Context, string, string) (io.ReadCloser, bool, string, error) {
	return l.content, l.follow, "text/plain", nil
}

// connector passes connections on to the cluster of a pod.
type connector struct {
	elsewhere Elsewhere
	stored    getter
	authorize authorizer.Authorizer
}

// explain replaces the error that a pod was not found, if the workspace has it and no cluster runs it.
func (c connector) explain(ctx context.Context, name string, err error) error {
	if !apierrors.IsNotFound(err) {
		return err
	}
	if _, missing := c.stored.Get(ctx, name, &metav1.GetOptions{}); missing != nil {
		return err
	}
	if _, ofRequest := c.elsewhere.(OfRequest); ofRequest {
		return apierrors.NewBadRequest(fmt.Sprintf("pod %q is stored in this workspace, and pods alone are not placed: create a Deployment or a Job instead", name))
	}
	return apierrors.NewBadRequest(fmt.Sprintf("pod %q runs in no cluster yet: `kubectl get resourcebinding %s -n %s` shows where it is to run",
		name, v1alpha1.BindingName(schema.GroupKind{Kind: "Pod"}, name), request.NamespaceValue(ctx)))
}

// connect requires the right to create the subresource: a WebSocket begins with a GET, which is authorized as get.
func (c connector) connect(ctx context.Context, name, subresource string, failed rest.Responder) (http.Handler, error) {
	info, ok := request.RequestInfoFrom(ctx)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("connect to %s of pod %s: the request has no information", subresource, name))
	}
	if !reaches(ctx, c.elsewhere) {
		return nil, refuseFor(ctx, c.stored, "pods/"+subresource, name, NoMembersInWorkspace)
	}
	path := ""
	if subresource == "proxy" {
		path = pathAfter(info, subresource)
	} else if err := mayCreate(ctx, c.authorize, info); err != nil {
		return nil, err
	}
	handler, err := c.elsewhere.ConnectPod(ctx, info.Namespace, name, subresource, path, proxy.NewErrorResponder(failed))
	if err != nil {
		return nil, c.explain(ctx, name, err)
	}
	return handler, nil
}

// mayCreate returns an error if the user of a request may not create the subresource that it is for.
func mayCreate(ctx context.Context, authorize authorizer.Authorizer, info *request.RequestInfo) error {
	if info.Verb == "create" {
		return nil
	}
	asked, err := filters.GetAuthorizerAttributes(ctx)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	decision, reason, err := authorize.Authorize(ctx, creation{asked})
	if decision == authorizer.DecisionAllow {
		return nil
	}
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	return apierrors.NewForbidden(schema.GroupResource{Group: info.APIGroup, Resource: info.Resource + "/" + info.Subresource}, info.Name,
		fmt.Errorf("the verb create is required: %s", reason))
}

// creation is the same request with the verb create.
type creation struct{ authorizer.Attributes }

func (creation) GetVerb() string { return "create" }

// pathAfter returns what follows a subresource in the path of a request.
func pathAfter(info *request.RequestInfo, subresource string) string {
	for i, part := range info.Parts {
		if part == subresource && i >= 2 {
			rest := strings.Join(info.Parts[i+1:], "/")
			if strings.HasSuffix(info.Path, "/") && rest != "" {
				rest += "/"
			}
			return "/" + rest
		}
	}
	return "/"
}

func (r execElsewhere) Connect(ctx context.Context, name string, _ runtime.Object, failed rest.Responder) (http.Handler, error) {
	return r.connect(ctx, name, "exec", failed)
}

func (r attachElsewhere) Connect(ctx context.Context, name string, _ runtime.Object, failed rest.Responder) (http.Handler, error) {
	return r.connect(ctx, name, "attach", failed)
}

func (r portForwardElsewhere) Connect(ctx context.Context, name string, _ runtime.Object, failed rest.Responder) (http.Handler, error) {
	return r.connect(ctx, name, "portforward", failed)
}

func (r podProxyElsewhere) Connect(ctx context.Context, name string, _ runtime.Object, failed rest.Responder) (http.Handler, error) {
	return r.connect(ctx, name, "proxy", failed)
}

// Create evicts a pod. Its cluster decides by the disruption budgets there.
func (r evictionElsewhere) Create(ctx context.Context, name string, obj runtime.Object, validate rest.ValidateObjectFunc, o *metav1.CreateOptions) (runtime.Object, error) {
	out, err := r.stored.Create(ctx, name, obj, validate, o)
	if !apierrors.IsNotFound(err) || seesStoreAlone(ctx, r.elsewhere) {
		return out, err
	}
	eviction, ok := obj.(*policy.Eviction)
	if !ok {
		return nil, fmt.Errorf("invalid eviction: %T", obj)
	}
	if validate != nil {
		if err := validate(ctx, eviction.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	asked, err := convert(eviction, &policyv1.Eviction{})
	if err != nil {
		return nil, err
	}
	if asked.DeleteOptions == nil {
		asked.DeleteOptions = &metav1.DeleteOptions{}
	}
	if len(o.DryRun) > 0 {
		asked.DeleteOptions.DryRun = o.DryRun
	}
	if err := r.elsewhere.EvictPod(ctx, request.NamespaceValue(ctx), name, asked.DeleteOptions); err != nil {
		return nil, err
	}
	return &metav1.Status{Status: metav1.StatusSuccess}, nil
}

func (r ephemeralContainersElsewhere) Get(ctx context.Context, name string, o *metav1.GetOptions) (runtime.Object, error) {
	obj, err := r.EphemeralContainersREST.Get(ctx, name, o)
	if !apierrors.IsNotFound(err) || seesStoreAlone(ctx, r.elsewhere) {
		return obj, err
	}
	pod, _, err := r.elsewhere.Get(ctx, "pods", request.NamespaceValue(ctx), name)
	if err != nil {
		return nil, err
	}
	return convert(pod, &api.Pod{})
}

func (r ephemeralContainersElsewhere) Update(ctx context.Context, name string, change rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, allowCreate bool, o *metav1.UpdateOptions) (runtime.Object, bool, error) {
	obj, created, err := r.EphemeralContainersREST.Update(ctx, name, change, create, update, allowCreate, o)
	if !apierrors.IsNotFound(err) || seesStoreAlone(ctx, r.elsewhere) {
		return obj, created, err
	}
	obj, err = updateElsewhere(ctx, r.elsewhere, name, "ephemeralcontainers", change, update, o)
	return obj, false, err
}
