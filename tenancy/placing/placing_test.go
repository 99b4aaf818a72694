package placing_test

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/tenancy/mapping"
	"github.com/atoll-dev/atoll/tenancy/placing"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

var (
	configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	namespaces = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	events     = schema.GroupVersionResource{Version: "v1", Resource: "events"}
	bindings   = rbacv1.SchemeGroupVersion.WithResource("rolebindings")
)

func status(err *apierrors.StatusError) *metav1.Status {
	of := err.Status()
	return &of
}

// kinds is the discovery of an API with ConfigMaps, Secrets and Events.
type kinds struct {
	discovery.ServerResourcesInterface
	served []metav1.APIResource
}

func (k *kinds) ServerPreferredResources() ([]*metav1.APIResourceList, error) {
	return []*metav1.APIResourceList{{GroupVersion: "v1", APIResources: k.served}}, nil
}

// fixture are a child and its parent.
type fixture struct {
	child, parent *fakeapi.Server
	kinds         *kinds
	clock         *clocktesting.FakePassiveClock
	placer        *placing.Placer
}

func start(t *testing.T) *fixture {
	t.Helper()
	served := func(name, kind string) metav1.APIResource {
		return metav1.APIResource{Name: name, Kind: kind, Namespaced: true, Verbs: metav1.Verbs{"list", "create"}}
	}
	builtIns := fakeapi.BuiltIns("v1 Namespace", "v1 ConfigMap", "v1 Secret", "v1 Event", "rbac.authorization.k8s.io/v1 ClusterRole", "rbac.authorization.k8s.io/v1 RoleBinding")
	f := &fixture{child: fakeapi.New(t, builtIns...), parent: fakeapi.New(t, builtIns...), clock: clocktesting.NewFakePassiveClock(metav1.Now().Time),
		kinds: &kinds{served: []metav1.APIResource{served("configmaps", "ConfigMap"), served("secrets", "Secret"), served("events", "Event")}}}
	f.child.Put(map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": "shop"}})
	f.parent.Put(&rbacv1.ClusterRole{TypeMeta: metav1.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRole"}, ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.PlacementRole},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps", "events"}, Verbs: []string{"create"}}}})
	f.restart()
	return f
}

// restart begins again with nothing in memory.
func (f *fixture) restart() {
	f.placer = placing.New(placing.Config{Child: mapping.Child{Name: "team", UID: "u"}, Source: f.child.Dynamic(), SourceKinds: f.kinds, Parent: f.parent.Dynamic(), ParentKinds: f.kinds,
		Copies: f.parent.Dynamic(), Clock: f.clock, Log: slog.New(slog.DiscardHandler)})
}

// put creates or replaces an object of the child.
func (f *fixture) put(kind, name, value string) {
	f.child.Put(map[string]any{"apiVersion": "v1", "kind": kind, "metadata": map[string]any{"name": name, "namespace": "shop"}, "data": map[string]any{"a": value}})
}

