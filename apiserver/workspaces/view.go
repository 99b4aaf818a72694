package workspaces

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/endpoints/request"

	tenancyv1alpha1 "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/apiserver"
)

// exportResource and bindingResource are the resources whose objects decide about views.
var (
	exportResource  = tenancyv1alpha1.APIExportResource.GroupResource()
	bindingResource = tenancyv1alpha1.APIBindingResource.GroupResource()
)

// ConsumerAnnotation is the annotation of an audit event of a view: the path of the consumer, or an asterisk for all.
const ConsumerAnnotation = "tenancy.atoll.dev/consumer"

// view is a request of an exporter for the objects that its consumers have of the exported resources. The request is one to the exporter's
// workspace: there its user is authenticated and authorized, and there it is counted.
type view struct {
	exporter *Workspace
	viewPath
}

type (
	viewKey struct{}
	// consumerKey is the key of the view in the context of its part within a consumer.
	consumerKey struct{}
)

// viewOf returns the view of a request, before it enters a consumer; nil for other requests.
func viewOf(ctx context.Context) *view {
	v, _ := ctx.Value(viewKey{}).(*view)
	return v
}

// viewVerbs are the verbs of an APIExport that permit the verbs of a request through its view.
var viewVerbs = map[string]string{
	"get": tenancyv1alpha1.ViewVerb, "list": tenancyv1alpha1.ViewVerb, "watch": tenancyv1alpha1.ViewVerb,
	"create": tenancyv1alpha1.ManageVerb, "update": tenancyv1alpha1.ManageVerb, "patch": tenancyv1alpha1.ManageVerb,
	"delete": tenancyv1alpha1.ManageVerb, "deletecollection": tenancyv1alpha1.ManageVerb,
}

// viewAuthorizer asks for a verb on the APIExport instead of one on the objects, which are not the exporter's. It does so for the request of
// a view alone, and not for what filters ask in addition, such as the right to impersonate.
type viewAuthorizer struct{ authorizer.Authorizer }

// Authorize implements authorizer.Authorizer.
func (a viewAuthorizer) Authorize(ctx context.Context, of authorizer.Attributes) (authorizer.Decision, string, error) {
	v := viewOf(ctx)
	verb, known := viewVerbs[of.GetVerb()]
	if v == nil || !known {
		return a.Authorizer.Authorize(ctx, of)
	}
	export := tenancyv1alpha1.APIExportResource
	decision, _, err := a.Authorizer.Authorize(ctx, authorizer.AttributesRecord{User: of.GetUser(), Verb: verb, APIGroup: export.Group, APIVersion: export.Version,
		Resource: export.Resource, Name: v.export, ResourceRequest: true})
	return decision, fmt.Sprintf("the view needs the verb %s for the APIExport %s", verb, v.export), err
}

// withViews serves the requests of views, which are authorized. They reach the custom resources of the export and nothing else.
func (c *chain) withViews(next http.Handler) http.Handler {
	ofConsumer := withDue(withCharges(http.HandlerFunc(c.serveConsumer)))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		v := viewOf(ctx)
		if v == nil {
			next.ServeHTTP(w, r)
			return
		}
		audit.AddAuditAnnotation(ctx, ConsumerAnnotation, v.target)
		info, known := request.RequestInfoFrom(ctx)
		exported, err := c.exported(ctx, v.exporter, v.export)
		switch {
		case err == nil && known && !info.IsResourceRequest && r.Method == http.MethodGet:
			err = c.serveViewGroups(w, r, v, exported)
		case err == nil && known && viewVerbs[info.Verb] != "" && exported.Has(schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}):
			err = c.serveView(w, r, v, info, ofConsumer)
		case err == nil:
			err = ErrNotFound
		}
		c.notViewed(w, r, v, err)
	})
}

// exported returns the resources of an export that consumers can have.
func (c *chain) exported(ctx context.Context, exporter *Workspace, export string) (sets.Set[schema.GroupResource], error) {
	all, err := c.exports(ctx, exporter, export)
	if err != nil {
		return nil, err
	}
	out := sets.New(all...)
	for r := range out {
		if IsBuiltIn(r.Group) || c.announced.Has(r.Group) {
			out.Delete(r)
		}
	}
	return out, nil
}

// serveView serves a request for an exported resource.
func (c *chain) serveView(w http.ResponseWriter, r *http.Request, v *view, info *request.RequestInfo, ofConsumer http.Handler) error {
	resource := schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}
	if v.target == everyConsumer {
		if info.Verb != "list" && info.Verb != "watch" || info.Subresource != "" {
			answer(w, r, apierrors.NewMethodNotSupported(resource, info.Verb+" in all workspaces: use the path of one"))
			return nil
		}
		ctx := c.over(r.Context(), consumerScope{c, v, resource}, resource)
		c.serveDefined(w, r.WithContext(ctx), v.exporter, true)
		return nil
	}
	ctx, consumer, release, err := c.open(r.Context(), v.target)
	if err != nil {
		return err
	}
	defer release()
	consumes, err := c.consumes(ctx, v, consumer, resource)
	if err == nil && !consumes {
		err = ErrNotFound
	}
	if err != nil {
		return err
	}
	if info.Verb == "watch" {
		var end func()
		if ctx, end, err = c.whileConsumes(ctx, v, consumer, resource); err != nil {
			return err
		}
		defer end()
	}
	ctx = request.WithUser(ctx, v.user(PathOf(r.Context())))
	ctx = context.WithValue(withWorkspace(ctx, consumer, v.target), consumerKey{}, v)
	ofConsumer.ServeHTTP(w, r.WithContext(context.WithValue(ctx, viewKey{}, nil)))
	return nil
}

