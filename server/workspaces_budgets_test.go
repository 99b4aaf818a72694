package server_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	tenancy "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/server"
)

// limitedWorkspace returns a Workspace with limits; nil values are left out.
func limitedWorkspace(name string, objects, workspaces any) *unstructured.Unstructured {
	w, limits := newWorkspace(name), map[string]any{}
	for field, value := range map[string]any{"objects": objects, "workspaces": workspaces} {
		if value != nil {
			limits[field] = int64(value.(int))
		}
	}
	w.Object["spec"] = map[string]any{"limits": limits}
	return w
}

// organization creates a workspace of the root with limits, and waits until they are obeyed.
func (a atoll) organization(t *testing.T, name, limits string) {
	t.Helper()
	a.mustKubectl(t, fmt.Sprintf(`{apiVersion: tenancy.atoll.dev/v1alpha1, kind: Workspace, metadata: {name: %s}, spec: {limits: %s}}`, name, limits), "create", "-f", "-")
	t.Cleanup(func() {
		_ = a.dynamic(t).Resource(tenancy.WorkspaceResource).Delete(context.Background(), name, metav1.DeleteOptions{})
	})
}

func (a atoll) workspacesIn(t *testing.T, path string) dynamic.ResourceInterface {
	t.Helper()
	return nestedOf(t, a.workspace(t, path))
}

func mustCreate(t *testing.T, in dynamic.ResourceInterface, w *unstructured.Unstructured) {
	t.Helper()
	if _, err := in.Create(t.Context(), w, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// wantForbidden checks the answer to a request.
func wantForbidden(t *testing.T, what string, err error, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v, want 403 with %q", what, err, text)
		}
	}
}

// fillWorkspace creates objects in a workspace until it is full, and returns how many.
func fillWorkspace(t *testing.T, a atoll, path string) (n int) {
	t.Helper()
	in := clientOf(t, a.workspace(t, path))
	for ; ; n++ {
		if err := createSome(t.Context(), in); apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded limit") {
			return n
		} else if err != nil {
			t.Fatalf("object %d in %s: %v", n, path, err)
		}
	}
}

// isFull checks by the error of one more object that a workspace uses all of its limit of objects.
func isFull(t *testing.T, a atoll, path string, limit int) {
	t.Helper()
	err := createSome(t.Context(), clientOf(t, a.workspace(t, path)))
	wantForbidden(t, "an object in "+path, err, fmt.Sprintf("exceeded limit of workspace %q: objects %d, requested 1 more, limit %d", path, limit, limit))
}

