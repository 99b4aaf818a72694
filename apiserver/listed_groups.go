package apiserver

import (
	"encoding/json"
	"net/http"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/util/responsewriter"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
)

// listGroups adds groups without APIServices to the list of all groups at /apis, which the aggregating server builds from
// APIServices.
func listGroups(front *genericapiserver.GenericAPIServer, added func() []metav1.APIGroup) {
	const path = "/apis"
	mux := front.Handler.NonGoRestfulMux
	mux.Unregister(path)
	legacy := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// The original handler is still available under the path with a slash.
		theirs := r.Clone(r.Context())
		theirs.URL.Path = path + "/"
		theirs.Header.Set("Accept", "application/json")
		theirs.Header.Del("Accept-Encoding")
		answer := responsewriter.NewInMemoryResponseWriter()
		mux.ServeHTTP(answer, theirs)
		var list metav1.APIGroupList
		if err := json.Unmarshal(answer.Data(), &list); err != nil || answer.RespCode() != http.StatusOK {
			w.WriteHeader(answer.RespCode())
			_, _ = w.Write(answer.Data())
			return
		}
		for _, group := range added() {
			if !slices.ContainsFunc(list.Groups, func(g metav1.APIGroup) bool { return g.Name == group.Name }) {
				list.Groups = append(list.Groups, group)
			}
		}
		responsewriters.WriteObjectNegotiated(aggregatorscheme.Codecs, negotiation.DefaultEndpointRestrictions,
			schema.GroupVersion{}, w, r, http.StatusOK, &list, false)
	})
	mux.Handle(path, aggregated.WrapAggregatedDiscoveryToHandler(legacy, front.AggregatedDiscoveryGroupManager, nil))
}
