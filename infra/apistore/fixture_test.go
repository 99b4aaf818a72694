package apistore

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kschema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

type fields = map[string]any

const demo = "demo.providers.atoll.dev"

var disks = kschema.GroupVersionResource{Group: demo, Version: "v1", Resource: "disks"}

// fixture is an API server in memory with the namespace shop.
type fixture struct {
	server *fakeapi.Server
	kube   kubernetes.Interface
	dyn    dynamic.Interface
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	crds, err := v1alpha1.CRDs()
	if err != nil {
		t.Fatal(err)
	}
	s := &fixture{server: fakeapi.New(t, append(fakeapi.CRDs(t, crds...), fakeapi.BuiltIn("", "v1", "Namespace", "namespaces"),
		fakeapi.BuiltIn("", "v1", "ConfigMap", "configmaps"), fakeapi.BuiltIn("", "v1", "Secret", "secrets"), fakeapi.BuiltIn("", "v1", "Event", "events"),
		fakeapi.BuiltIn("events.k8s.io", "v1", "Event", "events"), fakeapi.Custom("Disk", disks))...)}
	s.dyn = s.server.Dynamic()
	if s.kube, err = kubernetes.NewForConfig(s.server.Config()); err != nil {
		t.Fatal(err)
	}
	s.server.Put(fields{"apiVersion": "v1", "kind": "Namespace", "metadata": fields{"name": "shop"}})
	return s
}

// disk creates a Disk.
func (s *fixture) disk(name string, finalizers ...string) *unstructured.Unstructured {
	return s.server.Put(fields{"apiVersion": demo + "/v1", "kind": "Disk",
		"metadata": fields{"name": name, "namespace": "shop", "finalizers": finalizers}, "spec": fields{"size": 1}})
}
