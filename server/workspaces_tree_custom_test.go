package server_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	tenancy "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/server"
)

// TestWorkspaceTreeCustom: a custom kind is listed in those workspaces that have it in this version, by a definition of their own or by an
// APIBinding. Workspaces that get it or lose it while a watch runs come and go.
func TestWorkspaceTreeCustom(t *testing.T) {
	s := viewStageOf(t, ownServer(t, server.Config{}), "")
	s.name = "" // the exporter is a workspace of the tree as well
	bound, own, none := s.consumer("bound"), s.createWorkspace(t, "own"), s.createNested(t, "own", "none")
	s.mustKubectl(t, widgetDefinition, "--server="+own.Host, "create", "-f", "-")
	widgetsOf := func(in *rest.Config) dynamic.NamespaceableResourceInterface {
		return clientsOf(t, in).Resource(sharedWidgets)
	}
	create := func(in *rest.Config, name string) {
		t.Helper()
		eventually(t, "widgets are served", func(ctx context.Context) error {
			_, err := widgetsOf(in).Namespace("default").Create(ctx, sized(name, 3), metav1.CreateOptions{})
			return err
		})
	}
	create(s.exporter, "w")
	create(bound, "w")
	create(own, "w")
	all := widgetsOf(s.workspace(t, "*"))
	wantObjects(t, inTree(t, all, metav1.ListOptions{}), "bound/w", "exporter/w", "own/w")
	if _, err := widgetsOf(s.workspace(t, "own:*")).List(t.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) || !strings.Contains(err.Error(), "no workspace below workspace own serves widgets.example.com in version v1") {
		t.Errorf("no workspace has it: %v", err)
	}
	other := clientsOf(t, s.workspace(t, "*")).Resource(schema.GroupVersionResource{Group: "example.com", Version: "v2", Resource: "widgets"})
	if _, err := other.List(t.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("no workspace has the version: %v", err)
	}
	wantObjects(t, inTree(t, clientsOf(t, s.workspace(t, "*")).Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "gadgets"}), metav1.ListOptions{}))
	wantObjects(t, inTree(t, all, metav1.ListOptions{FieldSelector: "metadata.name=w", Limit: 2}), "bound/w", "exporter/w")
	if _, err := all.List(t.Context(), metav1.ListOptions{FieldSelector: "spec.size=3"}); !apierrors.IsBadRequest(err) {
		t.Errorf("a field that cannot be selected: %v", err)
	}
	code, body := get(t, s.workspace(t, "*"), "/apis/example.com/v1/widgets", "Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	if code != 200 || !strings.Contains(body, `"Workspace"`) || !strings.Contains(body, `"cells":["own","w"`) {
		t.Errorf("%d %s", code, body)
	}

	informer := cache.NewSharedIndexInformer(byWorkspace(all), &unstructured.Unstructured{}, 0, nil)
	go informer.RunWithContext(t.Context())
	has := func(keys ...string) {
		t.Helper()
		eventually(t, fmt.Sprintf("the informer has %v", keys), func(context.Context) error {
			got := informer.GetStore().ListKeys()
			if slices.Sort(got); !slices.Equal(got, keys) {
				return fmt.Errorf("it has %v", got)
			}
			return nil
		})
	}
	has("bound|default/w", "exporter|default/w", "own|default/w")
	s.mustKubectl(t, widgetDefinition, "--server="+none.Host, "create", "-f", "-")
	create(none, "late")
	has("bound|default/w", "exporter|default/w", "own:none|default/late", "own|default/w")
	create(s.consumer("second"), "w")
	has("bound|default/w", "exporter|default/w", "own:none|default/late", "own|default/w", "second|default/w")
	create(bound, "more")
	has("bound|default/more", "bound|default/w", "exporter|default/w", "own:none|default/late", "own|default/w", "second|default/w")
	if err := clientsOf(t, bound).Resource(tenancy.APIBindingResource).Delete(t.Context(), "widgets", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	has("exporter|default/w", "own:none|default/late", "own|default/w", "second|default/w")
	s.mustKubectl(t, "", "--server="+own.Host, "delete", "crd", "widgets.example.com")
	has("exporter|default/w", "own:none|default/late", "second|default/w")
}

// TestWorkspaceTreeCopy: a copy appears in a running watch when it is complete, with the objects of its source.
func TestWorkspaceTreeCopy(t *testing.T) {
	s := ownServer(t, server.Config{})
	source := s.createWorkspace(t, "source")
	for i := range 20 {
		named(t, source, fmt.Sprintf("config-%02d", i))
	}
	all, seen := clientsOf(t, s.workspace(t, "*")).Resource(configMaps), metav1.ListOptions{LabelSelector: "seen=yes"}
	list, err := all.List(t.Context(), seen)
	if err != nil || len(list.Items) != 20 {
		t.Fatalf("%v, %v", list, err)
	}
	seen.ResourceVersion = list.GetResourceVersion()
	w, err := all.Watch(t.Context(), seen)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	copied := newWorkspace("copy")
	copied.Object["spec"] = map[string]any{"source": map[string]any{"name": "source"}}
	if _, err := s.dynamic(t).Resource(tenancy.WorkspaceResource).Create(t.Context(), copied, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for len(got) < 20 {
		e := <-w.ResultChan()
		o, ok := e.Object.(*unstructured.Unstructured)
		if !ok || e.Type != watch.Added || o.GetAnnotations()[workspaceOfObject] != "copy" {
			t.Fatalf("%+v", e)
		}
		got[o.GetName()] = true
	}
	listed, err := all.List(t.Context(), metav1.ListOptions{LabelSelector: "seen=yes"})
	if err != nil || len(listed.Items) != 40 {
		t.Errorf("%v, %v", listed, err)
	}
}
