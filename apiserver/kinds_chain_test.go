package apiserver_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/utils/ptr"

	"github.com/atoll-dev/atoll/apiserver/kinds"
	"github.com/atoll-dev/atoll/kv/mvcc"
)

// TestKindsAreAnnounced: every form of discovery has these kinds, as soon as the source
// has them and as long as it does.
func TestKindsAreAnnounced(t *testing.T) {
	t.Parallel()
	s := newSource(shops()...)
	server := serveKinds(t, s, makeFiles(t))
	_, _, body := ask(t, server.config, "/apis/shop.example.com")
	if want := `"preferredVersion":{"groupVersion":"shop.example.com/v1","version":"v1"}`; !strings.Contains(body, want) {
		t.Errorf("group: %s", body)
	}
	_, _, body = ask(t, server.config, "/apis/shop.example.com/v1")
	for _, want := range []string{
		`{"name":"widgets","singularName":"widget","namespaced":true,"kind":"Widget","verbs":["delete","deletecollection","get","list","patch","create","update","watch"],"shortNames":["wd"],"categories":["things"]`,
		`{"name":"widgets/status","singularName":"","namespaced":true,"kind":"Widget","verbs":["get","patch","update"]}`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("version %s lacks %s", body, want)
		}
	}
	// announced returns the forms of discovery that have a group.
	const aggregated = "application/json;v=v2;g=apidiscovery.k8s.io;as=APIGroupDiscoveryList"
	announced := func(group string) string {
		var ways []string
		if _, _, body := ask(t, server.config, "/apis", "Accept", "application/json"); strings.Contains(body, `"name":"`+group+`"`) {
			ways = append(ways, "legacy")
		}
		if _, _, body := ask(t, server.config, "/apis", "Accept", aggregated); strings.Contains(body, `"name":"`+group+`"`) {
			ways = append(ways, "aggregated")
		}
		if code, _, _ := ask(t, server.config, "/apis/"+group); code == 200 {
			ways = append(ways, "group")
		}
		if _, _, body := ask(t, server.config, "/openapi/v3"); strings.Contains(body, "apis/"+group+"/") {
			ways = append(ways, "OpenAPI")
		}
		return strings.Join(ways, ", ")
	}
	const everywhere = "legacy, aggregated, group, OpenAPI"
	want := func(group, ways string) {
		t.Helper()
		await(t, group+" is announced by "+ways, func() error {
			if got := announced(group); got != ways {
				return fmt.Errorf("announced by %s", got)
			}
			return nil
		})
	}
	want("shop.example.com", everywhere)
	want("apps.example.com", "")
	s.serve(kinds.Group{Name: "apps.example.com", Versions: []kinds.Version{{Name: "v1", Revision: "1", Kinds: []kinds.Names{kindNames("App")}}}})
	want("apps.example.com", everywhere)
	s.withdraw("apps.example.com")
	want("apps.example.com", "")
	// Earlier groups are still announced.
	want("shop.example.com", everywhere)
	want("rbac.authorization.k8s.io", everywhere)
}

// TestKindsServedByOthers: a group that another server serves stays with it, and the source
// is told the reason. When the other server stops, the source gets the group.
func TestKindsServedByOthers(t *testing.T) {
	t.Parallel()
	names := []kinds.Version{{Name: "v1", Revision: "1", Kinds: []kinds.Names{kindNames("Widget")}}}
	twice := []kinds.Version{{Name: "v1", Revision: "1", Kinds: []kinds.Names{kindNames("Widget"), kindNames("Widget")}}}
	s := newSource(append(shops(), kinds.Group{Name: "rbac.authorization.k8s.io", Versions: names},
		kinds.Group{Name: "apiregistration.k8s.io", Versions: names}, kinds.Group{Name: "twice.example.com", Versions: twice},
		kinds.Group{Name: "nodot", Versions: names})...)
	server := serveKinds(t, s, makeFiles(t))
	for group, want := range map[string]string{
		"rbac.authorization.k8s.io": "APIService v1.rbac.authorization.k8s.io", "apiregistration.k8s.io": "aggregation",
		"twice.example.com": `kind "Widget"`, "nodot": "not a valid group name",
	} {
		await(t, group+" is refused", func() error {
			if reason := s.reason(group); !strings.Contains(reason, want) {
				return fmt.Errorf("reason %q", reason)
			}
			return nil
		})
	}
	if code, _, body := ask(t, server.config, "/apis/rbac.authorization.k8s.io/v1/clusterroles/view"); code != 200 {
		t.Errorf("built in: %d %s", code, body)
	}

	crds, err := apiextensions.NewForConfig(server.config)
	if err != nil {
		t.Fatal(err)
	}
	crd := crdOf("shop.example.com", "Gadget")
	if _, err := crds.ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), crd, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, "the CRD has the group", func() error {
		widgets, _, _ := ask(t, server.config, "/apis/shop.example.com/v1/widgets")
		gadgets, _, _ := ask(t, server.config, "/apis/shop.example.com/v1/gadgets")
		if reason := s.reason("shop.example.com"); widgets != 404 || gadgets != 200 || !strings.Contains(reason, "CustomResourceDefinition gadgets.shop.example.com") {
			return fmt.Errorf("widgets %d, gadgets %d, %q", widgets, gadgets, reason)
		}
		return nil
	})
	if err := crds.ApiextensionsV1().CustomResourceDefinitions().Delete(t.Context(), crd.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, "the source has the group", func() error {
		widgets, _, _ := ask(t, server.config, "/apis/shop.example.com/v1/widgets")
		if reason := s.reason("shop.example.com"); widgets != 200 || reason != "" {
			return fmt.Errorf("widgets %d, %q", widgets, reason)
		}
		return nil
	})
}

