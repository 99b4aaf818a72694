package server_test

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/playground/postgres"
	"github.com/atoll-dev/atoll/server"
)

// TestWorkspaceBudgetAttacks: a tenant with all permissions in a workspace with limits gets no more than those by the Workspaces in it.
func TestWorkspaceBudgetAttacks(t *testing.T) {
	s := theServer(t)
	s.organization(t, "tenant", `{objects: 60, workspaces: 5}`)
	in := s.workspacesIn(t, "tenant")
	mustCreate(t, in, limitedWorkspace("a", 20, 1))
	ctx := t.Context()
	for what, patch := range map[string]string{
		"remove the limits":      `{"spec":{"limits":null}}`,
		"remove one limit":       `{"spec":{"limits":{"objects":null}}}`,
		"remove spec":            `{"spec":null}`,
		"raise":                  `{"spec":{"limits":{"objects":100000}}}`,
		"raise to the largest":   `{"spec":{"limits":{"objects":9223372036854775807,"workspaces":9223372036854775807}}}`,
		"workspaces":             `{"spec":{"limits":{"workspaces":9}}}`,
		"raise, no finalizers":   `{"metadata":{"finalizers":[]},"spec":{"limits":{"objects":70}}}`,
		"forge the generation":   `{"metadata":{"generation":99},"spec":{"limits":{"objects":70}}}`,
		"raise while lowering":   `{"spec":{"limits":{"objects":0,"workspaces":7}}}`,
		"raise with annotations": `{"metadata":{"annotations":{"a":"b"}},"spec":{"limits":{"objects":70}}}`,
	} {
		wantForbidden(t, what, patchWorkspace(ctx, in, "a", patch), "spec.limits.")
	}
	if err := patchWorkspace(ctx, in, "a", `{"metadata":{"deletionTimestamp":"2020-01-01T00:00:00Z"},"spec":{"limits":{"objects":70}}}`); !apierrors.IsInvalid(err) {
		t.Errorf("forge the deletion, which is exempt from limits: %v", err)
	}
	for _, subresource := range []string{"", "status"} {
		_, err := in.Patch(ctx, "a", types.JSONPatchType, []byte(`[{"op":"replace","path":"/spec/limits/objects","value":500}]`), metav1.PatchOptions{}, sub(subresource)...)
		if subresource == "" {
			wantForbidden(t, "a JSON patch", err, "requested")
		} else if err != nil {
			t.Errorf("a status: %v", err)
		}
	}
	if _, err := in.Patch(ctx, "a", types.MergePatchType, []byte(`{"status":{"usage":{"objects":0,"bytes":"0"},"path":"/clusters/other"}}`), metav1.PatchOptions{}, "status"); err != nil {
		t.Errorf("a forged usage: %v", err)
	}
	applied := limitedWorkspace("a", 500, 1)
	_, err := in.Apply(ctx, "a", applied, metav1.ApplyOptions{FieldManager: "tenant", Force: true})
	wantForbidden(t, "apply", err, "requested 480 more, limit 60")
	applied.SetName("b")
	_, err = in.Apply(ctx, "b", applied, metav1.ApplyOptions{FieldManager: "tenant", Force: true})
	wantForbidden(t, "creation by apply", err, "requested 501 more, limit 60")
	read, err := in.Get(ctx, "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got, _, _ := unstructured.NestedInt64(read.Object, "spec", "limits", "objects"); got != 20 || len(read.GetFinalizers()) != 1 {
		t.Errorf("the Workspace is %v, finalizers %v", read.Object["spec"], read.GetFinalizers())
	}

	// A Workspace that is being deleted keeps its part until its keyspace is gone. A finalizer of the tenant keeps it.
	if err := patchWorkspace(ctx, in, "a", `{"metadata":{"finalizers":["example.com/keep"]}}`); err != nil {
		t.Fatal(err)
	}
	n := fillWorkspace(t, s, "tenant:a")
	orphan := metav1.DeletePropagationOrphan
	if err := in.Delete(ctx, "a", metav1.DeleteOptions{PropagationPolicy: &orphan}); err != nil {
		t.Fatal(err)
	}
	wantForbidden(t, "raise while it is being deleted", patchWorkspace(ctx, in, "a", `{"spec":{"limits":{"objects":500}}}`), "requested")
	_, err = in.Create(ctx, limitedWorkspace("b", 50, 0), metav1.CreateOptions{})
	wantForbidden(t, "another one meanwhile", err, "requested 51 more")
	eventually(t, "it is gone after its finalizer is removed", func(ctx context.Context) error {
		if err := patchWorkspace(ctx, in, "a", `{"metadata":{"finalizers":[]}}`); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		if _, err := in.Get(ctx, "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is there: %v", err)
		}
		return nil
	})

	// Fill one, lower its limits, and fill another one with the rest.
	total, err := n, error(nil)
	for i := range 4 {
		name := fmt.Sprintf("round-%d", i)
		if _, err = in.Create(ctx, limitedWorkspace(name, 15, 0), metav1.CreateOptions{}); err != nil {
			break
		}
		total = fillWorkspace(t, s, "tenant:"+name)
		if total < 10 {
			t.Errorf("%d objects in %s", total, name)
		}
		if err := patchWorkspace(ctx, in, name, `{"spec":{"limits":{"objects":0}}}`); err != nil {
			t.Fatal(err)
		}
	}
	wantForbidden(t, "a fourth one of 15 in 60", err, "requested 16 more, limit 60")
	if _, err := clientOf(t, s.workspace(t, "tenant")).CoreV1().RESTClient().Put().AbsPath("/atoll/usage/reserved/round-0").Body([]byte("{}")).DoRaw(ctx); !apierrors.IsNotFound(err) {
		t.Errorf("a path of a key: %v", err)
	}
}

