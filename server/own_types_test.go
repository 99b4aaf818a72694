package server_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	fleet "github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	infra "github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/server"
)

// TestReadyServesOwnTypes: kubectl knows Atoll's own types as soon as a server is ready for the first
// time, because a load balancer sends it requests from then on.
func TestReadyServesOwnTypes(t *testing.T) {
	s := newServer(t, server.Config{DataDir: t.TempDir()})
	_, lists, err := s.client(t).Discovery().ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	served := map[schema.GroupVersionResource]bool{}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list.APIResources {
			served[gv.WithResource(r.Name)] = true
		}
	}
	for _, crds := range []func() ([][]byte, error){fleet.CRDs, infra.CRDs} {
		manifests, err := crds()
		if err != nil {
			t.Fatal(err)
		}
		own, err := controllers.DefinedBy(manifests)
		if err != nil {
			t.Fatal(err)
		}
		for _, gvr := range own {
			if !served[gvr] {
				t.Errorf("%v not served", gvr)
			}
		}
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
}