// pass makes passes until one changes nothing, and returns the problems of the last one.
func (f *fixture) pass(t *testing.T) []placing.Problem {
	t.Helper()
	for range 5 {
		result, err := f.placer.Pass(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if result.Changes == 0 || len(result.Problems) > 0 {
			return result.Problems
		}
	}
	t.Fatal("the passes do not come to an end")
	return nil
}

// value returns the content of a copy, "" without one.
func (f *fixture) value(name string) string {
	found := f.parent.Get(configMaps, "team--shop", name)
	if found == nil {
		return ""
	}
	value, _, _ := unstructured.NestedString(found.Object, "data", "a")
	return value
}

// TestPass: objects of permitted kinds are copied, changed and deleted; after a restart nothing is written again.
func TestPass(t *testing.T) {
	f := start(t)
	f.put("ConfigMap", "settings", "1")
	f.put("Secret", "key", "1")
	if problems := f.pass(t); len(problems) > 0 || f.value("settings") != "1" {
		t.Fatalf("%v, %q", problems, f.value("settings"))
	}
	if found := f.parent.List(schema.GroupVersionResource{Version: "v1", Resource: "secrets"}); len(found) > 0 {
		t.Errorf("the role permits no Secrets: %v", found)
	}
	if f.parent.Get(bindings, "team--shop", v1alpha1.PlacementRole) == nil {
		t.Error("the user of the workspace has no role in the namespace")
	}
	f.restart()
	writes := len(f.parent.Writes())
	if f.pass(t); len(f.parent.Writes()) != writes {
		t.Errorf("after a restart: %v", f.parent.Writes()[writes:])
	}
	f.child.Merge(configMaps, "shop", "settings", `{"data":{"a":"2"}}`)
	if f.pass(t); f.value("settings") != "2" {
		t.Errorf("after a change: %q", f.value("settings"))
	}
	f.parent.Delete(configMaps, "team--shop", "settings")
	if f.pass(t); f.value("settings") != "2" {
		t.Errorf("a lost copy: %q", f.value("settings"))
	}
	f.child.Delete(configMaps, "shop", "settings")
	if f.pass(t); f.value("settings") != "" {
		t.Errorf("after a deletion: %q", f.value("settings"))
	}
	f.child.Delete(namespaces, "", "shop")
	if f.pass(t); f.parent.Get(namespaces, "", "team--shop") != nil {
		t.Error("the namespace of the parent is still there")
	}
}

// TestNothingIsRemovedInDoubt: an error, an API that does not serve a kind any more, and a list that lacks an object remove no copy.
func TestNothingIsRemovedInDoubt(t *testing.T) {
	f := start(t)
	f.put("ConfigMap", "settings", "1")
	f.pass(t)
	down := ""
	f.child.OnRequest(func(r fakeapi.Request) *metav1.Status {
		switch {
		case down == "all":
			return status(apierrors.NewServiceUnavailable("down"))
		case r.Resource == configMaps && r.Verb == "get" && down == "gone":
			return status(apierrors.NewGenericServerResponse(http.StatusNotFound, "GET", configMaps.GroupResource(), r.Name, "404 page not found", 0, true))
		case r.Resource == configMaps && r.Verb == "get" && down == "get":
			return status(apierrors.NewInternalError(errors.New("broken")))
		}
		return nil
	})
	down = "all"
	if _, err := f.placer.Pass(t.Context()); err == nil {
		t.Error("no error of an API that does not answer")
	}
	f.child.Delete(configMaps, "shop", "settings")
	for _, down = range []string{"get", "gone"} {
		if problems := f.pass(t); f.value("settings") != "1" || len(problems) != 1 {
			t.Errorf("%s: %q, %v", down, f.value("settings"), problems)
		}
	}
	served := f.kinds.served
	down, f.kinds.served = "", nil
	f.restart()
	if f.pass(t); f.value("settings") != "1" {
		t.Errorf("a kind that is not served any more: %q", f.value("settings"))
	}
	f.kinds.served = served
	f.restart()
	if f.pass(t); f.value("settings") != "" {
		t.Errorf("it is certain now: %q", f.value("settings"))
	}
}

// TestRefused: an object that the parent refuses is a problem, with one Event for each message, and does not keep others back.
func TestRefused(t *testing.T) {
	f := start(t)
	refused := "no room"
	f.parent.OnRequest(func(r fakeapi.Request) *metav1.Status {
		if r.Verb == "apply" && r.Name == "big" && refused != "" {
			return status(apierrors.NewForbidden(configMaps.GroupResource(), r.Name, errors.New(refused)))
		}
		return nil
	})
	f.put("ConfigMap", "big", "1")
	f.put("ConfigMap", "small", "1")
	for range 3 {
		problems := f.pass(t)
		if len(problems) != 1 || problems[0].Object != "configmaps shop/big" || !strings.Contains(problems[0].Message, "no room") || f.value("small") != "1" {
			t.Fatalf("%v, %q", problems, f.value("small"))
		}
	}
	if written := f.child.List(events); len(written) != 1 {
		t.Errorf("%d Events", len(written))
	}
	refused = strings.Repeat("é", 1000)
	if problems := f.pass(t); len(problems) != 1 || len(problems[0].Message) > 600 {
		t.Errorf("%v", problems)
	}
	if written := f.child.List(events); len(written) != 2 {
		t.Errorf("%d Events", len(written))
	}
	refused = ""
	if problems := f.pass(t); len(problems) > 0 || f.value("big") != "1" {
		t.Errorf("%v, %q", problems, f.value("big"))
	}
}

// TestRemove: the namespaces of a workspace are deleted, and no others.
func TestRemove(t *testing.T) {
	f := start(t)
	f.put("ConfigMap", "settings", "1")
	f.pass(t)
	f.parent.Put(map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": "team--other", "labels": map[string]any{v1alpha1.ChildUIDLabel: "another"}}})
	if left, err := placing.Remove(t.Context(), f.parent.Dynamic(), "u"); left != 1 || err != nil {
		t.Errorf("%d are left: %v", left, err)
	}
	if left, err := placing.Remove(t.Context(), f.parent.Dynamic(), "u"); left != 0 || err != nil {
		t.Errorf("%d are left: %v", left, err)
	}
	if f.parent.Get(namespaces, "", "team--other") == nil {
		t.Error("the namespace of another workspace is gone")
	}
}

// TestTooLarge: the objects of a workspace do not fill the memory of the server.
func TestTooLarge(t *testing.T) {
	f := start(t)
	f.put("ConfigMap", "small", "1")
	f.pass(t)
	for i := range 70 {
		f.put("ConfigMap", fmt.Sprintf("large-%d", i), strings.Repeat("x", 1<<20))
	}
	if _, err := f.placer.Pass(t.Context()); !errors.Is(err, placing.ErrTooLarge) {
		t.Errorf("%v", err)
	}
	if f.value("small") != "1" {
		t.Error("a copy was removed")
	}
}