func sub(name string) []string {
	if name == "" {
		return nil
	}
	return []string{name}
}

// TestWorkspaceBudgetServers: with two servers of one database, creators on both get exactly the limits of the workspace above, also
// while a workspace is filled on one server and lowered on the other, again and again.
func TestWorkspaceBudgetServers(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a PostgreSQL; not with -short")
	}
	db, err := postgres.Start(t.Context(), postgres.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Stop() })
	var servers []atoll
	first := t.TempDir()
	for i := range 2 {
		cfg := server.Config{DataDir: first, Datastore: db.URL()}
		if i > 0 {
			cfg.DataDir, cfg.TokenFile = t.TempDir(), filepath.Join(first, "token")
		}
		s := newServer(t, cfg)
		t.Cleanup(func() {
			if err := s.stop(); err != nil {
				t.Error(err)
			}
		})
		servers = append(servers, s)
	}
	servers[0].organization(t, "org", `{objects: 80, workspaces: 20}`)
	a, b := servers[0].workspacesIn(t, "org"), servers[1].workspacesIn(t, "org")
	mustCreate(t, a, limitedWorkspace("busy", 40, 0))

	// The tenant lowers and raises on one server, and creates on the other one at the same time.
	done := make(chan struct{})
	var all sync.WaitGroup
	created := 0
	all.Go(func() {
		in := clientOf(t, servers[1].workspace(t, "org:busy"))
		for {
			select {
			case <-done:
				return
			default:
			}
			if err := createSome(context.Background(), in); err == nil {
				created++
			} else if !apierrors.IsForbidden(err) {
				t.Error(err)
				return
			}
		}
	})
	var took []string
	for i := range 12 {
		if err := patchWorkspace(t.Context(), a, "busy", fmt.Sprintf(`{"spec":{"limits":{"objects":%d}}}`, 3+i)); err != nil {
			t.Errorf("lower: %v", err)
		}
		name := fmt.Sprintf("other-%d", i)
		if _, err := b.Create(t.Context(), limitedWorkspace(name, 5, 0), metav1.CreateOptions{}); err == nil {
			took = append(took, name)
		} else if !apierrors.IsForbidden(err) {
			t.Error(err)
		}
		if err := patchWorkspace(t.Context(), b, "busy", `{"spec":{"limits":{"objects":40}}}`); err != nil && !apierrors.IsForbidden(err) {
			t.Errorf("raise: %v", err)
		}
	}
	close(done)
	all.Wait()
	for i, name := range took {
		created += fillWorkspace(t, servers[i%2], "org:"+name)
	}
	for i := range 6 {
		all.Go(func() { fillWorkspace(t, servers[i%2], "org") })
	}
	all.Wait()
	isFull(t, servers[0], "org", 80)
	isFull(t, servers[1], "org", 80)
	// All objects of users, wherever they are, with the Workspaces.
	total := 1 + len(took)
	for _, path := range append([]string{"org", "org:busy"}, prefixed("org:", took)...) {
		list, err := clientOf(t, servers[0].workspace(t, path)).CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range list.Items {
			if c.GenerateName != "" {
				total++
			}
		}
	}
	t.Logf("%d objects in all; %d workspaces were created beside the busy one", total, len(took))
	if total > 80 {
		t.Errorf("%d objects within a limit of 80", total)
	}
}

func prefixed(prefix string, names []string) (out []string) {
	for _, name := range names {
		out = append(out, prefix+name)
	}
	return out
}
