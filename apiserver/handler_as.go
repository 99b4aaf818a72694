package apiserver

import (
	"context"
	"net/http"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// detached is a context that ends with another one and has none of its values: those are about another request.
type detached struct{ context.Context }

func (detached) Value(any) any { return nil }

// Detach returns a context for a request to another API, on behalf of one that is being served: it ends with that one, and has
// nothing else of it. The audit event, the user and the workspace of a request are among the values of its context.
func Detach(ctx context.Context) context.Context { return detached{ctx} }

// HandlerAs returns a handler that passes requests to the API on as a user without other groups, also connections that change their protocol. The user
// is no client: nothing of the client's identity may be in the header.
func HandlerAs(api http.Handler, name string) http.Handler {
	who := &user.DefaultInfo{Name: name, Groups: []string{user.AllAuthenticated}}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := request.WithUser(Detach(r.Context()), who)
		for _, key := range []any{http.ServerContextKey, http.LocalAddrContextKey} { // a proxy whose answer breaks off ends the connection
			ctx = context.WithValue(ctx, key, r.Context().Value(key))
		}
		api.ServeHTTP(w, r.Clone(ctx))
	})
}
