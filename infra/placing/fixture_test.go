package placing

import (
	"maps"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	kschema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	fleetv1 "github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

type fields = map[string]any

// fixture is an API server in memory with the namespace shop.
type fixture struct {
	t      *testing.T
	server *fakeapi.Server
	dyn    dynamic.Interface
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	crds, err := v1alpha1.CRDs()
	if err != nil {
		t.Fatal(err)
	}
	s := &fixture{t: t, server: fakeapi.New(t, append(fakeapi.CRDs(t, crds...), fakeapi.BuiltIn("", "v1", "Namespace", "namespaces"),
		fakeapi.BuiltIn("apps", "v1", "Deployment", "deployments"), fakeapi.Custom("ResourceBinding", fleetv1.ResourceBindingResource))...)}
	s.dyn = s.server.Dynamic()
	s.server.Put(fields{"apiVersion": "v1", "kind": "Namespace", "metadata": fields{"name": "shop"}})
	return s
}

// make creates an object as a user would.
func (s *fixture) make(kind, name string, spec fields) {
	s.t.Helper()
	s.server.Put(fields{"apiVersion": "infra.atoll.dev/v1alpha1", "kind": kind, "metadata": fields{"name": name, "namespace": "shop"}, "spec": spec})
}

var deployments = kschema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}

// deployment creates a Deployment and returns the stored object.
func (s *fixture) deployment(name, image string) *unstructured.Unstructured {
	s.t.Helper()
	return s.server.Put(fields{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": fields{"name": name, "namespace": "shop", "labels": fields{"app": name}},
		"spec": fields{"replicas": 2, "template": fields{"spec": fields{"containers": []any{fields{"name": "c", "image": image,
			"env": []any{fields{"name": "P", "valueFrom": fields{"secretKeyRef": fields{"name": "db", "key": "p"}}}}}}}}}})
}

// binds creates or updates the binding of an object.
func (s *fixture) binds(o *unstructured.Unstructured, change func(*fleetv1.ResourceBinding)) *fleetv1.ResourceBinding {
	s.t.Helper()
	b := &fleetv1.ResourceBinding{}
	name := fleetv1.BindingName(o.GroupVersionKind().GroupKind(), o.GetName())
	if !s.server.Read(fleetv1.ResourceBindingResource, "shop", name, b) {
		b = &fleetv1.ResourceBinding{TypeMeta: metav1.TypeMeta{APIVersion: fleetv1.Group + "/" + fleetv1.Version, Kind: "ResourceBinding"}, ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "shop"},
			Spec: fleetv1.ResourceBindingSpec{Resource: fleetv1.ObjectReference{APIVersion: o.GetAPIVersion(), Kind: o.GetKind(), Name: o.GetName(), UID: o.GetUID(), Resource: "deployments"}}}
	}
	change(b)
	s.server.Put(b)
	s.server.Read(fleetv1.ResourceBindingResource, "shop", name, b)
	return b
}

func shares(replicas map[string]int32) (out []fleetv1.ClusterShare) {
	for _, name := range slices.Sorted(maps.Keys(replicas)) {
		n := replicas[name]
		out = append(out, fleetv1.ClusterShare{Name: name, Replicas: &n, Reason: "Proposed"})
	}
	return out
}

// proposes returns a change that sets the scheduler's proposal.
func proposes(o *unstructured.Unstructured, digest string, content bool, replicas map[string]int32) func(*fleetv1.ResourceBinding) {
	return func(b *fleetv1.ResourceBinding) {
		if b.Spec.Manual == nil {
			b.Spec.Manual = &fleetv1.ManualBinding{}
		}
		b.Status.Proposal = &fleetv1.BindingProposal{Digest: digest, Object: interpret.ContentDigest(o), Content: content, Clusters: shares(replicas), Message: "it would change"}
	}
}

// allowed returns a change by which the scheduler carries out an approved proposal.
func allowed(o *unstructured.Unstructured, replicas map[string]int32) func(*fleetv1.ResourceBinding) {
	return func(b *fleetv1.ResourceBinding) {
		b.Spec.Manual, b.Spec.Approved, b.Spec.Clusters = &fleetv1.ManualBinding{Content: interpret.ContentDigest(o)}, "", shares(replicas)
		b.Status.Proposal = nil
	}
}

// runs returns a change that sets the clusters' reports.
func runs(o *unstructured.Unstructured, health fleetv1.Health) func(*fleetv1.ResourceBinding) {
	return func(b *fleetv1.ResourceBinding) {
		b.Status.Clusters, b.Status.Conditions = nil, nil
		for _, c := range b.Spec.Clusters {
			b.Status.Clusters = append(b.Status.Clusters, fleetv1.ClusterState{Name: c.Name, UID: "there", Generation: o.GetGeneration(), Replicas: c.Replicas, Health: health})
		}
		if health == fleetv1.Healthy {
			b.Status.Conditions = []metav1.Condition{{Type: fleetv1.BindingHealthy, Status: metav1.ConditionTrue, Reason: "x", ObservedGeneration: b.Generation}}
		}
	}
}

func every(is bool) func(labels.Set) bool { return func(labels.Set) bool { return is } }
