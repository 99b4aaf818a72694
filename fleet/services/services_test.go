package services

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/clock"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
	"sigs.k8s.io/yaml"

	corev1 "k8s.io/api/core/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/multicluster"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// stage is the controller on a control plane in memory.
type stage struct {
	t   *testing.T
	api *fakeapi.Server
}

func start(t *testing.T, manifests ...string) *stage {
	t.Helper()
	kinds := slices.Concat(fakeapi.CRDsOf(t, v1alpha1.CRDs), fakeapi.CRDsOf(t, multicluster.CRDs),
		fakeapi.BuiltIns("v1 Namespace", "v1 Event", "v1 Service", "discovery.k8s.io/v1 EndpointSlice", "apiextensions.k8s.io/v1 CustomResourceDefinition"))
	s := &stage{t: t, api: fakeapi.New(t, kinds...)}
	for _, m := range manifests {
		s.put(m)
	}
	ctx, stop := context.WithCancel(t.Context())
	session, err := fleet.NewSession(ctx, fleet.Config{REST: s.api.Config(), Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- Run(ctx, session) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *stage) put(manifest string) {
	s.t.Helper()
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(manifest), &u.Object); err != nil {
		s.t.Fatal(err)
	}
	s.api.Put(u)
}

const (
	export  = `{apiVersion: multicluster.x-k8s.io/v1beta1, kind: ServiceExport, metadata: {namespace: shop, name: web, uid: export, creationTimestamp: "2026-01-01T00:00:00Z"}}`
	service = `{apiVersion: v1, kind: Service, metadata: {namespace: shop, name: web, uid: service}, spec: {type: ClusterIP, selector: {app: web}, ports: [{name: http, port: 80, protocol: TCP}]}}`
)

// binding is that of the Service in some clusters. A policy overrides it in a cluster whose name ends in !.
func binding(clusters ...string) string {
	var shares, states []string
	for _, c := range clusters {
		name, overridden := strings.CutSuffix(c, "!")
		share := "{name: " + name + ", reason: Scheduled}"
		if overridden {
			share = "{name: " + name + ", reason: Scheduled, overrides: [0]}"
		}
		shares = append(shares, share)
		states = append(states, fmt.Sprintf(`{name: %s, uid: in-%[1]s, health: Healthy, lastUpdateTime: "2026-01-01T00:00:00Z"}`, name))
	}
	return fmt.Sprintf(`{apiVersion: fleet.atoll.dev/v1alpha1, kind: ResourceBinding, metadata: {namespace: shop, name: service-web, uid: binding},
  spec: {resource: {apiVersion: v1, kind: Service, name: web, uid: service}, clusters: [%s], overrides: [{jsonPatch: [{op: replace, path: /spec/ports/0/port, value: 8080}]}]}, status: {clusters: [%s]}}`,
		strings.Join(shares, ", "), strings.Join(states, ", "))
}

// slice is what a cluster has reported.
func slice(cluster string) string {
	derived := multicluster.DerivedName("shop", "web")
	return fmt.Sprintf(`{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {namespace: shop, name: %s-%s-ipv4-0, uid: %[2]s, labels: {fleet.atoll.dev/imported: "true",
  multicluster.kubernetes.io/service-name: web, multicluster.kubernetes.io/source-cluster: %[2]s, kubernetes.io/service-name: %[1]s}}, addressType: IPv4, endpoints: []}`, derived, cluster)
}

// conditions waits until the ServiceExport has the conditions, each as type=status reason.
func (s *stage) conditions(want ...string) {
	s.t.Helper()
	fakeapi.Eventually(s.t, strings.Join(want, ", "), func() error {
		is := &mcsv1beta1.ServiceExport{}
		s.api.Read(multicluster.ExportResource(), "shop", "web", is)
		for _, w := range want {
			of, rest, _ := strings.Cut(w, "=")
			c := apimeta.FindStatusCondition(is.Status.Conditions, of)
			if c == nil || fmt.Sprint(c.Status, " ", c.Reason) != rest {
				return fmt.Errorf("%+v", is.Status.Conditions)
			}
		}
		return nil
	})
}

// made returns what exists of the export: kinds, or names of EndpointSlices.
func (s *stage) made() (out []string) {
	for _, slice := range s.api.List(sliceResource()) {
		out = append(out, "slice of "+slice.GetLabels()[mcsv1beta1.LabelSourceCluster])
	}
	if s.api.Get(serviceResource(), "shop", multicluster.DerivedName("shop", "web")) != nil {
		out = append(out, "derived")
	}
	if s.api.Get(multicluster.ImportResource(), "shop", "web") != nil {
		out = append(out, "import")
	}
	if b := s.api.Get(v1alpha1.ResourceBindingResource, "shop", "service-web"); b != nil && b.GetAnnotations()[v1alpha1.ExportedAnnotation] != "" {
		out = append(out, "mark "+b.GetAnnotations()[v1alpha1.ExportedAnnotation])
	}
	slices.Sort(out)
	return out
}

func (s *stage) wantMade(want ...string) {
	s.t.Helper()
	fakeapi.Eventually(s.t, "made: "+strings.Join(want, ", "), func() error {
		if got := s.made(); !slices.Equal(got, want) {
			return fmt.Errorf("made %q", got)
		}
		return nil
	})
}

// TestExport: an export without a Service is not valid. With one, its binding is marked, and there are a derived Service and a
// ServiceImport. When clusters have reported endpoints it is ready, and when it is deleted all of that is gone.
func TestExport(t *testing.T) {
	s := start(t, export)
	s.conditions("Valid=False NoService", "Ready=False Failed")
	s.put(service)
	s.conditions("Valid=True Valid", "Ready=False Pending", "Conflict=False NoConflicts")
	s.put(binding("east", "west"))
	s.wantMade("derived", "import", "mark export")
	s.put(slice("east"))
	s.conditions("Ready=True Exported")
	s.put(slice("west"))
	fakeapi.Eventually(t, "the import has both clusters", func() error {
		is := &mcsv1beta1.ServiceImport{}
		s.api.Read(multicluster.ImportResource(), "shop", "web", is)
		if len(is.Status.Clusters) != 2 || is.Status.EndpointSliceObjects != mcsv1beta1.EndpointSliceObjectsPresent || !apimeta.IsStatusConditionTrue(is.Status.Conditions, "Ready") || len(is.Spec.Ports) != 1 {
			return fmt.Errorf("%+v", is)
		}
		return nil
	})
	s.api.Delete(multicluster.ExportResource(), "shop", "web")
	s.wantMade()
}

// TestLeave: the endpoints of a cluster that the Service left go. Those of the others stay.
func TestLeave(t *testing.T) {
	s := start(t, export, service, binding("east", "west"), slice("east"), slice("west"))
	s.wantMade("derived", "import", "mark export", "slice of east", "slice of west")
	s.api.Change(v1alpha1.ResourceBindingResource, "shop", "service-web", func(u *unstructured.Unstructured) {
		_ = unstructured.SetNestedSlice(u.Object, []any{map[string]any{"name": "west", "reason": "Scheduled"}}, "spec", "clusters")
	})
	s.wantMade("derived", "import", "mark export", "slice of west")
}

// TestLost: the endpoints of a cluster that does not answer stay. They go when other clusters have taken over its pods, although
// the Service stays in the cluster until the pods there are gone.
func TestLost(t *testing.T) {
	s := start(t, export, service, binding("east", "west"), slice("east"), slice("west"))
	s.put(`{apiVersion: fleet.atoll.dev/v1alpha1, kind: Cluster, metadata: {name: east, uid: e}, status: {conditions: [{type: Ready, status: Unknown, reason: ClusterUnreachable, message: "", lastTransitionTime: "2026-01-01T00:00:00Z"}]}}`)
	s.api.Change(v1alpha1.ResourceBindingResource, "shop", "service-web", func(u *unstructured.Unstructured) {
		states, _, _ := unstructured.NestedSlice(u.Object, "status", "clusters")
		states[0].(map[string]any)["stale"] = map[string]any{"since": "2026-01-01T00:00:00Z", "reason": "ClusterUnreachable"}
		_ = unstructured.SetNestedSlice(u.Object, states, "status", "clusters")
	})
	s.conditions("Ready=True Exported")
	s.wantMade("derived", "import", "mark export", "slice of east", "slice of west")
	s.api.Change(v1alpha1.ResourceBindingResource, "shop", "service-web", func(u *unstructured.Unstructured) {
		_ = unstructured.SetNestedSlice(u.Object, []any{map[string]any{"name": "east", "reason": v1alpha1.RemovalReplaced}}, "spec", "requestedRemovals")
	})
	s.wantMade("derived", "import", "mark export", "slice of west")
}

// TestServiceDeleted: without its Service, nothing of an export is left, although the ServiceExport stays.
func TestServiceDeleted(t *testing.T) {
	s := start(t, export, service, binding("east"), slice("east"))
	s.wantMade("derived", "import", "mark export", "slice of east")
	s.api.Delete(serviceResource(), "shop", "web")
	s.conditions("Valid=False NoService")
	s.wantMade()
}

// TestConflict: a policy that changes the ports in one cluster is a conflict. The Service as its author wrote it decides.
func TestConflict(t *testing.T) {
	s := start(t, export, service, binding("a!", "b"), slice("a"), slice("b"))
	s.conditions("Ready=True Exported", "Conflict=True PortConflict")
	fakeapi.Eventually(t, "the derived Service has the port of its author", func() error {
		is := &corev1.Service{}
		s.api.Read(serviceResource(), "shop", multicluster.DerivedName("shop", "web"), is)
		if len(is.Spec.Ports) != 1 || is.Spec.Ports[0].Port != 80 {
			return fmt.Errorf("%+v", is.Spec)
		}
		return nil
	})
}

// TestHeadless: a Service that becomes headless gets another derived Service, because an address cannot be removed.
func TestHeadless(t *testing.T) {
	s := start(t, export, service, binding("east"))
	derived := func() *unstructured.Unstructured {
		return s.api.Get(serviceResource(), "shop", multicluster.DerivedName("shop", "web"))
	}
	s.wantMade("derived", "import", "mark export")
	first := derived().GetUID()
	s.api.Merge(serviceResource(), "shop", "web", `{"spec": {"clusterIP": "None"}}`)
	fakeapi.Eventually(t, "another derived Service", func() error {
		now := derived()
		if now == nil || now.GetUID() == first {
			return errors.New("it is the same")
		}
		if ip, _, _ := unstructured.NestedString(now.Object, "spec", "clusterIP"); ip != "None" {
			return fmt.Errorf("its address is %q", ip)
		}
		return nil
	})
}

// TestAddresses: a ServiceImport records the address of the derived Service in each cluster.
func TestAddresses(t *testing.T) {
	s := start(t, export, service, binding("east"))
	s.wantMade("derived", "import", "mark export")
	name := multicluster.DerivedName("shop", "web")
	s.put(fmt.Sprintf(`{apiVersion: fleet.atoll.dev/v1alpha1, kind: ResourceBinding, metadata: {namespace: shop, name: service-%s, uid: b2}, spec: {resource: {apiVersion: v1, kind: Service, name: %[1]s, uid: d}, clusters: [{name: east, reason: Scheduled}, {name: west, reason: Scheduled}]},
  status: {clusters: [{name: east, uid: e, health: Healthy, clusterIPs: [10.96.0.7], lastUpdateTime: "2026-01-01T00:00:00Z"}, {name: west, health: Unknown, lastUpdateTime: "2026-01-01T00:00:00Z"}]}}`, name))
	fakeapi.Eventually(t, "the addresses", func() error {
		got := s.api.Get(multicluster.ImportResource(), "shop", "web").GetAnnotations()[v1alpha1.ClusterIPsAnnotation]
		if got != `{"east":["10.96.0.7"]}` {
			return fmt.Errorf("%q", got)
		}
		return nil
	})
}

// TestTaken: objects of others that have the names are left alone.
func TestTaken(t *testing.T) {
	s := start(t, export, service, binding("east"), `{apiVersion: multicluster.x-k8s.io/v1beta1, kind: ServiceImport, metadata: {namespace: shop, name: web, uid: foreign}, spec: {type: Headless, ports: []}}`)
	s.conditions("Ready=False Failed")
	s.api.Delete(multicluster.ExportResource(), "shop", "web")
	s.wantMade("import")
}

// TestLeftToMembers: an export with the label that leaves it to the controllers of clusters is none of Atoll's.
func TestLeftToMembers(t *testing.T) {
	s := start(t, export, service, binding("east"), slice("east"))
	s.wantMade("derived", "import", "mark export", "slice of east")
	s.api.Merge(multicluster.ExportResource(), "shop", "web", `{"metadata": {"labels": {"fleet.atoll.dev/home": "Members"}}}`)
	s.wantMade()
}
