package server

import (
	"net/http"
	"sync"

	"k8s.io/client-go/dynamic"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/apiserver"
	"github.com/atoll-dev/atoll/infra/changes"
)

// planChanges serves the subresource changes of plans.
func (s *Server) planChanges() apiserver.Subresource {
	client := s.selfClient()
	return apiserver.Subresource{
		Resource:    v1alpha1.PlanResource,
		Name:        changes.Subresource,
		Kind:        changes.ListKind,
		LongRunning: changes.IsStream,
		Serve: func(w http.ResponseWriter, r *http.Request, namespace, name string, _ apiserver.User) {
			api, err := client()
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			changes.New(api).Serve(w, r, namespace, name)
		},
	}
}

// selfClient returns a function that returns a client of this server's own API. The API
// exists by the time of the first request.
func (s *Server) selfClient() func() (dynamic.Interface, error) {
	return sync.OnceValues(func() (dynamic.Interface, error) {
		return dynamic.NewForConfig(s.api.ClientConfig(serverUser))
	})
}
