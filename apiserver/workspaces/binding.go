package workspaces

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// Binding makes an API group of one workspace, the exporter, available in another one, the consumer. The definitions are those of the
// exporter, and so is the server of custom resources. The objects are in the keyspace of the consumer, as its RBAC and namespaces are.
type Binding struct {
	Group string
	// Name is that of its APIBinding, for messages.
	Name string
	// ExporterPath, ExporterUID and Export are what the APIBinding refers to, and Resources those of the group that it has. Deleting is set if it is being
	// deleted. They decide about the view of the exporter.
	ExporterPath, ExporterUID, Export string
	Resources                         []string
	Deleting                          bool
	// Open returns the exporter, open, for one request, and the context of that request: it ends when the exporter is being deleted.
	// release is called when the request is over.
	// Errors: ErrNotFound if the exporter does not provide the group now.
	Open func(ctx context.Context) (in context.Context, exporter Exporter, release func(), err error)
	// Changing, if set, is called before a request that changes objects of this resource, unless it is one of the server itself. The
	// returned function is called after it.
	Changing func(ctx context.Context, resource string) (changed func(), err error)
}

// Exporter is an open workspace that provides a group.
type Exporter struct {
	*Workspace
	// Resources are those of the binding that it provides now; nil stands for all of the group.
	Resources sets.Set[string]
}

// provides reports whether consumers have a resource of the group.
func (e Exporter) provides(resource string) bool {
	return e.Resources == nil || e.Resources.Has(resource)
}

// exporterKey is the key of the exporter in the context of a consumer's request.
type exporterKey struct{}

// objectsOf returns the function that decides in which workspace the custom resources are that one workspace defines. For a request of
// a consumer, it is the consumer. Upstream's controllers have no request: they reach the objects of the workspace that defines them, and
// never those of a consumer.
func objectsOf(definer *Workspace) func(context.Context) *Workspace {
	return func(ctx context.Context) *Workspace {
		if allOf(ctx) != nil {
			return nil // only its own resource is served, and not here
		}
		in := workspaceOf(ctx)
		if in == nil || in == definer {
			return definer
		}
		if exporter, _ := ctx.Value(exporterKey{}).(*Workspace); exporter == definer {
			return in
		}
		return nil
	}
}

// bindingOf returns the binding of a workspace that has the group; nil without one.
func (c *chain) bindingOf(ctx context.Context, w *Workspace, group string) (*Binding, error) {
	all, err := c.bindings(ctx, w)
	if err != nil {
		return nil, err
	}
	for i := range all {
		if all[i].Group == group {
			return &all[i], nil
		}
	}
	return nil, nil
}

// serveBound serves a group of custom resources to a consumer.
func (c *chain) serveBound(w http.ResponseWriter, r *http.Request, consumer *Workspace, b *Binding, info *request.RequestInfo) {
	ctx, exporter, release, err := b.Open(r.Context())
	if err != nil {
		c.notProvided(w, r, b, err)
		return
	}
	defer release()
	if info.IsResourceRequest && !exporter.provides(info.Resource) {
		c.notProvided(w, r, b, ErrNotFound)
		return
	}
	if user, _ := request.UserFrom(ctx); b.Changing != nil && changes(info) && user != serverIdentity {
		changed, err := b.Changing(ctx, info.Resource)
		if err != nil {
			c.log.Error("prepare a change of a bound resource failed", "workspace", PathOf(ctx), "resource", info.Resource, "error", err)
			answer(w, r, unavailable(fmt.Sprintf("%s cannot be changed now: retry", info.Resource)))
			return
		}
		defer changed()
	}
	r = r.WithContext(context.WithValue(ctx, exporterKey{}, exporter.Workspace))
	if exporter.Resources == nil || info.IsResourceRequest {
		c.serveDefined(w, r, exporter.Workspace, true)
		return
	}
	c.serveBoundList(w, r, exporter)
}

// changes reports whether a request may change objects of a resource, except for their subresources.
func changes(info *request.RequestInfo) bool {
	switch info.Verb {
	case "create", "update", "patch", "delete", "deletecollection":
		return info.IsResourceRequest && info.Subresource == ""
	}
	return false
}

// notProvided answers a request for a resource whose exporter cannot be reached, or does not provide it.
func (c *chain) notProvided(w http.ResponseWriter, r *http.Request, b *Binding, err error) {
	if errors.Is(err, ErrNotFound) {
		status := apierrors.NewGenericServerResponse(http.StatusNotFound, "", schema.GroupResource{Group: b.Group}, "", "", 0, false)
		status.ErrStatus.Message = fmt.Sprintf("the export of APIBinding %s does not have this resource now; the objects are kept until it has", b.Name)
		answer(w, r, status)
		return
	}
	c.log.Error("open the exporter of an API group failed", "workspace", PathOf(r.Context()), "group", b.Group, "error", err)
	answer(w, r, unavailable(fmt.Sprintf("the exporter of %s cannot be opened now: retry", b.Group)))
}
