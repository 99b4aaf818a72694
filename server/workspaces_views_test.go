package server_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	tenancy "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
)

const sizedDefinition = `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: widgets.example.com}, spec: {group: example.com, scope: Namespaced,
	names: {plural: widgets, singular: widget, kind: Widget}, versions: [{name: v1, served: true, storage: true, subresources: {status: {}}, schema: {openAPIV3Schema: {type: object, properties: {
	spec: {type: object, properties: {size: {type: integer}}, x-kubernetes-validations: [{rule: "!has(self.size) || self.size <= 10"}]},
	status: {type: object, x-kubernetes-preserve-unknown-fields: true}}}}}]}}`

// workspaceOfObject is the annotation of objects in a view over all workspaces.
const workspaceOfObject = "tenancy.atoll.dev/workspace"

// byWorkspace lists and watches with namespaces that begin with the workspace: informers know objects by namespace and name.
func byWorkspace(client dynamic.ResourceInterface) cache.ListerWatcher {
	qualify := func(o *unstructured.Unstructured) {
		o.SetNamespace(o.GetAnnotations()[workspaceOfObject] + "|" + o.GetNamespace())
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			list, err := client.List(ctx, opts)
			if err != nil {
				return nil, err
			}
			for i := range list.Items {
				qualify(&list.Items[i])
			}
			return list, nil
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			w, err := client.Watch(ctx, opts)
			if err != nil {
				return nil, err
			}
			return watch.Filter(w, func(e watch.Event) (watch.Event, bool) {
				if o, ok := e.Object.(*unstructured.Unstructured); ok && e.Type != watch.Bookmark && e.Type != watch.Error {
					qualify(o)
				}
				return e, true
			}), nil
		},
	}
}

// viewStage is a server with an exporter of widgets, an account there, and workspaces that are bound to it.
type viewStage struct {
	atoll
	t *testing.T
	// name begins the names of the workspaces of a test.
	name     string
	exporter *rest.Config
	// account is the configuration of the exporter's account.
	account *rest.Config
}

func newViewStage(t *testing.T, name string) *viewStage {
	s := &viewStage{t: t, atoll: theServer(t), name: name}
	s.exporter = s.createWorkspace(t, name+"exporter")
	s.mustKubectl(t, sizedDefinition, "--server="+s.exporter.Host, "create", "-f", "-")
	s.mustKubectl(t, strings.ReplaceAll(strings.ReplaceAll(sizedDefinition, "widget", "gadget"), "Widget", "Gadget"), "--server="+s.exporter.Host, "create", "-f", "-")
	if _, err := clientsOf(t, s.exporter).Resource(tenancy.APIExportResource).Create(t.Context(), export("widgets"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.account = rest.AnonymousClientConfig(s.exporter)
	s.account.BearerToken = s.tokenOf(s.exporter, "controller")
	return s
}

// tokenOf creates an account in a workspace, and returns its token.
func (s *viewStage) tokenOf(in *rest.Config, name string) string {
	s.t.Helper()
	accounts := clientOf(s.t, in).CoreV1().ServiceAccounts("default")
	if _, err := accounts.Create(s.t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		s.t.Fatal(err)
	}
	issued, err := accounts.CreateToken(s.t.Context(), name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	return issued.Status.Token
}

// permit gives the account a verb for the export.
func (s *viewStage) permit(verb string) {
	s.t.Helper()
	roles := clientOf(s.t, s.exporter).RbacV1()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "widgets-" + verb}, Rules: []rbacv1.PolicyRule{{Verbs: []string{verb}, APIGroups: []string{"tenancy.atoll.dev"}, Resources: []string{"apiexports"}, ResourceNames: []string{"widgets"}}}}
	if _, err := roles.ClusterRoles().Create(s.t.Context(), role, metav1.CreateOptions{}); err != nil {
		s.t.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "widgets-" + verb}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "widgets-" + verb},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: "controller"}}}
	if _, err := roles.ClusterRoleBindings().Create(s.t.Context(), binding, metav1.CreateOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

// consumer creates a workspace that is bound to the export, and waits until it has the widgets.
func (s *viewStage) consumer(name string) *rest.Config {
	s.t.Helper()
	config := s.createWorkspace(s.t, s.name+name)
	if _, err := clientsOf(s.t, config).Resource(tenancy.APIBindingResource).Create(s.t.Context(), bindingTo(s.name+"exporter"), metav1.CreateOptions{}); err != nil {
		s.t.Fatal(err)
	}
	eventually(s.t, "widgets are served in "+name, func(ctx context.Context) error {
		_, err := clientsOf(s.t, config).Resource(sharedWidgets).List(ctx, metav1.ListOptions{})
		return err
	})
	return config
}

// view returns a client of the widgets in the view of the export.
func (s *viewStage) view(as *rest.Config, target string) dynamic.NamespaceableResourceInterface {
	config := rest.CopyConfig(as)
	if target != "*" {
		target = s.name + target
	}
	config.Host = s.exporter.Host + "/apiexports/widgets/clusters/" + target
	return clientsOf(s.t, config).Resource(sharedWidgets)
}

func sized(name string, size int64) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": name}, "spec": map[string]any{"size": size}}}
}

