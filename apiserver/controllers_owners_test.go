package apiserver_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"

	"github.com/atoll-dev/atoll/kv/mvcc"
)

const (
	plainGroup  = "plain.test.atoll.dev"
	sharedGroup = "shared.test.atoll.dev"
)

// TestOwnersInMembers creates the same objects in a group that is shared with member
// clusters and in one that is not. In the latter, upstream's garbage collector behaves
// as in any cluster.
func TestOwnersInMembers(t *testing.T) {
	t.Parallel()
	keyspace, _ := openKeyspace(t, inSQLite, mvcc.Options{})
	files := makeFiles(t)
	files.WorkloadAPIs = true
	var asked atomic.Bool
	files.SharedGroups = func(context.Context) (func(string) bool, error) {
		if !asked.Swap(true) {
			return nil, errors.New("groups not known yet")
		}
		return func(group string) bool { return group == sharedGroup }, nil
	}
	server := startServer(t, keyspace, files, "server")
	defer server.stop()

	plain, shared := widgetsOf(t, server, plainGroup), widgetsOf(t, server, sharedGroup)
	// A Deployment with the same name as one in a member.
	namesake := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "namesake"},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "a"}},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "a"}}},
			},
		},
	}
	if _, err := server.client.AppsV1().Deployments("default").Create(t.Context(), namesake, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	inMember := func(apiVersion, kind, name string) metav1.OwnerReference {
		return metav1.OwnerReference{APIVersion: apiVersion, Kind: kind, Name: name, UID: types.UID("in-a-member-" + name), BlockOwnerDeletion: ptr.To(true)}
	}
	policies := map[string]metav1.DeletionPropagation{
		"background": metav1.DeletePropagationBackground,
		"foreground": metav1.DeletePropagationForeground,
		"orphan":     metav1.DeletePropagationOrphan,
	}
	absent := inMember("apps/v1", "Deployment", "absent")
	unserved := inMember("rollouts.test.atoll.dev/v1", "Rollout", "rollout")
	// The shared ones first: once the collector has processed those of the plain group,
	// it has processed these too.
	for _, w := range []widgets{shared, plain} {
		w.create(t, "owned-by-unserved-kind", unserved)
		w.create(t, "owned-by-absent", absent)
		w.create(t, "owned-by-namesake", inMember("apps/v1", "Deployment", "namesake"))
		for how := range policies {
			parent := w.create(t, "parent-"+how)
			w.create(t, "child-"+how, parent)
			w.create(t, "child-of-two-"+how, parent, absent)
			if w == shared || how == "background" {
				// In the other group, a parent that is deleted in the foreground would
				// wait forever.
				w.create(t, "child-of-unserved-and-"+how, parent, unserved)
			}
		}
	}
	// By then the collector knows both groups.
	for _, w := range []widgets{plain, shared} {
		w.create(t, "owned-by-nothing", metav1.OwnerReference{APIVersion: w.group + "/v1", Kind: "Widget", Name: "nothing", UID: "nothing"})
		w.awaitGone(t, "owned-by-nothing")
	}
	for _, w := range []widgets{shared, plain} {
		for how, policy := range policies {
			if err := w.client.Delete(t.Context(), "parent-"+how, metav1.DeleteOptions{PropagationPolicy: &policy}); err != nil {
				t.Fatal(err)
			}
			w.awaitGone(t, "parent-"+how)
			if policy != metav1.DeletePropagationOrphan {
				w.awaitGone(t, "child-"+how)
			}
		}
	}

	t.Run("in a group that is not shared, the owners are missing", func(t *testing.T) {
		plain.awaitGone(t, "owned-by-absent")
		plain.awaitGone(t, "owned-by-namesake")
		plain.awaitGone(t, "child-of-two-background")
		plain.awaitGone(t, "child-of-two-foreground")
		// The collector cannot look up such an owner, and keeps retrying although the
		// other owner is deleted.
		plain.wantOwners(t, "owned-by-unserved-kind", "Rollout")
		plain.wantOwners(t, "child-of-unserved-and-background", "Widget", "Rollout")
	})
	t.Run("in a shared group, they exist", func(t *testing.T) {
		shared.wantOwners(t, "owned-by-unserved-kind", "Rollout")
		shared.wantOwners(t, "owned-by-absent", "Deployment")
		shared.wantOwners(t, "owned-by-namesake", "Deployment")
		// A deleted owner is removed from the references, as by any collector, and the
		// other stays.
		for how := range policies {
			shared.wantOwners(t, "child-of-two-"+how, "Deployment")
			shared.wantOwners(t, "child-of-unserved-and-"+how, "Rollout")
		}
		shared.wantOwners(t, "child-orphan")
	})
	t.Run("when the last such reference goes, the others decide", func(t *testing.T) {
		parent := shared.create(t, "late-parent")
		shared.create(t, "late-child", parent, absent)
		if err := shared.client.Delete(t.Context(), "late-parent", metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationForeground)}); err != nil {
			t.Fatal(err)
		}
		shared.wantOwners(t, "late-child", "Deployment")
		second := shared.create(t, "second-parent")
		shared.own(t, "late-child", second)
		if err := shared.client.Delete(t.Context(), "second-parent", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		shared.awaitGone(t, "late-child")
	})
}