func crdOf(group, kind string) *apiextensionsv1.CustomResourceDefinition {
	names := kindNames(kind)
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: names.Plural + "." + group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: names.Plural, Singular: names.Singular, Kind: kind, ListKind: kind + "List"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
				Schema: &apiextensionsv1.CustomResourceValidation{
					OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: ptr.To(true)},
				},
			}},
		},
	}
}

// TestUnsyncedKindSource: until the source is synced, an unknown group is not a 404, and
// controllers that would take it for removed do not start.
func TestUnsyncedKindSource(t *testing.T) {
	t.Parallel()
	s := newSource()
	s.synced = make(chan struct{})
	server := serveKinds(t, s, makeFiles(t))
	if code, _, body := ask(t, server.config, "/apis/shop.example.com/v1/widgets"); code != 503 {
		t.Errorf("unknown group: %d %s", code, body)
	}
	namespaces := server.client.CoreV1().Namespaces()
	if _, err := namespaces.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "going"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, "controllers run", func() error {
		_, err := server.client.CoreV1().ServiceAccounts("going").Get(t.Context(), "default", metav1.GetOptions{})
		return err
	})
	if err := namespaces.Delete(t.Context(), "going", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := namespaces.Get(t.Context(), "going", metav1.GetOptions{}); err != nil {
		t.Errorf("the namespace was deleted: %v", err)
	}
	s.serve(shops()...)
	close(s.synced)
	await(t, "the namespace goes", func() error { return gone(t.Context(), server.client, "going") })
	if code, _, _ := ask(t, server.config, "/apis/shop.example.com/v1/widgets"); code != 200 {
		t.Errorf("known group: %d", code)
	}
	if code, _, _ := ask(t, server.config, "/apis/gone.example.com/v1/widgets"); code != 404 {
		t.Errorf("unknown group: %d", code)
	}
}

// next returns the next event whose type is not skipped.
func next(t *testing.T, w watch.Interface, skip ...watch.EventType) watch.Event {
	t.Helper()
	for timeout := time.After(30 * time.Second); ; {
		select {
		case event, ok := <-w.ResultChan():
			if !ok || !slices.Contains(skip, event.Type) {
				return event
			}
		case <-timeout:
			t.Fatal("no event")
		}
	}
}

func wantEvent(t *testing.T, event watch.Event, typ watch.EventType, name string) {
	t.Helper()
	u, ok := event.Object.(*unstructured.Unstructured)
	if event.Type != typ || !ok || u.GetName() != name {
		t.Errorf("got %s of %v, want %s of %s", event.Type, event.Object, typ, name)
	}
}

