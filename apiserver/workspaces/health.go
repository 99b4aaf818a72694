package workspaces

import (
	"context"
	"net/http"
	"time"

	"k8s.io/apiserver/pkg/server/healthz"
)

// healthTimeout bounds the check of a keyspace.
const healthTimeout = 2 * time.Second

// withHealth answers /healthz, /livez and /readyz of a workspace. A workspace is healthy if its keyspace can be read. The checks of the server itself are
// those of the root: upstream's would fail here, because the chain of workspaces has no hooks that run after a start.
func withHealth(next http.Handler) http.Handler {
	paths := healthPaths{}
	keyspace := healthz.NamedCheck("etcd", func(r *http.Request) error {
		w := workspaceOf(r.Context())
		if w == nil {
			return errNoWorkspace
		}
		ctx, cancel := context.WithTimeout(r.Context(), healthTimeout)
		defer cancel()
		_, err := w.client.KV.Get(ctx, "/registry/health")
		return err
	})
	healthz.InstallHandler(paths, healthz.PingHealthz, keyspace)
	healthz.InstallLivezHandler(paths, healthz.PingHealthz)
	healthz.InstallReadyzHandler(paths, healthz.PingHealthz, keyspace)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler, is := paths[r.URL.Path]
		if !is {
			handler = next
		}
		handler.ServeHTTP(w, r)
	})
}

// healthPaths are the handlers of the checks, all together and one by one.
type healthPaths map[string]http.Handler

func (p healthPaths) Handle(path string, handler http.Handler) { p[path] = handler }
