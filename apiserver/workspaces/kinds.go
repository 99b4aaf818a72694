package workspaces

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	apiextensionsoptions "k8s.io/apiextensions-apiserver/pkg/cmd/server/options"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/client-go/discovery"

	"github.com/atoll-dev/atoll/apiserver"
)

// kindsTimeout bounds the wait for the kinds of a workspace. Those of an installed package are known in milliseconds.
const kindsTimeout = 5 * time.Second

// Kinds serves API groups of one workspace that have no definitions. kinds.Server implements it.
type Kinds interface {
	http.Handler
	// Serves reports whether a group is served now.
	Serves(group string) bool
	// Discovery serves the document of the groups that are served now.
	Discovery() http.Handler
	// Await waits until all groups are known. It returns an error when ctx ends.
	Await(ctx context.Context) error
	// Used returns discovery that omits kinds without stored objects.
	Used(discovery.DiscoveryInterface) discovery.DiscoveryInterface
}

// OnKinds sets the function that returns the kinds of a workspace without definitions, nil if it has none. They last as long as the
// workspace is open. Call it before the first request.
func (w *Workspace) OnKinds(kinds func(context.Context) (Kinds, error)) { w.kinds = kinds }

// Kinds returns the kinds of a workspace that have no definitions; nil if it has none.
func (w *Workspace) Kinds(ctx context.Context) (Kinds, error) {
	if w.kinds == nil {
		return nil, nil
	}
	return w.kinds(ctx)
}

// KindsEnd returns the place of a server of kinds without definitions in the chain, for one workspace.
func (s *Server) KindsEnd(w *Workspace) (end apiserver.ChainEnd, err error) {
	chain, err := s.built()
	if err != nil {
		return end, err
	}
	etcd := *chain.etcd
	storage := options{upstream: apiextensionsoptions.NewCRDRESTOptionsGetter(etcd, nil, nil), transformer: chain.transformer, quotas: chain.quotas, of: onlyIn(w)}
	return apiserver.ChainEnd{
		CustomResources: &apiextensionsapiserver.Config{GenericConfig: &genericapiserver.RecommendedConfig{Config: *chain.generic}},
		Options:         storage,
		Keyspace:        w.client.KV,
		Version:         apiserver.KubernetesVersion(),
		NotFound:        http.HandlerFunc(noSuchPath),
	}, nil
}

// onlyIn returns the function that decides in which workspace the objects of a kind are that one workspace has: in this one, and a request to
// another one fails.
func onlyIn(w *Workspace) func(context.Context) *Workspace {
	return func(ctx context.Context) *Workspace {
		if in := workspaceOf(ctx); allOf(ctx) != nil || in != nil && in != w {
			return nil
		}
		return w
	}
}

// Keyspace returns the client of the keyspace of a workspace, for readers that bypass the API.
func (w *Workspace) Keyspace() *clientv3.Client { return w.client.Client }

// Decrypt returns a stored value of a custom resource, or of a kind without a definition, in JSON. key is that of the value in the keyspace.
func (s *Server) Decrypt(ctx context.Context, resource schema.GroupResource, key string, stored []byte) ([]byte, error) {
	plain, _, err := s.config.Transformer(resource).TransformFromStorage(ctx, stored, value.DefaultContext(key))
	if err != nil {
		return nil, fmt.Errorf("decrypt %s, stored under %s: %w", resource, key, err)
	}
	return plain, nil
}

// isKindsGroup reports whether a group is one that only kinds without definitions may have.
func (c *chain) isKindsGroup(group string) bool {
	return c.kindsDomain != "" && strings.HasSuffix(group, "."+c.kindsDomain)
}

// serveKinds serves a request for a group of kinds without definitions. It returns false if the workspace does not serve the group so.
func (c *chain) serveKinds(w http.ResponseWriter, r *http.Request, workspace *Workspace, group string) bool {
	kinds, err := workspace.Kinds(r.Context())
	if err == nil && kinds == nil {
		return false
	}
	if err == nil && !kinds.Serves(group) {
		err = awaitKinds(r.Context(), kinds)
	}
	if err != nil {
		if !errors.Is(err, errKindsUnknown) {
			c.log.Error("open the kinds of a workspace failed", "workspace", PathOf(r.Context()), "error", err)
		}
		answer(w, r, unavailable("the kinds of "+group+" are not known now: retry"))
		return true
	}
	if !kinds.Serves(group) {
		return false
	}
	kinds.ServeHTTP(w, r)
	return true
}

// errKindsUnknown is returned if a workspace may have kinds that are not known yet.
var errKindsUnknown = errors.New("not all kinds of the workspace are known yet")

// awaitKinds waits until all kinds of a workspace are known.
// Errors: errKindsUnknown.
func awaitKinds(ctx context.Context, kinds Kinds) error {
	ctx, cancel := context.WithTimeout(ctx, kindsTimeout)
	defer cancel()
	if kinds.Await(ctx) != nil {
		return errKindsUnknown
	}
	return nil
}

// kindsForDiscovery returns the kinds of a workspace, for its discovery. The server's own controllers get an error while not all are known:
// they would take the objects of the others for objects of kinds that do not exist.
func (c *chain) kindsForDiscovery(ctx context.Context, w *Workspace) (Kinds, error) {
	kinds, err := w.Kinds(ctx)
	if err != nil || kinds == nil {
		return nil, err
	}
	if err := awaitKinds(ctx, kinds); err != nil && isServers(ctx) {
		return nil, err
	}
	return kinds, nil
}
