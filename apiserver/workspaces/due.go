package workspaces

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/client/v3/kubernetes"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/pkg/apis/rbac"
	"k8s.io/kubernetes/pkg/controller/certificates/rootcacertpublisher"

	"github.com/atoll-dev/atoll/apiserver"
	"github.com/atoll-dev/atoll/apiserver/overlay"
)

// remainder is what a request leaves for controllers.
type remainder int

const (
	nothing remainder = iota
	// dependents are objects that the deleted one may own. There are none in a workspace where no object ever had an owner.
	dependents
	// work is always left.
	work
)

// leaves returns what a request leaves for controllers. It may return too much: then controllers run and find nothing.
func leaves(op admission.Operation, resource schema.GroupResource, options runtime.Object, old, now runtime.Object) remainder {
	if resource == corev1.Resource("events") || resource == eventsv1.Resource("events") {
		return nothing // nothing owns or follows them, and they are the most frequent objects
	}
	was, is := accessor(old), accessor(now)
	switch {
	case is != nil && slices.ContainsFunc(is.GetOwnerReferences(), func(ref metav1.OwnerReference) bool { return was == nil || !hasOwner(was, ref) }):
		return work // the owner may be gone
	case resource == customDefinitions && (was == nil || is == nil || was.GetGeneration() != is.GetGeneration()):
		return work // objects may have owners of that kind
	case resource == apiserver.PoliciesResource.GroupResource() && is != nil && (was == nil || was.GetGeneration() != is.GetGeneration()):
		return work // its types are to be checked
	case aggregates(old) || aggregates(now):
		return work
	case was == nil:
		return nothing
	case was.GetDeletionTimestamp() != nil, isCompanion(resource, was.GetName()):
		return work
	case op != admission.Delete:
		return nothing
	case resource == overlay.Namespaces, propagates(options), finalizedByCollector(was):
		return work
	}
	return dependents
}

func accessor(object runtime.Object) metav1.Object {
	if object == nil {
		return nil
	}
	out, err := meta.Accessor(object)
	if err != nil {
		return nil
	}
	return out
}

func hasOwner(object metav1.Object, ref metav1.OwnerReference) bool {
	return slices.ContainsFunc(object.GetOwnerReferences(), func(r metav1.OwnerReference) bool {
		return r.UID == ref.UID && r.Name == ref.Name && r.Kind == ref.Kind
	})
}

// aggregates reports whether an object is a ClusterRole that aggregates others, or that others may aggregate.
func aggregates(object runtime.Object) bool {
	role, ok := object.(*rbac.ClusterRole)
	return ok && role != nil && (role.AggregationRule != nil || len(role.Labels) > 0)
}

// isCompanion reports whether an object of that name is one that every namespace has.
func isCompanion(resource schema.GroupResource, name string) bool {
	return resource == corev1.Resource("serviceaccounts") && name == overlay.AccountName ||
		resource == corev1.Resource("configmaps") && name == rootcacertpublisher.RootCACertConfigMapName
}

// propagates reports whether a deletion waits for the garbage collector.
func propagates(options runtime.Object) bool {
	o, ok := options.(*metav1.DeleteOptions)
	if !ok || o == nil {
		return false
	}
	return o.PropagationPolicy != nil && *o.PropagationPolicy != metav1.DeletePropagationBackground || o.OrphanDependents != nil && *o.OrphanDependents //nolint:staticcheck // clients still send it
}

// finalizedByCollector reports whether only the garbage collector can complete the deletion of an object.
func finalizedByCollector(object metav1.Object) bool {
	return slices.ContainsFunc(object.GetFinalizers(), func(f string) bool {
		return f == metav1.FinalizerDeleteDependents || f == metav1.FinalizerOrphanDependents
	})
}

// dueMarker is the admission plugin that marks a workspace as due, before a request commits that leaves something for controllers.
type dueMarker struct{}

var _ admission.ValidationInterface = dueMarker{}

func (dueMarker) Handles(op admission.Operation) bool { return op != admission.Connect }

// Validate implements admission.ValidationInterface.
func (dueMarker) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	request, _ := ctx.Value(dueKey{}).(*dueRequest)
	workspace := workspaceOf(ctx)
	if workspace == nil || a.IsDryRun() {
		return nil
	}
	if followed := workspace.followed.Load(); followed.concerns(a) { // also by the controllers, which delete the objects of a namespace
		if err := followed.Changing(ctx); err != nil {
			return apierrors.NewServiceUnavailable(fmt.Sprintf("the change cannot be recorded now for the placement of the object: retry: %v", err))
		}
		request.follow(followed)
	}
	if request == nil {
		return nil
	}
	left := leaves(a.GetOperation(), a.GetResource().GroupResource(), a.GetOperationOptions(), a.GetOldObject(), a.GetObject())
	owners := accessor(a.GetObject()) != nil && len(accessor(a.GetObject()).GetOwnerReferences()) > 0
	if err := workspace.leave(ctx, left, owners); err != nil {
		return apierrors.NewServiceUnavailable(fmt.Sprintf("what the request leaves for controllers cannot be recorded now: retry: %v", err))
	}
	request.add(left)
	return nil
}