// user is the user of a view within its consumers, whose policies and webhooks see it. They must not take an account of the exporter for one
// of their own, which may have the same name. exporter is the path of the exporter.
func (v *view) user(exporter string) user.Info {
	return &user.DefaultInfo{Name: apiserver.ViewUsers + exporter + "/" + v.export, Groups: []string{user.AllAuthenticated}}
}

// consumes reports whether a workspace has a resource by a binding to the export of a view now.
func (c *chain) consumes(ctx context.Context, v *view, w *Workspace, resource schema.GroupResource) (bool, error) {
	b, err := c.bindingOf(ctx, w, resource.Group)
	return err == nil && b.isTo(v, resource.Resource), err
}

// whileConsumes returns a context that ends when the workspace does not have the resource by the export any more. A watch ends then.
func (c *chain) whileConsumes(ctx context.Context, v *view, w *Workspace, resource schema.GroupResource) (_ context.Context, end func(), err error) {
	ctx, end = context.WithCancel(ctx)
	bindings, err := w.follow(ctx, customKey(bindingResource))
	var export <-chan struct{}
	if err == nil {
		export, err = v.exporter.follow(ctx, customKey(exportResource)+v.export)
	}
	if err != nil {
		end()
		return nil, nil, err
	}
	go func() {
		defer end()
		for {
			exported, err := c.exported(ctx, v.exporter, v.export)
			if err != nil || !exported.Has(resource) {
				return
			}
			if consumes, err := c.consumes(ctx, v, w, resource); err != nil || !consumes {
				return
			}
			more := false
			select {
			case _, more = <-bindings:
			case _, more = <-export:
			}
			if !more {
				return
			}
		}
	}()
	return ctx, end, nil
}

// isTo reports whether a binding is one to the export of a view that has a resource.
func (b *Binding) isTo(v *view, resource string) bool {
	return b != nil && !b.Deleting && b.Export == v.export && b.ExporterUID == v.exporter.uid && slices.Contains(b.Resources, resource)
}

// serveConsumer serves a request of a view within the consumer. It reads the binding again, and serves what this one leads to.
func (c *chain) serveConsumer(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	v, _ := ctx.Value(consumerKey{}).(*view)
	info, _ := request.RequestInfoFrom(ctx)
	b, err := c.bindingOf(ctx, workspaceOf(ctx), info.APIGroup)
	if err == nil && !b.isTo(v, info.Resource) {
		err = ErrNotFound
	}
	if err != nil {
		c.notViewed(w, r, v, err)
		return
	}
	c.serveBound(w, r, workspaceOf(ctx), b, info)
}

// serveViewGroups serves the discovery of the exported resources.
func (c *chain) serveViewGroups(w http.ResponseWriter, r *http.Request, v *view, exported sets.Set[schema.GroupResource]) error {
	group := groupOf(r.URL.Path + "/")
	all := &sources{}
	for r := range exported {
		i := slices.IndexFunc(all.bound, func(s boundSource) bool { return s.group == r.Group })
		if i < 0 {
			i = len(all.bound)
			all.bound = append(all.bound, boundSource{group: r.Group, exporter: Exporter{v.exporter, sets.New[string]()}})
		}
		all.bound[i].exporter.Resources.Insert(r.Resource)
	}
	if strings.TrimSuffix(r.URL.Path, "/") != "/apis" {
		for _, from := range all.bound {
			if from.group == group {
				c.serveBoundList(w, r, from.exporter)
				return nil
			}
		}
		return ErrNotFound
	}
	server, err := c.syncedServer(r.Context(), v.exporter)
	if err != nil {
		return err
	}
	for i := range all.bound {
		all.bound[i].customServer = server
	}
	groups, err := all.withOtherGroups(managerOf(nil))
	if err == nil {
		aggregated.WrapAggregatedDiscoveryToHandler(groupList(groups), groups, nil).ServeHTTP(w, r)
	}
	return err
}

// notViewed answers a request that failed before it was served. One answer is for all that a view does not reach.
func (c *chain) notViewed(w http.ResponseWriter, r *http.Request, v *view, err error) {
	switch {
	case err == nil:
	case errors.Is(err, ErrNotFound):
		status := apierrors.NewGenericServerResponse(http.StatusNotFound, "", schema.GroupResource{}, "", "", 0, false)
		status.ErrStatus.Message = fmt.Sprintf("APIExport %s does not have this resource now, or workspace %s is not bound to it", v.export, v.target)
		answer(w, r, status)
	default:
		c.log.Error("serve a view of an APIExport failed", "workspace", PathOf(r.Context()), "export", v.export, "consumer", v.target, "error", err)
		answer(w, r, unavailable("the view of the APIExport cannot be served now: retry"))
	}
}

// viewAdmission removes the annotation that a list over many workspaces adds to objects: a controller writes back the objects that it has read,
// through the view of an export or in the workspace itself.
type viewAdmission struct{}

var _ admission.MutationInterface = viewAdmission{}

func (viewAdmission) Handles(op admission.Operation) bool {
	return op == admission.Create || op == admission.Update
}

// Admit implements admission.MutationInterface.
func (viewAdmission) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	object, err := meta.Accessor(a.GetObject())
	if err != nil {
		return nil //nolint:nilerr // a Scale has no annotations
	}
	all := object.GetAnnotations()
	if of := all[WorkspaceAnnotation]; of != "" && (ctx.Value(consumerKey{}) != nil || of == PathOf(ctx)) {
		delete(all, WorkspaceAnnotation)
		object.SetAnnotations(all)
	}
	return nil
}