func patchWorkspace(ctx context.Context, in dynamic.ResourceInterface, name, patch string) error {
	_, err := in.Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// TestWorkspaceBudgets: the limits of a tree of three levels are exact under concurrent creators at all levels.
func TestWorkspaceBudgets(t *testing.T) {
	s := theServer(t)
	s.organization(t, "org", `{objects: 150, bytes: 1Mi, workspaces: 6}`)
	org := s.workspacesIn(t, "org")
	_, err := org.Create(t.Context(), newWorkspace("team"), metav1.CreateOptions{})
	wantForbidden(t, "without limits", err, `spec.limits.objects is missing: workspace "org" has a limit of objects`, "of 150 remain", "with a type that does")
	withBytes := func(w *unstructured.Unstructured, bytes string) *unstructured.Unstructured {
		_ = unstructured.SetNestedField(w.Object, bytes, "spec", "limits", "bytes")
		return w
	}
	_, err = org.Create(t.Context(), limitedWorkspace("team", 80, 1), metav1.CreateOptions{})
	wantForbidden(t, "without a limit of bytes", err, "spec.limits.bytes is missing")
	_, err = org.Create(t.Context(), withBytes(limitedWorkspace("team", 1000, 1), "1Ki"), metav1.CreateOptions{})
	wantForbidden(t, "more objects", err, "requested 1001 more, limit 150", "lower spec.limits.objects of this one", "remain")
	_, err = org.Create(t.Context(), withBytes(limitedWorkspace("team", 10, 1), "2Mi"), metav1.CreateOptions{})
	wantForbidden(t, "more bytes", err, "raise spec.limits.bytes")
	_, err = org.Create(t.Context(), withBytes(limitedWorkspace("team", 10, 6), "1Ki"), metav1.CreateOptions{})
	wantForbidden(t, "more workspaces", err, "workspaces 0, requested 7 more, limit 6: delete workspaces or raise spec.limits.workspaces there, or lower spec.limits.workspaces of this one", "6 remain")
	mustCreate(t, org, withBytes(limitedWorkspace("team", 80, 4), "500Ki"))
	team := s.workspacesIn(t, "org:team")
	mustCreate(t, team, withBytes(limitedWorkspace("dev", 30, 0), "100Ki"))
	_, err = s.workspacesIn(t, "org:team:dev").Create(t.Context(), withBytes(limitedWorkspace("more", 0, 0), "0"), metav1.CreateOptions{})
	wantForbidden(t, "a workspace where none may be", err, "workspaces 0, requested 1 more, limit 0")

	var all sync.WaitGroup
	var inTeam, inOrg atomic.Int64
	clients := map[string]int{"org": 3, "org:team": 3, "org:team:dev": 2}
	for path, n := range clients {
		for i := range n {
			all.Go(func() {
				for j := range 4 { // and workspaces at the same time
					if i > 0 || path == "org:team:dev" {
						break
					}
					_, err := s.workspacesIn(t, path).Create(t.Context(), withBytes(limitedWorkspace(fmt.Sprintf("w%d", j), 5, 0), "1Ki"), metav1.CreateOptions{})
					switch {
					case err == nil && path == "org":
						inOrg.Add(1)
					case err == nil:
						inTeam.Add(1)
					case !apierrors.IsForbidden(err):
						t.Error(err)
					}
				}
				fillWorkspace(t, s, path)
			})
		}
	}
	all.Wait()
	for path, limit := range map[string]int{"org": 150, "org:team": 80, "org:team:dev": 30} {
		isFull(t, s, path, limit)
	}
	if inOrg.Load() > 1 || inTeam.Load() > 3 { // org has team with four, so one is left; team has dev
		t.Errorf("%d workspaces in org, %d in org:team", inOrg.Load(), inTeam.Load())
	}
	s.setLimits(t, "org", `{"objects": 151}`)
	if err := patchWorkspace(t.Context(), org, "team", `{"spec":{"limits":{"bytes":"499Ki"}}}`); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the usage is in the status", func(context.Context) error {
		out := s.mustKubectl(t, "", "get", "workspace", "org", "-o", "jsonpath={.status.usage.objects} {.status.usage.workspaces}")
		nested := s.mustKubectl(t, "", "--server="+s.Server.URL()+"/clusters/org", "get", "workspace", "team", "-o", "jsonpath={.status.usage.objects} {.status.usage.workspaces}")
		if want := fmt.Sprintf("150 %d", 5+inOrg.Load()); out != want || nested != fmt.Sprintf("80 %d", 1+inTeam.Load()) {
			return fmt.Errorf("%s, and team %s, want %s", out, nested, want)
		}
		return nil
	})
}

// TestWorkspaceBudgetChanges: raising the limits of a workspace takes from its parent in the same commit, lowering and deleting gives back,
// and never more than the workspace does not use.
func TestWorkspaceBudgetChanges(t *testing.T) {
	s := theServer(t)
	s.organization(t, "changes", `{objects: 100, workspaces: 10}`)
	in := s.workspacesIn(t, "changes")
	mustCreate(t, in, limitedWorkspace("a", 20, 0))
	wantForbidden(t, "raise", patchWorkspace(t.Context(), in, "a", `{"spec":{"limits":{"objects":200}}}`), "requested 180 more, limit 100")
	if err := patchWorkspace(t.Context(), in, "a", `{"spec":{"limits":{"objects":60}}}`); err != nil {
		t.Fatal(err)
	}
	_, err := in.Create(t.Context(), limitedWorkspace("b", 50, 0), metav1.CreateOptions{})
	wantForbidden(t, "another one", err, "requested 51 more, limit 100")
	if n := fillWorkspace(t, s, "changes:a"); n < 50 {
		t.Errorf("%d objects fit into the raised limit", n)
	}
	isFull(t, s, "changes:a", 60)

	if err := patchWorkspace(t.Context(), in, "a", `{"spec":{"limits":{"objects":10}}}`); err != nil { // below its use
		t.Fatal(err)
	}
	eventually(t, "the lowered limit applies", func(ctx context.Context) error {
		err := createSome(ctx, clientOf(t, s.workspace(t, "changes:a")))
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "objects 60, requested 1 more, limit 10") {
			return fmt.Errorf("create: %v", err)
		}
		return nil
	})
	for range 20 { // the part that is used is not given back
		_, err = in.Create(t.Context(), limitedWorkspace("b", 50, 0), metav1.CreateOptions{})
		wantForbidden(t, "another one, while the first one uses its former limit", err, "requested 51 more")
	}
	client := clientOf(t, s.workspace(t, "changes:a"))
	if err := client.CoreV1().ConfigMaps("default").DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := patchWorkspace(t.Context(), in, "a", `{"spec":{"limits":{"objects":11}}}`); err != nil { // any change looks at it again
		t.Fatal(err)
	}
	eventually(t, "the rest is given back", func(ctx context.Context) error {
		_, err := in.Create(ctx, limitedWorkspace("b", 50, 0), metav1.CreateOptions{})
		return err
	})
	if err := patchWorkspace(t.Context(), in, "a", `{"spec":{"limits":{"objects":20}}}`); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a raised limit applies again", func(ctx context.Context) error { return createSome(ctx, clientOf(t, s.workspace(t, "changes:a"))) })
	fillWorkspace(t, s, "changes:a")
	isFull(t, s, "changes:a", 20)

	_, err = in.Create(t.Context(), limitedWorkspace("c", 40, 0), metav1.CreateOptions{})
	wantForbidden(t, "a third one", err, "requested 41 more")
	if err := in.Delete(t.Context(), "b", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the deleted one gives back", func(ctx context.Context) error {
		_, err := in.Create(ctx, limitedWorkspace("c", 40, 0), metav1.CreateOptions{})
		return err
	})

	s.setLimits(t, "changes", `{"objects": 5}`) // lower than in use
	eventually(t, "nothing new", func(ctx context.Context) error {
		if err := createSome(ctx, clientOf(t, s.workspace(t, "changes"))); !apierrors.IsForbidden(err) {
			return fmt.Errorf("create: %v", err)
		}
		return nil
	})
	if err := patchWorkspace(t.Context(), in, "a", `{"spec":{"limits":{"objects":1}}}`); err != nil {
		t.Errorf("lowering a child of a full workspace: %v", err)
	}
}

