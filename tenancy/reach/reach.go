// Package reach shows the pods and events of a workspace whose parent places its objects, as the parent shows them: it maps the names of
// namespaces, and asks the parent as the user that writes the copies. The parent's RBAC decides for this user.
package reach

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	members "github.com/atoll-dev/atoll/fleet/reach"
	"github.com/atoll-dev/atoll/tenancy/mapping"
)

// Shared is what the workspaces of a server share.
type Shared struct {
	union *members.Union
	// sources are the UIDs of the objects of children, by those of their copies: see events.go.
	sources *lru.Cache
}

// NewShared returns a Shared.
func NewShared(clk clock.WithTicker) *Shared {
	return &Shared{union: members.NewUnion(clk), sources: lru.New(sourcesKept)}
}

// Config configures a Parent.
type Config struct {
	Child mapping.Child
	// Namespaces reads those of the parent with all permissions.
	Namespaces corev1client.NamespaceInterface
	// API is the configuration of clients of the parent, and Handler its API, both as the user of the child (mapping.Child.User). Handler accepts
	// requests that change their protocol.
	API     *rest.Config
	Handler http.Handler
}

// Parent has the pods of a child, and the events about its objects. It is an apiserver.Elsewhere.
type Parent struct {
	*Shared
	Config
	core    rest.Interface
	objects dynamic.Interface
}

// Parent returns what shows the objects of a child. It is for one request, or for several.
func (s *Shared) Parent(cfg Config) (*Parent, error) {
	config := rest.CopyConfig(cfg.API)
	config.QPS = -1
	config.AcceptContentTypes, config.ContentType = runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON, runtime.ContentTypeJSON
	config.WarningHandler, config.WarningHandlerWithContext = nil, warnings{}
	core, err := corev1client.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &Parent{Shared: s, Config: cfg, core: core.RESTClient(), objects: objects}, nil
}

// owned is a namespace of the child, and the parent's namespace for it.
type owned struct{ namespace, above, uid string }

// find returns the parent's namespace for one of the child. If the parent has none that belongs to the child, it returns nil: a namespace of the
// name that belongs to others is never asked.
func (p *Parent) find(ctx context.Context, namespace string) (*owned, error) {
	ns, err := p.Namespaces.Get(ctx, p.Child.Namespace(namespace), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, ofParent(err)
	}
	if of := p.ownedBy(ns); of != nil && of.namespace == namespace {
		return of, nil
	}
	return nil, nil
}

// ownedBy returns the child's namespace for one of the parent; nil if it is not the child's.
func (p *Parent) ownedBy(ns *corev1.Namespace) *owned {
	namespace := ns.Annotations[v1alpha1.SourceNamespaceAnnotation]
	if !p.Child.Owns(ns) || namespace == "" || p.Child.Namespace(namespace) != ns.Name {
		return nil
	}
	return &owned{namespace, ns.Name, string(ns.UID)}
}

// all returns the namespaces that a request is about: one, or with "" all.
func (p *Parent) all(ctx context.Context, namespace string) (out []owned, err error) {
	if namespace != "" {
		of, err := p.find(ctx, namespace)
		if of == nil || err != nil {
			return nil, err
		}
		return []owned{*of}, nil
	}
	list, err := p.Namespaces.List(ctx, metav1.ListOptions{LabelSelector: v1alpha1.ChildUIDLabel + "=" + string(p.Child.UID)})
	if err != nil {
		return nil, ofParent(err)
	}
	for i := range list.Items {
		if of := p.ownedBy(&list.Items[i]); of != nil {
			out = append(out, *of)
		}
	}
	return out, nil
}

// List implements apiserver.Elsewhere.
func (p *Parent) List(ctx context.Context, resource, namespace string, here cache.ListerWatcherWithContext, o metav1.ListOptions) (runtime.Object, []string, error) {
	said := &said{}
	list, missing, err := p.union.List(context.WithValue(ctx, saidKey{}, said), resource, namespace, p.parts(resource, namespace), here, o)
	return list, append(missing, said.all()...), err
}

// Watch implements apiserver.Elsewhere.
func (p *Parent) Watch(ctx context.Context, resource, namespace string, here cache.ListerWatcherWithContext, o metav1.ListOptions) (watch.Interface, error) {
	return p.union.Watch(ctx, resource, namespace, p.parts(resource, namespace), here, o)
}