// widgets are the custom resources of one group.
type widgets struct {
	group  string
	client dynamic.ResourceInterface
}

func widgetsOf(t *testing.T, server running, group string) widgets {
	t.Helper()
	client, err := apiextensions.NewForConfig(server.config)
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "widgets." + group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: group,
			Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Kind: "Widget"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}},
			}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	all, err := dynamic.NewForConfig(server.config)
	if err != nil {
		t.Fatal(err)
	}
	return widgets{group, all.Resource(schema.GroupVersionResource{Group: group, Version: "v1", Resource: "widgets"}).Namespace("default")}
}

// create creates a widget as soon as its kind is served, and returns a reference to it.
func (w widgets) create(t *testing.T, name string, owners ...metav1.OwnerReference) metav1.OwnerReference {
	t.Helper()
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": w.group + "/v1", "kind": "Widget", "metadata": map[string]any{"name": name},
	}}
	object.SetOwnerReferences(owners)
	var created *unstructured.Unstructured
	await(t, "widget "+name+" is created", func() (err error) {
		created, err = w.client.Create(t.Context(), object, metav1.CreateOptions{})
		return err
	})
	return metav1.OwnerReference{APIVersion: w.group + "/v1", Kind: "Widget", Name: name, UID: created.GetUID(), BlockOwnerDeletion: ptr.To(true)}
}

// own replaces a widget's owners with one owner.
func (w widgets) own(t *testing.T, name string, owner metav1.OwnerReference) {
	t.Helper()
	await(t, "the owner of "+name+" is changed", func() error {
		object, err := w.client.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		object.SetOwnerReferences([]metav1.OwnerReference{owner})
		_, err = w.client.Update(t.Context(), object, metav1.UpdateOptions{})
		return err
	})
}

// wantOwners waits until a widget has owners of these kinds. It fails at once if the
// widget is deleted.
func (w widgets) wantOwners(t *testing.T, name string, kinds ...string) {
	t.Helper()
	await(t, fmt.Sprintf("%s %s is owned by %v", w.group, name, kinds), func() error {
		object, err := w.client.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatalf("%s %s: %v", w.group, name, err)
		}
		if object.GetDeletionTimestamp() != nil {
			t.Fatalf("%s %s is being deleted", w.group, name)
		}
		var now []string
		for _, ref := range object.GetOwnerReferences() {
			now = append(now, ref.Kind)
		}
		if !slices.Equal(now, kinds) {
			return fmt.Errorf("owners are %v", now)
		}
		return nil
	})
}

func (w widgets) awaitGone(t *testing.T, name string) {
	t.Helper()
	await(t, fmt.Sprintf("%s %s is gone", w.group, name), func() error {
		object, err := w.client.Get(t.Context(), name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it still exists (%v), owned by %v", err, object.GetOwnerReferences())
	})
}
