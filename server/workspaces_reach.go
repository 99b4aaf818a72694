package server

import (
	"context"
	"net/http"

	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	tenancyv1alpha1 "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/apiserver"
	"github.com/atoll-dev/atoll/apiserver/workspaces"
	"github.com/atoll-dev/atoll/tenancy"
	"github.com/atoll-dev/atoll/tenancy/reach"
)

var _ apiserver.Elsewhere = (*reach.Parent)(nil)

// elsewhere returns access, for one request, to the pods of a workspace whose objects run in the clusters of the root; nil for other workspaces.
func (t *tenants) elsewhere(ctx context.Context, path string, open *workspaces.Workspace) (_ apiserver.Elsewhere, release func(), err error) {
	none := func() {}
	if path == "" {
		return nil, none, nil
	}
	w, parent, leave, err := t.withParent(ctx, path)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if release == nil {
			leave()
		}
	}()
	if string(w.UID) != open.UID() {
		return nil, nil, tenancy.ErrNotFound
	}
	if w.Spec.Placement == nil {
		leave()
		return nil, none, nil
	}
	above := tenancy.Parent(path)
	if placed, err := t.reachesRoot(ctx, above); err != nil {
		return nil, nil, err
	} else if !placed {
		leave()
		return nil, none, nil
	}
	e, err := t.elsewhereIn(ctx, above, w, parent)
	if err != nil {
		return nil, nil, err
	}
	return e, leave, nil
}

// reachesRoot reports whether the objects of a workspace with that path, which may be the root, run in the clusters of the root.
func (t *tenants) reachesRoot(ctx context.Context, path string) (bool, error) {
	for ; path != ""; path = tenancy.Parent(path) {
		w, _, leave, err := t.withParent(ctx, path)
		if err != nil {
			return false, err
		}
		leave()
		if w.Spec.Placement == nil {
			return false, nil
		}
	}
	return true, nil
}

// elsewhereIn returns access to the pods of a workspace in its parent. The request keeps the parent open, as all workspaces on its path.
func (t *tenants) elsewhereIn(ctx context.Context, above string, w *tenancyv1alpha1.Workspace, parent *rest.Config) (*reach.Parent, error) {
	child := childOf(w)
	handler := apiserver.HandlerAs(t.s.api.Handler(), child.User())
	if above != "" {
		_, open, leave, err := t.tree.Acquire(ctx, above)
		if err != nil {
			return nil, err
		}
		defer leave()
		if handler, err = t.served.HandlerAs(open.Workspace, above, child.User()); err != nil {
			return nil, err
		}
	}
	privileged := rest.CopyConfig(parent)
	privileged.WarningHandlerWithContext = rest.NoWarnings{}
	privileged.Wrap(withoutValues)
	core, err := corev1client.NewForConfig(privileged)
	if err != nil {
		return nil, err
	}
	asChild := rest.CopyConfig(parent)
	asChild.Impersonate = rest.ImpersonationConfig{UserName: child.User()}
	asChild.Wrap(withoutValues)
	return t.reach.Parent(reach.Config{Child: child, Namespaces: core.Namespaces(), API: asChild, Handler: handler})
}

// withoutValues is a transport for requests to one API on behalf of a request to another one: the values in its context are about that one.
func withoutValues(next http.RoundTripper) http.RoundTripper {
	return roundTrip(func(r *http.Request) (*http.Response, error) {
		return next.RoundTrip(r.WithContext(apiserver.Detach(r.Context())))
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
