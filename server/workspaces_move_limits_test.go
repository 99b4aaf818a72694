package server_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/server"
)

// TestWorkspaceMoveLimits: a workspace that moves takes its limits from the workspace above its new path, and gives them back to the former one.
// Its limits are obeyed there, and can be changed.
func TestWorkspaceMoveLimits(t *testing.T) {
	s := newServer(t, server.Config{DataDir: t.TempDir()})
	defer func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	}()
	root, parent := s.config(t), s.createWorkspace(t, "parent")
	s.createWorkspace(t, "a")
	s.setLimits(t, "parent", `{"objects": 100}`)
	s.setLimits(t, "a", `{"objects": 60}`)
	room := func(objects int64, want bool) {
		t.Helper()
		eventually(t, fmt.Sprintf("room for %d: %v", objects, want), func(ctx context.Context) error {
			_, err := nestedOf(t, parent).Create(ctx, object("Workspace", "other", map[string]any{"limits": map[string]any{"objects": objects}}), metav1.CreateOptions{})
			if err == nil {
				if err := nestedOf(t, parent).Delete(ctx, "other", metav1.DeleteOptions{}); err != nil {
					return err
				}
				eventually(t, "other is gone", func(ctx context.Context) error {
					if _, err := nestedOf(t, parent).Get(ctx, "other", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
						return fmt.Errorf("it exists (%w)", err)
					}
					return nil
				})
			} else if !apierrors.IsForbidden(err) {
				return err
			}
			if want != (err == nil) {
				return fmt.Errorf("creation: %w", err)
			}
			return nil
		})
	}
	room(60, true)
	mustMove(t, parent, "a", "b")
	room(60, false)
	room(20, true)
	full := func(in *rest.Config, limit int) {
		t.Helper()
		client := clientOf(t, in)
		eventually(t, fmt.Sprintf("%d objects are the limit", limit), func(ctx context.Context) error {
			for range limit + 1 {
				if err := createSome(ctx, client); apierrors.IsForbidden(err) {
					all, err := client.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{})
					if n := len(all.Items); err != nil || n < limit-10 || n > limit {
						return fmt.Errorf("%d were created: %w", n, err)
					}
					return nil
				} else if err != nil {
					return err
				}
			}
			return errors.New("more were created")
		})
	}
	b := s.workspace(t, "parent:b")
	full(b, 60)
	s.mustKubectl(t, "", "--server="+parent.Host, "patch", "workspace", "b", "--type=merge", "-p", `{"spec":{"limits":{"objects":70}}}`)
	full(b, 70)
	mustMove(t, root, "parent:b", "c")
	full(s.workspace(t, "c"), 70)
	room(80, true)
}
