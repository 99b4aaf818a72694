package workspaces

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"go.etcd.io/etcd/client/v3/kubernetes"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/atoll-dev/atoll/apiserver/merged"
	"github.com/atoll-dev/atoll/apiserver/turns"
)

// Workspace is one workspace that is awake: an open keyspace, and what requests have needed of it so far. It has neither
// goroutines nor timers of its own.
type Workspace struct {
	// uid is never used again, unlike the path. issuedBy is in the issuer of its service-account tokens: the UID, or the one that it had
	// before it moved.
	uid, issuedBy string
	client        *kubernetes.Client
	// due is that of OnDue. owners is set once an object is known to have an owner.
	due func(context.Context) error
	// followed is that of SetFollowed.
	followed atomic.Pointer[Followed]
	// kinds is that of OnKinds.
	kinds  func(context.Context) (Kinds, error)
	owners atomic.Bool
	// admits is set once the workspace is known to have, or to have had, webhooks or policies.
	admits atomic.Bool
	// requests and watches are how many are under way: see flows.go.
	requests, watches atomic.Int64
	quotas            quotaStates
	// turns are those of its requests that evaluate expressions: see package turns.
	turns turns.Turns
	// compiledLimits bound its definitions and expressions: see compiled.go.
	compiledLimits atomic.Pointer[Compiled]
	// consumers are the entries of consumers that are known to be written, and positions those of views over all of them.
	consumers sync.Map
	positions merged.Positions

	mu sync.Mutex
	// paced is nil until the first request of a user: see slots.
	paced  chan struct{}
	stores map[*requestStore]openStore // nil after Close
	tokens tokens
	crds   *customServer // nil until a request needs it
	// admitting are the plugins for the workspace's own webhooks and policies, nil until a request needs them.
	admitting *admissionServer
}

// openStore is the storage of one resource in one workspace.
type openStore struct {
	storage.Interface
	destroy func()
}

// tokens issue and verify the service-account tokens of one workspace.
type tokens struct {
	generator serviceaccount.TokenGenerator
	// inSecrets issues the tokens of Secrets, which do not expire.
	inSecrets     serviceaccount.TokenGenerator
	authenticator authenticator.Token
}

// NewWorkspace returns the workspace with that UID, whose objects are in the client's keyspace. The caller closes it when no request
// uses it any more, and then the keyspace.
func NewWorkspace(uid string, client *kubernetes.Client) *Workspace {
	return &Workspace{uid: uid, issuedBy: uid, client: client, stores: map[*requestStore]openStore{}, turns: turns.New()}
}

// Close releases what requests have opened. Requests fail from then on.
func (w *Workspace) Close() {
	w.quotas.close()
	w.mu.Lock()
	crds, stores, admitting := w.crds, w.stores, w.admitting
	w.crds, w.stores, w.admitting = nil, nil, nil
	w.mu.Unlock()
	if admitting != nil {
		admitting.stop()
	}
	if crds != nil {
		crds.stop()
	}
	for of, s := range stores {
		of.leave(w)
		s.destroy()
	}
}

var errClosed = errors.New("the workspace is closed: repeat the request")

// store returns the storage of a resource, and opens it for the first request.
func (w *Workspace) store(of *requestStore) (storage.Interface, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stores == nil {
		return nil, errClosed
	}
	if s, ok := w.stores[of]; ok {
		return s, nil
	}
	s, destroy, err := of.open(w.client)
	if err != nil {
		return nil, err
	}
	if err := of.enter(w); err != nil {
		destroy()
		return nil, err
	}
	w.stores[of] = openStore{s, destroy}
	return s, nil
}

// forget closes a storage that no request uses any more.
func (w *Workspace) forget(of *requestStore) {
	w.mu.Lock()
	s, ok := w.stores[of]
	delete(w.stores, of)
	w.mu.Unlock()
	if ok {
		s.destroy()
	}
}

type (
	workspaceKey struct{}
	pathKey      struct{}
)

// withWorkspace returns the context of a request to a workspace, by the path that the request has for it.
func withWorkspace(ctx context.Context, w *Workspace, path string) context.Context {
	return context.WithValue(context.WithValue(ctx, workspaceKey{}, w), pathKey{}, path)
}

// WithPath returns the context of a request to an open workspace by that path.
func WithPath(ctx context.Context, w *Workspace, path string) context.Context {
	return withWorkspace(ctx, w, path)
}

// workspaceOf returns the workspace of a request, nil if the context is not that of one.
func workspaceOf(ctx context.Context) *Workspace {
	w, _ := ctx.Value(workspaceKey{}).(*Workspace)
	return w
}

// PathOf returns the path of the workspace that a request is to, "" if the request is one of the server itself, or to none.
func PathOf(ctx context.Context) string {
	path, _ := ctx.Value(pathKey{}).(string)
	return path
}

// errNoWorkspace is the error of code that has lost the context of its request. It must not reach any workspace then.
var errNoWorkspace = errors.New("the request has no workspace: this is a bug, please report it")