// TestKindsAreWatched: watches resume after a list, begin with the existing objects on
// request, send bookmarks, and end when the kind changes.
func TestKindsAreWatched(t *testing.T) {
	t.Parallel()
	s := newSource(shops()...)
	server := serveKinds(t, s, makeFiles(t))
	client := dynamicClient(t, server.config).Resource(shopWidgets).Namespace("default")
	create := func(name string) {
		t.Helper()
		w := widget(name, `{"size":1}`)
		w.SetLabels(map[string]string{"name": name})
		if _, err := client.Create(t.Context(), w, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	open := func(o metav1.ListOptions) watch.Interface {
		t.Helper()
		w, err := client.Watch(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.Stop)
		return w
	}
	create("first")
	list, err := client.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	create("second")
	since := open(metav1.ListOptions{ResourceVersion: list.GetResourceVersion()})
	wantEvent(t, next(t, since), watch.Added, "second")
	selected := open(metav1.ListOptions{ResourceVersion: list.GetResourceVersion(), LabelSelector: "name=third"})
	create("third")
	wantEvent(t, next(t, since), watch.Added, "third")
	wantEvent(t, next(t, selected), watch.Added, "third")
	if err := client.Delete(t.Context(), "third", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	wantEvent(t, next(t, since), watch.Deleted, "third")

	all := open(metav1.ListOptions{
		SendInitialEvents: ptr.To(true), AllowWatchBookmarks: true, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
	})
	wantEvent(t, next(t, all), watch.Added, "first")
	wantEvent(t, next(t, all), watch.Added, "second")
	mark := next(t, all)
	if u, ok := mark.Object.(*unstructured.Unstructured); !ok || mark.Type != watch.Bookmark || u.GetAnnotations()[metav1.InitialEventsAnnotationKey] != "true" {
		t.Errorf("after the initial events: %s of %v", mark.Type, mark.Object)
	}

	changed := shops()[0]
	changed.Versions[0].Revision = "2"
	s.serve(changed)
	if event := next(t, since, watch.Bookmark); event.Type != "" {
		t.Errorf("a watch of a changed kind continues with %v", event)
	}
	wantEvent(t, next(t, open(metav1.ListOptions{ResourceVersion: list.GetResourceVersion()})), watch.Added, "second")
}

// TestKindsChange: objects outlive fields of their kind. They can be read, applied and
// deleted, and removed fields are dropped with a warning.
func TestKindsChange(t *testing.T) {
	t.Parallel()
	s := newSource(shops()...)
	server := serveKinds(t, s, makeFiles(t))
	var heard warnings
	config := rest.CopyConfig(server.config)
	config.WarningHandler = &heard
	client := dynamicClient(t, config).Resource(shopWidgets).Namespace("default")
	w := widget("old", `{"size":500,"labels":{"a":"b"}}`)
	w.SetFinalizers([]string{"example.com/hold", "example.com/other"})
	if _, err := client.Create(t.Context(), w, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	changed := shops()[0]
	changed.Versions[0].Revision = "2"
	s.describe(shopWidgets.GroupVersion().WithKind("Widget"), func() *spec.Schema {
		described := widgetSchema()
		delete(described.Properties["spec"].Properties, "labels")
		return described
	})
	before := s.times()
	s.serve(changed)
	await(t, "the kind has changed", func() error {
		if _, err := client.Get(t.Context(), "old", metav1.GetOptions{}); err != nil {
			return err
		}
		if s.times() == before {
			return fmt.Errorf("the kind was not reopened")
		}
		return nil
	})
	heard.take()
	now, err := client.Apply(t.Context(), "old", widget("old", `{"parts":[{"name":"a"}]}`), metav1.ApplyOptions{FieldManager: "me"})
	if err != nil {
		t.Fatal(err)
	}
	wantAt(t, now, "spec.parts", `[{"name":"a"}]`, "spec.size", "500")
	heard.take()
	now, err = client.Patch(t.Context(), "old", types.JSONPatchType, []byte(`[{"op":"remove","path":"/metadata/finalizers/0"}]`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	wantAt(t, now, "metadata.finalizers", `["example.com/other"]`)
	if said := heard.take(); strings.Contains(said, "this is large") {
		t.Errorf("a finalizer change was validated: %q", said)
	}
}

// TestKindsInTheChain: authorization, admission, quotas, owners and namespaces work as
// for any other resource.
func TestKindsInTheChain(t *testing.T) {
	t.Parallel()
	s := newSource(shops()...)
	server := serveKinds(t, s, makeFiles(t))
	t.Run("authorization", func(t *testing.T) { kindsAuthorization(t, server) })
	t.Run("admission policies", func(t *testing.T) { kindsPolicies(t, server) })
	t.Run("quota", func(t *testing.T) { kindsQuota(t, server) })
	t.Run("owners", func(t *testing.T) { kindsOwners(t, server) })
	t.Run("namespaces", func(t *testing.T) { kindsNamespaces(t, server) })
}

func kindsAuthorization(t *testing.T, s running) {
	config := rest.CopyConfig(s.config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "alice"}
	_, err := dynamicClient(t, config).Resource(shopWidgets).Namespace("default").List(t.Context(), metav1.ListOptions{})
	wantRefused(t, err, 403, `User "alice" cannot list resource "widgets" in API group "shop.example.com"`)
}

func kindsPolicies(t *testing.T, s running) {
	api := s.client.AdmissionregistrationV1()
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "no-green"},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
				RuleWithOperations: admissionregistrationv1.RuleWithOperations{
					Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update},
					Rule:       admissionregistrationv1.Rule{APIGroups: []string{"shop.example.com"}, APIVersions: []string{"v1"}, Resources: []string{"widgets"}},
				},
			}}},
			Validations: []admissionregistrationv1.Validation{{Expression: `!has(object.spec.color) || object.spec.color != "green"`, Message: "no green widgets"}},
		},
	}
	binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "no-green"},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: "no-green", ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
		},
	}
	if _, err := api.ValidatingAdmissionPolicies().Create(t.Context(), policy, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := api.ValidatingAdmissionPolicyBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	client := dynamicClient(t, s.config).Resource(shopWidgets).Namespace("default")
	await(t, "the policy is active", func() error {
		_, err := client.Create(t.Context(), widget("green", `{"color":"green"}`), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil || !strings.Contains(err.Error(), "no green widgets") {
			return fmt.Errorf("got %v", err)
		}
		return nil
	})
	if _, err := client.Create(t.Context(), widget("red", `{"color":"red"}`), metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
}

func kindsQuota(t *testing.T, s running) { wantCounted(t, s, shopWidgets, widget) }

// wantCounted checks that a quota counts objects of a kind, and that admission enforces
// it.
func wantCounted(t *testing.T, s running, kind schema.GroupVersionResource, make func(name, spec string) *unstructured.Unstructured) {
	t.Helper()
	if _, err := s.client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "limited"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	name := corev1.ResourceName("count/" + kind.GroupResource().String())
	quotas := s.client.CoreV1().ResourceQuotas("limited")
	if _, err := quotas.Create(t.Context(), &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "two"}, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{name: resource.MustParse("2")}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	used := func(want string) {
		t.Helper()
		await(t, "the quota counts "+want, func() error {
			quota, err := quotas.Get(t.Context(), "two", metav1.GetOptions{})
			if err != nil {
				return err
			}
			if got := quota.Status.Used[name]; quota.Status.Hard == nil || got.String() != want {
				return fmt.Errorf("counted %s", got.String())
			}
			return nil
		})
	}
	used("0")
	client := dynamicClient(t, s.config).Resource(kind).Namespace("limited")
	object := func(name string) *unstructured.Unstructured {
		u := make(name, `{}`)
		u.SetNamespace("limited")
		return u
	}
	for i := range 2 {
		await(t, "admission enforces the quota", func() error {
			_, err := client.Create(t.Context(), object(fmt.Sprintf("w-%d", i)), metav1.CreateOptions{})
			return err
		})
	}
	used("2")
	_, err := client.Create(t.Context(), object("w-2"), metav1.CreateOptions{})
	wantRefused(t, err, 403, "exceeded quota: two")
	if err := client.Delete(t.Context(), "w-0", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	used("1")
}

func kindsOwners(t *testing.T, s running) {
	client := dynamicClient(t, s.config).Resource(shopWidgets).Namespace("default")
	owner, err := client.Create(t.Context(), widget("owner", `{}`), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	owned := metav1.OwnerReference{APIVersion: "shop.example.com/v1", Kind: "Widget", Name: "owner", UID: owner.GetUID(), BlockOwnerDeletion: ptr.To(true)}
	child := widget("child", `{}`)
	child.SetOwnerReferences([]metav1.OwnerReference{owned})
	if _, err := client.Create(t.Context(), child, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "child", OwnerReferences: []metav1.OwnerReference{owned}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := client.Delete(t.Context(), "owner", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, "the owned objects are deleted", func() error {
		if w, err := client.Get(t.Context(), "child", metav1.GetOptions{}); err == nil {
			return fmt.Errorf("%s still exists", w.GetName())
		}
		if m, err := s.client.CoreV1().ConfigMaps("default").Get(t.Context(), "child", metav1.GetOptions{}); err == nil {
			return fmt.Errorf("ConfigMap %s still exists", m.Name)
		}
		return nil
	})
}

func kindsNamespaces(t *testing.T, s running) {
	namespaces := s.client.CoreV1().Namespaces()
	if _, err := namespaces.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "short-lived"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	client := dynamicClient(t, s.config).Resource(shopPlains).Namespace("short-lived")
	held := of("Plain", "held", `{}`)
	held.SetFinalizers([]string{"example.com/hold"})
	if _, err := client.Create(t.Context(), held, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := namespaces.Delete(t.Context(), "short-lived", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, "the object is deleted, and the namespace waits for it", func() error {
		w, err := client.Get(t.Context(), "held", metav1.GetOptions{})
		if err != nil || w.GetDeletionTimestamp() == nil {
			return fmt.Errorf("object %v, %v", w, err)
		}
		n, err := namespaces.Get(t.Context(), "short-lived", metav1.GetOptions{})
		if err != nil || !strings.Contains(fmt.Sprint(n.Status.Conditions), "plains.shop.example.com has 1 resource instances") {
			return fmt.Errorf("namespace %v, %v", n, err)
		}
		return nil
	})
	_, err := client.Create(t.Context(), of("Plain", "late", `{}`), metav1.CreateOptions{})
	wantRefused(t, err, 403, "is being terminated")
	if _, err := client.Patch(t.Context(), "held", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, "the namespace is deleted", func() error { return gone(t.Context(), s.client, "short-lived") })
}

// TestUnusedKindsAreNotOpened: controllers that process every kind only process those
// that have objects; no others are opened.
func TestUnusedKindsAreNotOpened(t *testing.T) {
	t.Parallel()
	s := newSource(shops()...)
	server := serveKinds(t, s, makeFiles(t))
	client := dynamicClient(t, server.config).Resource(shopWidgets).Namespace("default")
	// A namespace is created and deleted: by then the controllers have polled
	// discovery.
	pass := func(name string) {
		t.Helper()
		namespaces := server.client.CoreV1().Namespaces()
		if _, err := namespaces.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := namespaces.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		await(t, "the namespace is deleted", func() error { return gone(t.Context(), server.client, name) })
	}
	pass("before")
	if n := s.times(); n != 0 {
		t.Errorf("%d unused kinds were opened", n)
	}
	if _, err := client.Create(t.Context(), widget("one", `{}`), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pass("after")
	if n := s.times(); n != 1 {
		t.Errorf("%d kinds were opened, want 1", n)
	}
}

// TestKindsAreStored: objects are stored where others are, and encrypted if configured.
func TestKindsAreStored(t *testing.T) {
	t.Parallel()
	keyspace, _ := openKeyspace(t, inSQLite, mvcc.Options{})
	files := makeFiles(t)
	files.Kinds = servedBySource(newSource(shops()...))
	files.EncryptionConfigFile = filepath.Join(t.TempDir(), "encryption.yaml")
	if err := os.WriteFile(files.EncryptionConfigFile, []byte(`
apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [widgets.shop.example.com]
  providers:
  - aesgcm: {keys: [{name: one, secret: MDEyMzQ1Njc4OWFiY2RlZg==}]}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	server := startServer(t, keyspace, files, "sole")
	t.Cleanup(func() {
		if err := server.stop(); err != nil {
			t.Error(err)
		}
	})
	all := dynamicClient(t, server.config)
	for resource, object := range map[dynamic.NamespaceableResourceInterface]*unstructured.Unstructured{
		all.Resource(shopWidgets): widget("one", `{"color":"scarlet"}`), all.Resource(shopPlains): of("Plain", "one", `{"color":"scarlet"}`),
	} {
		if _, err := resource.Namespace("default").Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if u, err := resource.Namespace("default").Get(t.Context(), "one", metav1.GetOptions{}); err != nil || at(u, "spec.color") != `"scarlet"` {
			t.Errorf("read back as %v, %v", u, err)
		}
	}
	stored := func(key string) string {
		answer, err := keyspace.KV.Get(t.Context(), key)
		if err != nil || len(answer.Kvs) != 1 {
			t.Fatalf("%s: %v, %v", key, answer, err)
		}
		return string(answer.Kvs[0].Value)
	}
	if value := stored("/registry/shop.example.com/plains/default/one"); !json.Valid([]byte(value)) || !strings.Contains(value, "scarlet") {
		t.Errorf("stored as %s", value)
	}
	if value := stored("/registry/shop.example.com/widgets/default/one"); !strings.HasPrefix(value, "k8s:enc:aesgcm:v1:one:") || strings.Contains(value, "scarlet") {
		t.Errorf("stored as %s", value)
	}
	if answer, err := keyspace.KV.Get(t.Context(), "/registry/apiregistration.k8s.io/apiservices/v1.shop.example.com", clientv3.WithCountOnly()); err != nil || answer.Count != 0 {
		t.Errorf("unexpected APIService: %v, %v", answer, err)
	}
}
