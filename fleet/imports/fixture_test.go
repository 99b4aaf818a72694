package imports

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kschema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

var widgets = kschema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}

// fixture is the controller between a control plane and members.
type fixture struct {
	t       *testing.T
	control *fakeapi.Server
	members map[string]*fakeMember
	fields  *Fields
	session *fleet.Session
}

// fakeMember serves its CRDs, and documents about its other types.
type fakeMember struct {
	*fakeapi.Server
	documents *fakeDocuments
}

// newFixture starts the controller with the given members and objects in the control plane.
func newFixture(t *testing.T, members []string, control ...string) *fixture {
	t.Helper()
	s := &fixture{t: t, members: map[string]*fakeMember{}, fields: NewFields()}
	builtIn := fakeapi.BuiltIns("apiextensions.k8s.io/v1 CustomResourceDefinition", "v1 ConfigMap", "v1 Namespace", "v1 Event")
	s.control = fakeapi.New(t, append(append(fakeapi.CRDsOf(t, v1alpha1.CRDs), fakeapi.Custom("Widget", widgets)), builtIn...)...)
	s.control.OnStore(establish)
	for _, name := range members {
		m := &fakeMember{fakeapi.New(t, builtIn[:1]...), &fakeDocuments{}}
		m.OnStore(establish)
		s.members[name] = m
		s.control.Put(newCluster(name, true))
	}
	for _, manifest := range control {
		s.control.Put(s.read(manifest))
	}
	s.start()
	return s
}

func (s *fixture) read(manifest string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(manifest), &u.Object); err != nil {
		s.t.Fatalf("%s: %v", manifest, err)
	}
	return u
}

func newCluster(name string, ready bool) *unstructured.Unstructured {
	status := "False"
	if ready {
		status = "True"
	}
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": "Cluster",
		"metadata": map[string]any{"name": name, "uid": "uid-" + name},
		"spec":     map[string]any{"kubeconfigSecretRef": map[string]any{"namespace": "a", "name": name}},
		"status": map[string]any{"conditions": []any{map[string]any{"type": "Ready", "status": status, "reason": "Set", "message": "by the test",
			"lastTransitionTime": "2026-01-01T00:00:00Z"}}}}}
}

func (m *fakeMember) clients() memberClients {
	return memberClients{dynamic: m.Dynamic(), meta: m.Metadata(), openapi: m.documents}
}

// establish sets the status that the API server's controllers would set.
func establish(u *unstructured.Unstructured) {
	if u.GetKind() == "CustomResourceDefinition" && u.Object["status"] == nil {
		u.Object["status"] = map[string]any{"conditions": []any{map[string]any{"type": "Established", "status": "True"}}, "storedVersions": []any{"v1"}}
	}
}

func (s *fixture) start() {
	ctx, cancel := context.WithCancel(context.Background())
	session, err := fleet.NewSession(ctx, fleet.Config{REST: s.control.Config(), Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		s.t.Fatal(err)
	}
	s.session = session
	c := newController(session, s.fields, func(c *v1alpha1.Cluster) (connection, error) {
		m, ok := s.members[c.Name]
		if !ok {
			return connection{}, errors.New("no kubeconfig")
		}
		return connection{digest: "digest", open: func() (memberClients, error) { return m.clients(), nil }}, nil
	}, &fakeDocuments{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := c.run(ctx); err != nil {
			s.t.Error(err)
		}
	}()
	s.t.Cleanup(func() { cancel(); <-done })
}

// serve makes a member serve widgets whose spec has these properties.
func (s *fixture) serve(member, properties string) {
	s.t.Helper()
	s.members[member].Put(s.read(widgetCRD(properties)))
}

func (s *fixture) unserve(member string) {
	s.members[member].Delete(crdResource, "", "widgets.example.com")
}

func widgetCRD(properties string) string {
	return `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: widgets.example.com},
spec: {group: example.com, scope: Namespaced, names: {plural: widgets, singular: widget, kind: Widget, listKind: WidgetList},
versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {` + properties + `}}}}}}]}}`
}

// get returns a cluster-scoped object of the control plane.
func (s *fixture) get(gvr kschema.GroupVersionResource, name string) (*unstructured.Unstructured, error) {
	if u := s.control.Get(gvr, "", name); u != nil {
		return u, nil
	}
	return nil, apierrors.NewNotFound(gvr.GroupResource(), name)
}

// wantCondition waits for a condition with the given status, reason, and text in its message.
func (s *fixture) wantCondition(gvr kschema.GroupVersionResource, name, condition, status, reason, says string) {
	s.t.Helper()
	fakeapi.Eventually(s.t, name+" "+condition, func() error {
		u, err := s.get(gvr, name)
		if err != nil {
			return err
		}
		conditions, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
		for _, c := range conditions {
			is := c.(map[string]any)
			if is["type"] == condition && is["status"] == status && is["reason"] == reason && strings.Contains(is["message"].(string), says) {
				return nil
			}
		}
		return fmt.Errorf("the conditions are %v", conditions)
	})
}

func (s *fixture) wantAbsent(gvr kschema.GroupVersionResource, name string) {
	s.t.Helper()
	fakeapi.Until(s.t, name+" is gone", func() bool { return s.control.Get(gvr, "", name) == nil })
}
