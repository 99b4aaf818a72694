package kinds

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// fixedSource always has the same groups.
type fixedSource struct {
	groups []Group
	synced chan struct{}
}

func (s fixedSource) Groups() []Group                                    { return s.groups }
func (fixedSource) Changed() <-chan struct{}                             { return nil }
func (s fixedSource) Synced() <-chan struct{}                            { return s.synced }
func (fixedSource) Refused(map[string]string)                            {}
func (fixedSource) Schema(schema.GroupVersionKind) (*spec.Schema, error) { return &spec.Schema{}, nil }
func (fixedSource) Open(schema.GroupVersionKind) (d Definition, _ error) { return d, nil }

// TestRun: without a front server, a Server has a document of its groups, and serves one that another server had as soon as that has it no more.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		group := func(name string) Group {
			return Group{Name: name, Versions: []Version{{Name: "v1", Revision: "1", Kinds: []Names{{Kind: "Widget", Plural: "widgets", Singular: "widget"}}}}}
		}
		source := fixedSource{[]Group{group("free.example.com"), group("taken.example.com")}, make(chan struct{})}
		s := New(source, ChainEnd{CustomResources: &apiextensionsapiserver.Config{GenericConfig: &genericapiserver.RecommendedConfig{}}, NotFound: http.NotFoundHandler()})
		var given atomic.Bool
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			s.Run(ctx, func(group string) string {
				if group == "taken.example.com" && !given.Load() {
					return "another server"
				}
				return ""
			})
		}()
		close(source.synced)
		if err := s.Await(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !s.Serves("free.example.com") || s.Serves("taken.example.com") || s.Serves("example.com") {
			t.Error("a group of another server is served, or a free one is not")
		}
		given.Store(true)
		time.Sleep(2 * sweepInterval)
		synctest.Wait()
		if !s.Serves("taken.example.com") {
			t.Error("a group is not served after the other server has given it up")
		}
		r := httptest.NewRequest(http.MethodGet, "/apis", nil)
		r.Header.Set("Accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
		answer, list := httptest.NewRecorder(), apidiscoveryv2.APIGroupDiscoveryList{}
		s.Discovery().ServeHTTP(answer, r)
		if err := json.Unmarshal(answer.Body.Bytes(), &list); err != nil || len(list.Items) != 2 {
			t.Errorf("the document of the groups is %s: %v", answer.Body, err)
		}
		cancel()
		<-ended
	})
}
