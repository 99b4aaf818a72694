package server_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"

	tenancy "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/server"
)

// due returns the mark of a workspace whose controllers must run.
func (a atoll) due(ctx context.Context, t *testing.T, name string) string {
	t.Helper()
	w, err := a.dynamic(t).Resource(tenancy.WorkspaceResource).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	due, _, _ := unstructured.NestedString(w.Object, "status", "due")
	return due
}

func awaitNoNamespace(t *testing.T, in *kubernetes.Clientset, name string) {
	t.Helper()
	within(t, time.Minute, "namespace "+name+" is gone", func(ctx context.Context) error {
		_, err := in.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it exists (%v)", err)
	})
}

// TestWorkspaceControllers: what a request leaves for controllers is finished, also if the server stops right after the answer. The
// workspace is marked as due until then, and not any more afterwards.
func TestWorkspaceControllers(t *testing.T) {
	dir := t.TempDir()
	first := newServer(t, server.Config{DataDir: dir})
	in := clientOf(t, first.createWorkspace(t, "team"))
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}
	if _, err := in.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := in.CoreV1().ServiceAccounts("shop").Get(t.Context(), "default", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	owner, err := in.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if due := first.due(t.Context(), t, "team"); due != "" {
		t.Errorf("nothing is left, and the mark is %q", due)
	}
	dependent := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "dependent",
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID}}}}
	if _, err := in.CoreV1().ConfigMaps("default").Create(t.Context(), dependent, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := in.CoreV1().ConfigMaps("default").Delete(t.Context(), "owner", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := in.CoreV1().Namespaces().Delete(t.Context(), "shop", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if first.due(t.Context(), t, "team") == "" {
		t.Error("the workspace is not due")
	}
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}

	second := newServer(t, server.Config{DataDir: dir})
	t.Cleanup(func() {
		if err := second.stop(); err != nil {
			t.Error(err)
		}
	})
	in = clientOf(t, second.workspace(t, "team"))
	awaitNoNamespace(t, in, "shop")
	within(t, time.Minute, "the workspace is not due any more", func(ctx context.Context) error {
		if due := second.due(ctx, t, "team"); due != "" {
			return fmt.Errorf("the mark is %q", due)
		}
		return nil
	})
	if _, err := in.CoreV1().ConfigMaps("default").Get(t.Context(), "dependent", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the dependent: %v", err)
	}

	// A workspace is deleted although something keeps its controllers from finishing.
	held := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "held", Finalizers: []string{"example.com/held"}}}
	namespace.Name = "held"
	if _, err := in.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := in.CoreV1().ConfigMaps("held").Create(t.Context(), held, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := in.CoreV1().Namespaces().Delete(t.Context(), "held", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	within(t, time.Minute, "its controllers run", func(ctx context.Context) error {
		found, err := in.CoreV1().Namespaces().Get(ctx, "held", metav1.GetOptions{})
		if err == nil && len(found.Status.Conditions) == 0 {
			err = fmt.Errorf("%+v", found.Status)
		}
		return err
	})
	second.mustKubectl(t, "", "delete", "workspace", "team")
	second.gone(t, "team")
}
