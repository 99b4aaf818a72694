package server_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestWorkspaceBelow: a workspace in a workspace has controllers on demand and limits of its own, and none without limits can be created
// in one that has them.
func TestWorkspaceBelow(t *testing.T) {
	s := theServer(t)
	config := s.createWorkspace(t, "above")
	in := clientOf(t, s.createNested(t, "above", "below"))
	if _, err := in.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	createConfigMap(t, in, "shop", "config")
	if err := in.CoreV1().Namespaces().Delete(t.Context(), "shop", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitNoNamespace(t, in, "shop")
	within(t, time.Minute, "the mark of the workspace is gone", func(ctx context.Context) error {
		if out := s.mustKubectl(t, "", "get", "workspace", "above", "-o", "jsonpath={.status.dueBelow}"); strings.Contains(out, "above:below") {
			return errors.New(out)
		}
		return nil
	})

	limit := func(objects string) {
		t.Helper()
		if _, err := nestedOf(t, config).Patch(t.Context(), "below", types.MergePatchType, []byte(`{"spec":{"limits":{"objects":`+objects+`}}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	limit("1")
	eventually(t, "the limit applies", func(ctx context.Context) error {
		if err := createSome(ctx, in); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `exceeded limit of workspace "above:below"`) {
			return fmt.Errorf("create: %v", err)
		}
		return nil
	})
	_, err := nestedOf(t, s.workspace(t, "above:below")).Create(t.Context(), newWorkspace("deeper"), metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `spec.limits.objects is missing: workspace "above:below" has a limit of objects`) {
		t.Errorf("a workspace in one with limits: %v", err)
	}
	limit("null")
	eventually(t, "the limit is gone", func(ctx context.Context) error { return createSome(ctx, in) })
	s.createNested(t, "above:below", "deeper")
}