type dueKey struct{}

// dueRequest is what a request has left so far. It may be about many objects.
type dueRequest struct {
	mu    sync.Mutex
	left  remainder
	since time.Time // of the first mark
	// followed is set if the request has changed objects that are followed.
	followed *Followed
}

// follow records that the request changes objects that are followed. It does nothing for a request of controllers.
func (r *dueRequest) follow(followed *Followed) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.left == nothing && r.followed == nil {
		r.since = time.Now()
	}
	r.followed = followed
}

func (r *dueRequest) add(left remainder) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.left == nothing && r.followed == nil {
		r.since = time.Now()
	}
	r.left = max(r.left, left)
}

// slowRequest is how long a request may take from its mark to its end, without another mark. It must be shorter than the time between
// the end of a mark's validity and its removal, which is 5 s (tenancy.Marker).
const slowRequest = time.Second

// lateMarkTimeout bounds the mark at the end of a slow request.
const lateMarkTimeout = 10 * time.Second

// withDue marks the workspace again at the end of a request that took long: controllers could have finished in the meantime, before
// they saw what the request did.
func withDue(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		workspace := workspaceOf(r.Context())
		if workspace == nil || workspace.due == nil || r.Context().Value(dueKey{}) != nil || r.Method == http.MethodGet {
			next.ServeHTTP(w, r)
			return
		}
		request := &dueRequest{}
		defer func() {
			request.mu.Lock()
			defer request.mu.Unlock()
			if (request.left == nothing && request.followed == nil) || time.Since(request.since) <= slowRequest {
				return
			}
			ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), lateMarkTimeout)
			defer cancel()
			_ = workspace.leave(ctx, request.left, false) // the answer is sent; DESIGN.md has the consequence
			if request.followed != nil {
				_ = request.followed.Changing(ctx)
			}
		}()
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), dueKey{}, request)))
	})
}

// withoutDue returns the context of a request of the controllers themselves.
func withoutDue(ctx context.Context) context.Context {
	return context.WithValue(ctx, dueKey{}, (*dueRequest)(nil))
}

// OnDue sets the function that marks the workspace as due: controllers must run. It returns when the mark is durable. Call OnDue
// before the first request; without it, no controllers follow what requests do.
func (w *Workspace) OnDue(mark func(context.Context) error) { w.due = mark }

// Followed are resources whose objects are copied elsewhere.
type Followed struct {
	// Resources reports whether a resource is one of them.
	Resources func(schema.GroupResource) bool
	// Changing is called before each change of one of their objects, except for its status, is stored. The request fails with its error. It is called again
	// at the end of a request that takes long.
	Changing func(context.Context) error
}

// concerns reports whether a request changes an object that is followed.
func (f *Followed) concerns(a admission.Attributes) bool {
	return f != nil && a.GetSubresource() != "status" && f.Resources(a.GetResource().GroupResource())
}

// SetFollowed sets which objects are followed; nil stands for none. It may be called at any time.
func (w *Workspace) SetFollowed(followed *Followed) { w.followed.Store(followed) }

// ownersKey exists if an object of the workspace has, or had, an owner.
const ownersKey = "/atoll/owners"

// leave records what a request leaves for controllers. hasOwners is set if it writes an object with owners.
func (w *Workspace) leave(ctx context.Context, left remainder, hasOwners bool) error {
	if w.due == nil {
		return nil
	}
	if hasOwners && !w.owners.Load() {
		if _, err := w.client.Put(ctx, ownersKey, ""); err != nil {
			return err
		}
		w.owners.Store(true)
	}
	if left == dependents {
		owners, err := w.hasOwners(ctx)
		if err != nil || !owners {
			return err
		}
	}
	if left == nothing {
		return nil
	}
	return w.due(ctx)
}

// hasOwners reports whether an object of the workspace has, or had, an owner. Another server may have written the first one.
func (w *Workspace) hasOwners(ctx context.Context) (bool, error) {
	if w.owners.Load() {
		return true, nil
	}
	found, err := w.client.Get(ctx, ownersKey, kubernetes.GetOptions{})
	if err == nil && found.KV != nil {
		w.owners.Store(true)
	}
	return w.owners.Load(), err
}
