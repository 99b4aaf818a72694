package server_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	tenancy "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
)

func (a atoll) setLimits(t *testing.T, name, limits string) {
	t.Helper()
	a.mustKubectl(t, "", "patch", "workspace", name, "--type=merge", "-p", fmt.Sprintf(`{"spec":{"limits":%s}}`, limits))
}

// createSome creates an object in a workspace.
func createSome(ctx context.Context, in kubernetes.Interface) error {
	_, err := in.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "c-"}}, metav1.CreateOptions{})
	return err
}

// TestWorkspaceLimits: limits are obeyed by an open workspace and by a new one, which is complete. Negative limits are
// refused.
func TestWorkspaceLimits(t *testing.T) {
	s := theServer(t)
	in := clientOf(t, s.createWorkspace(t, "limited"))
	if err := createSome(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	s.setLimits(t, "limited", `{"objects": 5, "bytes": "1Gi"}`)
	eventually(t, "the limit is obeyed", func(ctx context.Context) error {
		err := createSome(ctx, in)
		if apierrors.IsForbidden(err) && strings.Contains(err.Error(), `exceeded limit of workspace "limited": objects `) && strings.Contains(err.Error(), "limit 5: delete objects or raise spec.limits.objects") {
			return nil
		}
		return fmt.Errorf("create: %w", errors.Join(err, errors.New("it is not forbidden by the limit")))
	})
	eventually(t, "the usage is in the status", func(context.Context) error {
		if out := s.mustKubectl(t, "", "get", "workspace", "limited", "-o", "jsonpath={.status.usage.objects} {.status.usage.bytes}"); len(strings.Fields(out)) != 2 || strings.HasPrefix(out, "0 ") {
			return errors.New(out)
		}
		return nil
	})
	if out := s.mustKubectl(t, "", "get", "workspaces", "-o", "wide"); !strings.Contains(out, "OBJECTS") || !strings.Contains(out, "BYTES") || !strings.Contains(out, "WORKSPACES") {
		t.Error(out)
	}
	s.setLimits(t, "limited", `null`)
	eventually(t, "there is no limit", func(ctx context.Context) error { return createSome(ctx, in) })
	for _, wrong := range []string{`{"objects": -1}`, `{"bytes": "-1Mi"}`, `{"bytes": -1}`} {
		out, err := s.kubectl(t, "", "patch", "workspace", "limited", "--type=merge", "-p", fmt.Sprintf(`{"spec":{"limits":%s}}`, wrong))
		if err == nil || !strings.Contains(out, "spec.limits") {
			t.Errorf("limits %s: %v: %s", wrong, err, out)
		}
	}

	s.mustKubectl(t, `{apiVersion: tenancy.atoll.dev/v1alpha1, kind: Workspace, metadata: {name: full}, spec: {limits: {objects: 0}}}`, "create", "-f", "-")
	t.Cleanup(func() {
		_ = s.dynamic(t).Resource(tenancy.WorkspaceResource).Delete(context.Background(), "full", metav1.DeleteOptions{})
	})
	full := clientOf(t, s.workspace(t, "full"))
	if err := createSome(t.Context(), full); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "limit 0") {
		t.Errorf("a workspace without room: %v", err)
	}
	if _, err := full.CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}