// TestWorkspaceBudgetOfExisting: a workspace gets no limits while workspaces in it have none.
func TestWorkspaceBudgetOfExisting(t *testing.T) {
	s := theServer(t)
	s.createWorkspace(t, "existing")
	for _, name := range []string{"a", "b", "c", "d"} {
		s.createNested(t, "existing", name)
	}
	set := func() error {
		out, err := s.kubectl(t, "", "patch", "workspace", "existing", "--type=merge", "-p", `{"spec":{"limits":{"objects":1000}}}`)
		if err != nil {
			return errors.New(out)
		}
		return nil
	}
	if err := set(); err == nil || !strings.Contains(err.Error(), "lack spec.limits.objects") || !strings.Contains(err.Error(), "a, b, c and 1 more: set the limits of each of them first, or delete it") {
		t.Errorf("limits above unlimited workspaces: %v", err)
	}
	in := s.workspacesIn(t, "existing")
	for _, name := range []string{"a", "b", "c", "d"} {
		if err := patchWorkspace(t.Context(), in, name, `{"spec":{"limits":{"objects":240}}}`); err != nil {
			t.Fatal(err)
		}
	}
	if err := set(); err != nil {
		t.Fatal(err)
	}
	tries := 0
	eventually(t, "the limits are known", func(ctx context.Context) error {
		tries++
		_, err := in.Create(ctx, newWorkspace(fmt.Sprintf("early-%d", tries)), metav1.CreateOptions{})
		if !apierrors.IsForbidden(err) {
			return fmt.Errorf("a workspace without limits: %v", err)
		}
		return nil
	})
	_, err := in.Create(t.Context(), limitedWorkspace("e", 100, 0), metav1.CreateOptions{})
	wantForbidden(t, "a fifth one", err, "requested 101 more, limit 1000")
}

// TestWorkspaceUsageBelow: a workspace in a workspace reports its usage after its last request, and then gives back the part that it does not use.
func TestWorkspaceUsageBelow(t *testing.T) {
	s := newServer(t, server.Config{DataDir: t.TempDir(), WorkspaceIdle: 2 * time.Second})
	defer func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	}()
	s.organization(t, "idle", `{objects: 60}`)
	in := s.workspacesIn(t, "idle")
	mustCreate(t, in, limitedWorkspace("a", 40, 0))
	fillWorkspace(t, s, "idle:a")
	usage := func(want string) {
		t.Helper()
		eventually(t, "the usage is "+want, func(ctx context.Context) error {
			w, err := in.Get(ctx, "a", metav1.GetOptions{})
			if err != nil {
				return err
			}
			if got, _, _ := unstructured.NestedInt64(w.Object, "status", "usage", "objects"); fmt.Sprint(got) != want {
				return fmt.Errorf("the usage is %d", got)
			}
			return nil
		})
	}
	usage("40")
	if err := patchWorkspace(t.Context(), in, "a", `{"spec":{"limits":{"objects":10}}}`); err != nil {
		t.Fatal(err)
	}
	_, err := in.Create(t.Context(), limitedWorkspace("b", 40, 0), metav1.CreateOptions{})
	wantForbidden(t, "another one", err, "requested 41 more")
	if err := clientOf(t, s.workspace(t, "idle:a")).CoreV1().ConfigMaps("default").DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	within(t, time.Minute, "it gives back when it is idle", func(ctx context.Context) error {
		_, err := in.Create(ctx, limitedWorkspace("b", 40, 0), metav1.CreateOptions{})
		return err
	})
}