// nameOf is the workspace and the name of an object in a view over all.
func (s *viewStage) nameOf(o *unstructured.Unstructured) string {
	return strings.TrimPrefix(o.GetAnnotations()[workspaceOfObject], s.name) + "/" + o.GetName()
}

func (s *viewStage) create(in dynamic.NamespaceableResourceInterface, name string) {
	s.t.Helper()
	if _, err := in.Namespace("default").Create(s.t.Context(), sized(name, 1), metav1.CreateOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

// TestWorkspaceView: a controller of an exporter sees and changes the objects of all consumers by one informer, and those of consumers that
// come while it watches. A consumer that deletes its binding is absent at once.
func TestWorkspaceView(t *testing.T) {
	s := newViewStage(t, "view-")
	s.permit("view")
	s.permit("manage")
	c1, c2 := s.consumer("c1"), s.consumer("c2")
	s.create(clientsOf(t, c1).Resource(sharedWidgets), "w")
	s.create(clientsOf(t, c2).Resource(sharedWidgets), "w")
	s.create(clientsOf(t, s.exporter).Resource(sharedWidgets), "own")

	informer := cache.NewSharedIndexInformer(byWorkspace(s.view(s.account, "*")), &unstructured.Unstructured{}, 0, nil)
	go informer.RunWithContext(t.Context())
	has := func(keys ...string) {
		t.Helper()
		for i := range keys {
			keys[i] = s.name + keys[i]
		}
		eventually(t, fmt.Sprintf("the informer has %v", keys), func(context.Context) error {
			got := informer.GetStore().ListKeys()
			if slices.Sort(got); !slices.Equal(got, keys) {
				return fmt.Errorf("it has %v", got)
			}
			return nil
		})
	}
	has("c1|default/w", "c2|default/w")
	c3 := s.consumer("c3")
	s.create(clientsOf(t, c3).Resource(sharedWidgets), "late")
	has("c1|default/w", "c2|default/w", "c3|default/late")
	if err := clientsOf(t, c3).Resource(sharedWidgets).Namespace("default").Delete(t.Context(), "late", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	has("c1|default/w", "c2|default/w")

	// The controller writes back the object that it has read.
	list, err := s.view(s.account, "*").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 2 {
		t.Fatalf("%v, %v", list, err)
	}
	first := &list.Items[0]
	if first.GetAnnotations()[workspaceOfObject] != s.name+"c1" {
		t.Errorf("annotations %v", first.GetAnnotations())
	}
	if err := unstructured.SetNestedField(first.Object, int64(7), "spec", "size"); err != nil {
		t.Fatal(err)
	}
	in1 := s.view(s.account, "c1").Namespace("default")
	updated, err := in1.Update(t.Context(), first, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := unstructured.SetNestedField(updated.Object, "yes", "status", "ready"); err != nil {
		t.Fatal(err)
	}
	if _, err := in1.UpdateStatus(t.Context(), updated, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	stored, err := clientsOf(t, c1).Resource(sharedWidgets).Namespace("default").Get(t.Context(), "w", metav1.GetOptions{})
	if err != nil || stored.GetAnnotations()[workspaceOfObject] != "" || fmt.Sprint(stored.Object["spec"], stored.Object["status"]) != "map[size:7] map[ready:yes]" {
		t.Errorf("stored %v, %v", stored, err)
	}
	if _, err := in1.Create(t.Context(), sized("large", 11), metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("beyond the schema: %v", err)
	}
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "few"}, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"count/widgets.example.com": resource.MustParse("1")}}}
	if _, err := clientOf(t, c1).CoreV1().ResourceQuotas("default").Create(t.Context(), quota, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := in1.Create(t.Context(), sized("more", 1), metav1.CreateOptions{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "exceeded quota") {
		t.Errorf("beyond the consumer's quota: %v", err)
	}

	if err := clientsOf(t, c2).Resource(tenancy.APIBindingResource).Delete(t.Context(), "widgets", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.view(s.account, "c2").List(t.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a workspace without a binding: %v", err)
	}
	has("c1|default/w")
	if _, err := clientsOf(t, c2).Resource(tenancy.APIBindingResource).Create(t.Context(), bindingTo(s.name+"exporter"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	has("c1|default/w", "c2|default/w") // its objects were kept
	s.mustKubectl(t, "", "delete", "workspace", s.name+"c2")
	has("c1|default/w")
	running, err := in1.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer running.Stop()
	narrowed := []byte(`{"spec":{"resources":[{"group":"example.com","resource":"gadgets"}]}}`)
	if _, err := clientsOf(t, s.exporter).Resource(tenancy.APIExportResource).Patch(t.Context(), "widgets", types.MergePatchType, narrowed, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{"*", "c1"} {
		if _, err := s.view(s.account, target).List(t.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("%s, not exported any more: %v", target, err)
		}
	}
	for range running.ResultChan() { // it ends
	}
}

// TestWorkspaceViewPositions: a watch continues at the position of a list or of a bookmark without a gap. At any other one it gets 410.
func TestWorkspaceViewPositions(t *testing.T) {
	s := newViewStage(t, "pos-")
	s.permit("view")
	c1, c2 := clientsOf(t, s.consumer("c1")).Resource(sharedWidgets), clientsOf(t, s.consumer("c2")).Resource(sharedWidgets)
	for _, name := range []string{"a", "b", "c"} {
		s.create(c1, name)
		s.create(c2, name)
	}
	all := s.view(s.account, "*")
	var pages []string
	position := ""
	for opts := (metav1.ListOptions{Limit: 2}); ; {
		list, err := all.List(t.Context(), opts)
		if err != nil || len(list.Items) > 2 || position != "" && list.GetResourceVersion() != position {
			t.Fatalf("%v, %v", list, err)
		}
		for _, o := range list.Items {
			pages = append(pages, s.nameOf(&o))
		}
		if position = list.GetResourceVersion(); len(pages) == 2 { // not in the pages that follow
			s.create(c2, "new")
		}
		if opts.Continue = list.GetContinue(); opts.Continue == "" {
			break
		}
	}
	if want := []string{"c1/a", "c1/b", "c1/c", "c2/a", "c2/b", "c2/c"}; !slices.Equal(pages, want) {
		t.Errorf("pages have %v", pages)
	}
	events := func(from string, want ...string) (bookmark string) {
		t.Helper()
		w, err := all.Watch(t.Context(), metav1.ListOptions{ResourceVersion: from, AllowWatchBookmarks: true})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		var got []string
		for e := range w.ResultChan() {
			o, ok := e.Object.(*unstructured.Unstructured)
			if !ok {
				t.Fatalf("%+v", e)
			}
			if e.Type == watch.Bookmark && len(got) >= len(want) {
				bookmark = o.GetResourceVersion()
				break
			}
			if e.Type != watch.Bookmark {
				got = append(got, fmt.Sprintf("%s %s", e.Type, s.nameOf(o)))
			}
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("events %v, want %v", got, want)
		}
		return bookmark
	}
	bookmark := events(position, "ADDED c2/new")
	if bookmark <= position {
		t.Errorf("%s after %s", bookmark, position)
	}
	if err := c1.Namespace("default").Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.create(c2, "x")
	events(bookmark, "ADDED c2/x", "DELETED c1/a")
	object, err := c1.Namespace("default").Get(t.Context(), "b", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, unknown := range []string{object.GetResourceVersion(), "9000000000000000000"} {
		if _, err := all.Watch(t.Context(), metav1.ListOptions{ResourceVersion: unknown}); !apierrors.IsResourceExpired(err) {
			t.Errorf("watch from %s: %v", unknown, err)
		}
		if _, err := all.List(t.Context(), metav1.ListOptions{ResourceVersion: unknown, ResourceVersionMatch: metav1.ResourceVersionMatchExact}); !apierrors.IsResourceExpired(err) {
			t.Errorf("list at %s: %v", unknown, err)
		}
	}
	s.consumer("c3")
	events(position, "ADDED c2/new", "ADDED c2/x", "DELETED c1/a")
	s.mustKubectl(t, "", "delete", "workspace", s.name+"c2")
	w, err := all.Watch(t.Context(), metav1.ListOptions{ResourceVersion: position})
	if err == nil { // c1 may have sent its events before
		for e := range w.ResultChan() {
			if e.Type == watch.Error {
				err = apierrors.FromObject(e.Object)
			}
		}
	}
	if !apierrors.IsResourceExpired(err) {
		t.Errorf("a consumer of the position is gone: %v", err)
	}
}

// TestWorkspaceViewAttacks: a view needs a right in the exporter's workspace, and reaches objects of the exported resources in consumers,
// and nothing else.
func TestWorkspaceViewAttacks(t *testing.T) {
	s := newViewStage(t, "atk-")
	c1 := s.consumer("c1")
	s.create(clientsOf(t, c1).Resource(sharedWidgets), "w")
	s.createWorkspace(t, s.name+"stranger")
	forbidden := func(how string, err error) {
		t.Helper()
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", how, err)
		}
	}
	for _, target := range []string{"*", "c1", "missing"} {
		_, err := s.view(s.account, target).List(t.Context(), metav1.ListOptions{})
		forbidden("without the verb view, "+target, err)
		if err != nil && !strings.Contains(err.Error(), "the view needs the verb view for the APIExport widgets") {
			t.Error(err)
		}
	}
	s.permit("view")
	eventually(t, "the account has the verb", func(ctx context.Context) error {
		_, err := s.view(s.account, "c1").List(ctx, metav1.ListOptions{})
		return err
	})
	in1 := s.view(s.account, "c1").Namespace("default")
	_, err := in1.Create(t.Context(), sized("x", 1), metav1.CreateOptions{})
	forbidden("create without the verb manage", err)
	forbidden("delete without the verb manage", in1.Delete(t.Context(), "w", metav1.DeleteOptions{}))
	forbidden("delete all without the verb manage", in1.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
	_, err = in1.Patch(t.Context(), "w", types.MergePatchType, []byte(`{"status":{"a":1}}`), metav1.PatchOptions{}, "status")
	forbidden("change a status without the verb manage", err)
	as := rest.CopyConfig(s.account)
	as.Impersonate = rest.ImpersonationConfig{UserName: "atoll-admin", Groups: []string{"system:masters"}}
	_, err = s.view(as, "c1").List(t.Context(), metav1.ListOptions{})
	forbidden("impersonation without the right to it", err)
	s.permit("manage")
	eventually(t, "the account has the verb", func(ctx context.Context) error {
		_, err := in1.Create(ctx, sized("made", 1), metav1.CreateOptions{})
		return err
	})

	// Rights in the exporter are none in the consumer by its own path, and the other way around.
	direct := rest.AnonymousClientConfig(c1)
	direct.BearerToken = s.account.BearerToken
	if _, err := clientsOf(t, direct).Resource(sharedWidgets).List(t.Context(), metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
		t.Errorf("the exporter's account in the consumer: %v", err)
	}
	theirs := rest.AnonymousClientConfig(c1)
	theirs.BearerToken = s.tokenOf(c1, "controller")
	if _, err := s.view(theirs, "c1").List(t.Context(), metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
		t.Errorf("the consumer's account in the view: %v", err)
	}

	client, err := rest.HTTPClientFor(s.account)
	if err != nil {
		t.Fatal(err)
	}
	request := func(method, path, body string) (int, string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, method, s.URL()+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		data, err := io.ReadAll(resp.Body)
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		return resp.StatusCode, string(data)
	}
	const view, widgets, inDefault = "/clusters/atk-exporter/apiexports/widgets/clusters/", "/apis/example.com/v1/widgets", "/apis/example.com/v1/namespaces/default/widgets"
	configMap := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"}}`
	for _, attack := range []struct {
		method, path, body string
		want               int
	}{
		{"GET", view + "atk-c1" + widgets, "", 200},
		{"GET", view + "*" + widgets, "", 200},
		{"GET", view + "%2A" + widgets, "", 200},
		{"GET", view + "atk-c1/apis", "", 200},
		{"GET", view + "atk-c1/apis/example.com/v1", "", 200},
		// Other kinds, in the consumer and in all.
		{"GET", view + "atk-c1/api/v1/secrets", "", 404},
		{"GET", view + "*/api/v1/secrets", "", 404},
		{"POST", view + "atk-c1/api/v1/namespaces/default/configmaps", configMap, 404},
		{"GET", view + "atk-c1/apis/apps/v1/deployments", "", 404},
		{"GET", view + "*/apis/apps/v1/deployments", "", 404},
		{"GET", view + "atk-c1/apis/rbac.authorization.k8s.io/v1/clusterroles", "", 404},
		{"GET", view + "atk-c1/apis/tenancy.atoll.dev/v1alpha1/apibindings", "", 404},
		{"GET", view + "atk-c1/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "", 404},
		{"GET", view + "atk-c1/apis/example.com/v1/gadgets", "", 404},
		{"GET", view + "*/apis/example.com/v1/gadgets", "", 404},
		{"GET", view + "atk-c1/apis/apps/v1", "", 404},
		{"GET", view + "atk-c1/version", "", 404},
		{"GET", view + "atk-c1", "", 404},
		// Workspaces that are no consumers.
		{"GET", view + "atk-stranger" + widgets, "", 404},
		{"GET", view + "atk-missing" + widgets, "", 404},
		{"GET", view + "atk-exporter" + widgets, "", 404},
		// Verbs that make no sense for all.
		{"GET", view + "*" + inDefault + "/w", "", 405},
		{"POST", view + "*" + inDefault, `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"x"}}`, 405},
		{"DELETE", view + "*" + widgets, "", 405},
		{"GET", view + "*" + inDefault + "/w/status", "", 405},
		// Paths.
		{"GET", view + "%2a" + widgets, "", 404},
		{"GET", view + "atk-c%31" + widgets, "", 404},
		{"GET", view + "**" + widgets, "", 404},
		{"GET", view + "atk-c1:*" + widgets, "", 404},
		{"GET", view + "atk-c1//apis/example.com/v1/widgets", "", 404},
		{"GET", view + "atk-c1/../atk-stranger" + widgets, "", 404},
		{"GET", view + "*" + view + "atk-c1" + widgets, "", 404},
		{"GET", "/clusters/*" + widgets, "", 404},
		{"GET", "/clusters/%2A" + widgets, "", 404},
		{"GET", "/clusters/*/apiexports/widgets/clusters/atk-c1" + widgets, "", 404},
		{"GET", "/clusters/atk-exporter/apiexports/*/clusters/atk-c1" + widgets, "", 404},
		{"GET", "/clusters/atk-exporter/apiexports/widgets/clusters", "", 404},
		{"GET", "/clusters/atk-exporter/clusters/atk-c1" + widgets, "", 403},
		{"GET", "/clusters/atk-exporter/apiexports/missing/clusters/atk-c1" + widgets, "", 403},
		{"GET", "/clusters/atk-c1/apiexports/widgets/clusters/*" + widgets, "", 401},
		{"GET", "/apiexports/widgets/clusters/atk-c1" + widgets, "", 401},
	} {
		code, body := request(attack.method, attack.path, attack.body)
		if code != attack.want {
			t.Errorf("%s %s: %d, want %d: %.300s", attack.method, attack.path, code, attack.want, body)
		}
		if strings.Contains(attack.path, "c1/apis/example.com/v1") && attack.want == 200 && strings.Contains(body, "gadgets") {
			t.Errorf("%s has a resource that is not exported: %s", attack.path, body)
		}
	}
	if list, err := clientOf(t, c1).CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 1 {
		t.Errorf("ConfigMaps of the consumer: %v, %v", list, err)
	}
	if list, err := clientsOf(t, s.exporter).Resource(sharedWidgets).List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 0 {
		t.Errorf("objects of the exporter: %v, %v", list, err)
	}
}
