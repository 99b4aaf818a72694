package server_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

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
	return viewStageOf(t, theServer(t), name)
}

func viewStageOf(t *testing.T, a atoll, name string) *viewStage {
	t.Helper()
	s := &viewStage{t: t, atoll: a, name: name}
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

	if out := s.mustKubectl(t, "", "--server="+s.exporter.Host+"/apiexports/widgets/clusters/*", "get", "widgets", "-A"); strings.Count(out, "\n") != 3 || !strings.Contains(out, "AGE") {
		t.Errorf("kubectl get: %s", out)
	}
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