// parts returns what a list or a watch reads: the lists of the namespaces of the child, as they are then.
func (p *Parent) parts(resource, namespace string) members.Parts {
	return members.Parts{Of: string(p.Child.UID), Read: func(ctx context.Context) (out []members.Part, err error) {
		all, err := p.all(ctx, namespace)
		for _, of := range all {
			out = append(out, p.part(resource, of))
		}
		return out, err
	}}
}

func (p *Parent) part(resource string, of owned) members.Part {
	request := func(o *metav1.ListOptions) *rest.Request {
		return p.core.Get().Namespace(of.above).Resource(resource).VersionedParams(o, parameters)
	}
	return members.Part{
		Name:    of.above + "/" + of.uid,
		Missing: fmt.Sprintf("the %s of namespace %s are missing", resource, of.namespace),
		List: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list := newList(resource)
			return list, ofParent(request(&o).Do(ctx).Into(list))
		},
		Watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return request(&o).Watch(ctx)
		},
		Complete: func(ctx context.Context, obj members.Object) (bool, error) { return p.complete(ctx, of, obj) },
		Show:     func(obj members.Object) { show(of, obj) },
	}
}

// Get implements apiserver.Elsewhere.
func (p *Parent) Get(ctx context.Context, resource, namespace, name string) (runtime.Object, []string, error) {
	said := &said{}
	obj, _, err := p.get(context.WithValue(ctx, saidKey{}, said), resource, namespace, name)
	if err != nil {
		return nil, nil, err
	}
	p.union.Number(obj)
	return obj, said.all(), nil
}

// get returns an object of the parent as the child sees it, with the resource version of the parent.
func (p *Parent) get(ctx context.Context, resource, namespace, name string) (members.Object, *owned, error) {
	of, err := p.find(ctx, namespace)
	if err != nil {
		return nil, nil, err
	}
	if of == nil {
		return nil, nil, apierrors.NewNotFound(corev1.Resource(resource), name)
	}
	obj := newObject(resource)
	if err := p.core.Get().Namespace(of.above).Resource(resource).Name(name).Do(ctx).Into(obj); err != nil {
		return nil, nil, ofParent(err)
	}
	shown, err := p.complete(ctx, *of, obj)
	if err == nil && !shown {
		err = apierrors.NewNotFound(corev1.Resource(resource), name)
	}
	show(*of, obj)
	return obj, of, err
}

// Metrics implements apiserver.Elsewhere. Workspaces do not have the group.
func (*Parent) Metrics(_ context.Context, resource, _ string, _ metav1.ListOptions) (runtime.Object, []string, error) {
	return nil, nil, apierrors.NewNotFound(corev1.Resource(resource), "")
}

// MetricsOf implements apiserver.Elsewhere.
func (*Parent) MetricsOf(_ context.Context, resource, _, name string) (runtime.Object, []string, error) {
	return nil, nil, apierrors.NewNotFound(corev1.Resource(resource), name)
}

// ofParent says that an error is one of the parent. An object that it does not have is one that the child does not have either.
func ofParent(err error) error {
	status := (*apierrors.StatusError)(nil)
	if err == nil || apierrors.IsNotFound(err) || !errors.As(err, &status) {
		return err
	}
	out := *status
	out.ErrStatus.Message = "the workspace above: " + out.ErrStatus.Message
	return &out
}

// saidKey is in the context of requests whose warnings are collected.
type saidKey struct{}

// said are the warnings of the parent about one request, each once.
type said struct {
	mu    sync.Mutex
	texts []string
}

func (s *said) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.texts
}

// warnings passes the warnings of the parent on.
type warnings struct{}

// HandleWarningHeaderWithContext implements rest.WarningHandlerWithContext.
func (warnings) HandleWarningHeaderWithContext(ctx context.Context, code int, _, text string) {
	s, ok := ctx.Value(saidKey{}).(*said)
	if !ok || code != warningCode || len(text) > maxWarning {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.texts) < maxWarnings && !contains(s.texts, text) {
		s.texts = append(s.texts, text)
	}
}
