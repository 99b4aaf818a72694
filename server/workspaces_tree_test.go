package server_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/atoll-dev/atoll/server"
)

var (
	configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	secrets    = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
)

// ownServer starts a server for one test, and stops it at the end.
func ownServer(t *testing.T, cfg server.Config) atoll {
	t.Helper()
	if cfg.DataDir == "" {
		cfg.DataDir = t.TempDir()
	}
	s := newServer(t, cfg)
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// named creates a ConfigMap in a workspace. The label says which tests see it.
func named(t *testing.T, in *rest.Config, name string) {
	t.Helper()
	_, err := clientOf(t, in).CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"seen": "yes"}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// inTree lists the objects of a tree as WORKSPACE/NAME.
func inTree(t *testing.T, in dynamic.ResourceInterface, opts metav1.ListOptions) []string {
	t.Helper()
	list, err := in.List(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	return pathsOf(list.Items)
}

func pathsOf(objects []unstructured.Unstructured) []string {
	var out []string
	for _, o := range objects {
		out = append(out, o.GetAnnotations()[workspaceOfObject]+"/"+o.GetName())
	}
	return out
}

func wantObjects(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("objects %v, want %v", got, want)
	}
}

// TestWorkspaceTree: an informer over a tree has the objects of all workspaces below its top, new ones too, and not
// those of the top. Workspaces that are deleted are absent from it.
func TestWorkspaceTree(t *testing.T) {
	s := ownServer(t, server.Config{})
	a, b := s.createWorkspace(t, "a"), s.createWorkspace(t, "b")
	deep := s.createNested(t, "a", "x")
	named(t, s.config(t), "root")
	for _, in := range []*rest.Config{a, b, deep} {
		named(t, in, "config")
	}
	all, below := clientsOf(t, s.workspace(t, "*")).Resource(configMaps), clientsOf(t, s.workspace(t, "a:*")).Resource(configMaps)
	seen := metav1.ListOptions{LabelSelector: "seen=yes"}
	wantObjects(t, inTree(t, all, seen), "a/config", "a:x/config", "b/config")
	wantObjects(t, inTree(t, below, seen), "a:x/config")
	wantObjects(t, inTree(t, clientsOf(t, s.workspace(t, "b:*")).Resource(configMaps), metav1.ListOptions{}))
	wantObjects(t, inTree(t, all.Namespace("default"), seen), "a/config", "a:x/config", "b/config")
	wantObjects(t, inTree(t, all.Namespace("kube-system"), seen))
	wantObjects(t, inTree(t, all.Namespace("kube-system"), metav1.ListOptions{FieldSelector: "metadata.name=kube-root-ca.crt"}),
		"a/kube-root-ca.crt", "a:x/kube-root-ca.crt", "b/kube-root-ca.crt")

	informers := map[string]cache.SharedIndexInformer{"*": nil, "a:*": nil}
	for path := range informers {
		in := clientsOf(t, s.workspace(t, path)).Resource(configMaps).Namespace("default")
		informers[path] = cache.NewSharedIndexInformer(byWorkspace(in), &unstructured.Unstructured{}, 0, nil)
		go informers[path].RunWithContext(t.Context())
	}
	has := func(path string, keys ...string) {
		t.Helper()
		eventually(t, fmt.Sprintf("the informer of %s has %v", path, keys), func(context.Context) error {
			var got []string
			for _, key := range informers[path].GetStore().ListKeys() {
				if !strings.HasSuffix(key, "/kube-root-ca.crt") {
					got = append(got, key)
				}
			}
			if slices.Sort(got); !slices.Equal(got, keys) {
				return fmt.Errorf("it has %v", got)
			}
			return nil
		})
	}
	has("*", "a:x|default/config", "a|default/config", "b|default/config")
	has("a:*", "a:x|default/config")
	named(t, s.createWorkspace(t, "late"), "config")
	deeper := s.createNested(t, "a:x", "y")
	named(t, deeper, "config")
	named(t, s.createNested(t, "a:x:y", "z"), "config")
	has("*", "a:x:y:z|default/config", "a:x:y|default/config", "a:x|default/config", "a|default/config", "b|default/config", "late|default/config")
	has("a:*", "a:x:y:z|default/config", "a:x:y|default/config", "a:x|default/config")
	if err := clientOf(t, deeper).CoreV1().ConfigMaps("default").Delete(t.Context(), "config", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	has("a:*", "a:x:y:z|default/config", "a:x|default/config")
	s.mustKubectl(t, "", "--server="+s.workspace(t, "a:x").Host, "delete", "workspace", "y")
	has("a:*", "a:x|default/config")
	s.mustKubectl(t, "", "delete", "workspace", "late")
	has("*", "a:x|default/config", "a|default/config", "b|default/config")
	s.createNested(t, "a:x", "y") // another one with the same path
	named(t, s.workspace(t, "a:x:y"), "new")
	has("*", "a:x:y|default/new", "a:x|default/config", "a|default/config", "b|default/config")
	s.mustKubectl(t, "", "delete", "workspace", "a")
	has("*", "b|default/config")
	if _, err := below.List(t.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the tree of a deleted workspace: %v", err)
	}
}

// TestWorkspaceTreePositions: pages of a list have one state, a watch continues where a list or a bookmark was, and other positions are 410.
func TestWorkspaceTreePositions(t *testing.T) {
	s := ownServer(t, server.Config{})
	inB := s.createWorkspace(t, "b")
	s.createWorkspace(t, "a")
	inX := s.createNested(t, "a", "x")
	for _, name := range []string{"one", "two", "three"} {
		named(t, inX, name)
		named(t, inB, name)
	}
	all := clientsOf(t, s.workspace(t, "*")).Resource(configMaps)
	var pages []string
	position := ""
	for opts := (metav1.ListOptions{Limit: 2, LabelSelector: "seen=yes"}); ; {
		list, err := all.List(t.Context(), opts)
		if err != nil || len(list.Items) > 2 || position != "" && list.GetResourceVersion() != position {
			t.Fatalf("%v, %v", list, err)
		}
		pages = append(pages, pathsOf(list.Items)...)
		if position == "" {
			named(t, inB, "new") // not in the pages that follow
		}
		position = list.GetResourceVersion()
		if opts.Continue = list.GetContinue(); opts.Continue == "" {
			break
		}
	}
	wantObjects(t, pages, "a:x/one", "a:x/three", "a:x/two", "b/one", "b/three", "b/two")
	w, err := all.Watch(t.Context(), metav1.ListOptions{ResourceVersion: position, AllowWatchBookmarks: true, LabelSelector: "seen=yes"})
	if err != nil {
		t.Fatal(err)
	}
	e := <-w.ResultChan()
	if o, ok := e.Object.(*unstructured.Unstructured); !ok || e.Type != watch.Added || pathsOf([]unstructured.Unstructured{*o})[0] != "b/new" {
		t.Errorf("%+v", e)
	}
	e = <-w.ResultChan()
	w.Stop()
	bookmark, ok := e.Object.(*unstructured.Unstructured)
	if !ok || e.Type != watch.Bookmark || bookmark.GetResourceVersion() <= position {
		t.Fatalf("%+v", e)
	}
	object, err := clientsOf(t, inB).Resource(configMaps).Namespace("default").Get(t.Context(), "one", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	other := clientsOf(t, s.workspace(t, "a:*")).Resource(configMaps)
	for what, watched := range map[string]func() (watch.Interface, error){
		"an object's": func() (watch.Interface, error) {
			return all.Watch(t.Context(), metav1.ListOptions{ResourceVersion: object.GetResourceVersion()})
		},
		"another tree's": func() (watch.Interface, error) {
			return other.Watch(t.Context(), metav1.ListOptions{ResourceVersion: position})
		},
		"another resource's": func() (watch.Interface, error) {
			return clientsOf(t, s.workspace(t, "*")).Resource(secrets).Watch(t.Context(), metav1.ListOptions{ResourceVersion: position})
		},
	} {
		if _, err := watched(); !apierrors.IsResourceExpired(err) {
			t.Errorf("%s position: %v", what, err)
		}
	}
	yes := true
	w, err = all.Watch(t.Context(), metav1.ListOptions{AllowWatchBookmarks: true, LabelSelector: "seen=yes", SendInitialEvents: &yes, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	added := 0
	for e := range w.ResultChan() {
		if e.Type == watch.Bookmark {
			if o, ok := e.Object.(*unstructured.Unstructured); !ok || o.GetAnnotations()[metav1.InitialEventsAnnotationKey] != "true" {
				t.Errorf("%+v", e)
			}
			break
		}
		added++
	}
	if added != 7 {
		t.Errorf("%d initial events", added)
	}
}

// TestWorkspaceTreeKinds: every kind in the discovery of a tree can be listed over it, by each form of discovery. kubectl prints the workspace
// of each object.
func TestWorkspaceTreeKinds(t *testing.T) {
	s := ownServer(t, server.Config{})
	s.createWorkspace(t, "a")
	named(t, s.createNested(t, "a", "x"), "config")
	config := s.workspace(t, "*")
	client := clientOf(t, config)
	_, lists, err := client.Discovery().ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]bool{}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		path := "/apis/" + list.GroupVersion
		if gv.Group == "" {
			path = "/api/" + list.GroupVersion
		}
		if code, body := get(t, config, path); code != 200 || !strings.Contains(body, `"APIResourceList"`) {
			t.Errorf("%s: %d %s", path, code, body)
		}
		for _, r := range list.APIResources {
			kinds[r.Name+"."+gv.Group] = true
			if strings.Contains(r.Name, "/") || !slices.Contains(r.Verbs, "list") || len(r.Verbs) > 2 {
				t.Errorf("%s of %s has the verbs %v", r.Name, gv, r.Verbs)
			}
			found, err := clientsOf(t, config).Resource(gv.WithResource(r.Name)).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Errorf("%s of %s: %v", r.Name, gv, err)
				continue
			}
			for _, o := range found.Items {
				if o.GetAnnotations()[workspaceOfObject] == "" {
					t.Errorf("%s of %s: %s %s has no workspace", r.Name, gv, o.GetNamespace(), o.GetName())
				}
			}
		}
	}
	for _, kind := range []string{"configmaps.", "secrets.", "events.", "events.events.k8s.io", "deployments.apps", "clusterroles.rbac.authorization.k8s.io",
		"customresourcedefinitions.apiextensions.k8s.io", "workspaces.tenancy.atoll.dev", "apibindings.tenancy.atoll.dev"} {
		if !kinds[kind] {
			t.Errorf("discovery has no %s: %v", kind, kinds)
		}
	}
	for path, want := range map[string]string{"/api": `"APIVersions"`, "/apis": `"APIGroupList"`, "/apis/apps": `"APIGroup"`, "/openapi/v3": "api/v1", "/version": "gitVersion"} {
		if code, body := get(t, config, path); code != 200 || !strings.Contains(body, want) {
			t.Errorf("%s: %d %.200s", path, code, body)
		}
	}
	for _, path := range []string{"/", "", "/api/v2", "/apis/missing", "/apis/apps/v9", "/healthz", "/metrics", "/apiexports/widgets/clusters/*/apis"} {
		if code, body := get(t, config, path); code != 404 {
			t.Errorf("%s: %d %.200s", path, code, body)
		}
	}
	url := "--server=" + config.Host
	out := s.mustKubectl(t, "", url, "get", "configmaps", "-A", "-l", "seen=yes")
	if fields := strings.Fields(out); !slices.Equal(fields[:7], []string{"NAMESPACE", "WORKSPACE", "NAME", "DATA", "AGE", "default", "a:x"}) || strings.Count(out, "\n") != 2 {
		t.Error(out)
	}
	if out := s.mustKubectl(t, "", url, "get", "workspaces,configmaps", "-n", "default"); !strings.Contains(out, "workspace.tenancy.atoll.dev/x") || !strings.Contains(out, "configmap/config") {
		t.Error(out)
	}
	if out := s.mustKubectl(t, "", url, "get", "configmaps", "-A", "--chunk-size=1"); strings.Count(out, "\na:x ")+strings.Count(out, "   a:x ") < 4 {
		t.Error(out)
	}
	if out := s.mustKubectl(t, "", url, "get", "configmaps", "-A", "-l", "seen=yes", "-o", `jsonpath={.items[*].metadata.annotations.tenancy\.atoll\.dev/workspace}`); out != "a:x" {
		t.Error(out)
	}
	if out, err := s.kubectl(t, "", url, "get", "configmap", "config", "-n", "default"); err == nil || !strings.Contains(out, "/clusters/PATH") {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := s.kubectl(t, "", url, "create", "configmap", "new", "-n", "default"); err == nil || !strings.Contains(out, "create configmaps in one workspace, /clusters/PATH") {
		t.Errorf("%v: %s", err, out)
	}
}

// TestWorkspaceTreeSleep: a list opens the workspaces for a moment, and a watch keeps them open for as long as it runs.
func TestWorkspaceTreeSleep(t *testing.T) {
	s := ownServer(t, server.Config{WorkspaceIdle: 200 * time.Millisecond})
	for _, name := range []string{"a", "b", "c"} {
		named(t, s.createWorkspace(t, name), "config")
	}
	named(t, s.createNested(t, "a", "x"), "config")
	awake := func(want string) {
		t.Helper()
		eventually(t, want+" workspaces are open", func(ctx context.Context) error {
			metrics, err := s.client(t).RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
			if err != nil {
				return err
			}
			for line := range strings.Lines(string(metrics)) {
				if is, ok := strings.CutPrefix(line, "atoll_tenancy_workspaces_awake "); ok && strings.TrimSpace(is) != want {
					return errors.New(line)
				}
			}
			return nil
		})
	}
	awake("0")
	all := clientsOf(t, s.workspace(t, "*")).Resource(configMaps)
	wantObjects(t, inTree(t, all, metav1.ListOptions{LabelSelector: "seen=yes"}), "a/config", "a:x/config", "b/config", "c/config")
	awake("0")
	w, err := clientsOf(t, s.workspace(t, "a:*")).Resource(configMaps).Watch(t.Context(), metav1.ListOptions{LabelSelector: "seen=yes"})
	if err != nil {
		t.Fatal(err)
	}
	if e := <-w.ResultChan(); e.Type != watch.Added {
		t.Errorf("%+v", e)
	}
	// Others, opened later, fall asleep meanwhile. Twice: the first time, the count may pass its value on the way down.
	for range 2 {
		wantObjects(t, inTree(t, all, metav1.ListOptions{LabelSelector: "seen=yes"}), "a/config", "a:x/config", "b/config", "c/config")
		awake("2") // a and a:x
	}
	w.Stop()
	awake("0")
}
