package server_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	tenancy "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
)

// TestWorkspacesWithoutWatchCache: the Workspaces of the root, which no watch cache holds, can be listed in pages and watched, from the
// current state with the bookmark that ends it, and from a resource version, with bookmarks. One request deletes those that a selector
// has, and no others.
func TestWorkspacesWithoutWatchCache(t *testing.T) {
	s := theServer(t)
	names := []string{"watched-0", "watched-1", "watched-2", "watched-3", "watched-4"}
	all := s.dynamic(t).Resource(tenancy.WorkspaceResource)
	for _, name := range names {
		s.createWorkspace(t, name)
		if _, err := all.Patch(t.Context(), name, "application/merge-patch+json", []byte(`{"metadata":{"labels":{"watched":"yes"}}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	s.createWorkspace(t, "unwatched")

	var paged []string
	options := metav1.ListOptions{LabelSelector: "watched=yes", Limit: 2}
	for {
		list, err := all.List(t.Context(), options)
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range list.Items {
			paged = append(paged, w.GetName())
		}
		if options.Continue = list.GetContinue(); options.Continue == "" {
			break
		}
	}
	if fmt.Sprint(paged) != fmt.Sprint(names) {
		t.Errorf("pages have %v", paged)
	}

	yes, timeout := true, int64(60)
	w, err := all.Watch(t.Context(), metav1.ListOptions{LabelSelector: "watched=yes", SendInitialEvents: &yes, AllowWatchBookmarks: true,
		ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, TimeoutSeconds: &timeout})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	initial := map[string]bool{}
	var from string
	for e := range w.ResultChan() {
		object, err := meta.Accessor(e.Object)
		if err != nil {
			t.Fatalf("%s: %v", e.Type, err)
		}
		if e.Type == watch.Bookmark && object.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true" {
			from = object.GetResourceVersion()
			break
		}
		initial[object.GetName()] = true
	}
	if len(initial) != len(names) || from == "" {
		t.Fatalf("it began with %v, and the bookmark %q", initial, from)
	}

	resumed, err := all.Watch(t.Context(), metav1.ListOptions{LabelSelector: "watched=yes", ResourceVersion: from, AllowWatchBookmarks: true, TimeoutSeconds: &timeout})
	if err != nil {
		t.Fatal(err)
	}
	defer resumed.Stop()
	if err := all.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "watched=yes"}); err != nil {
		t.Fatal(err)
	}
	deleted := map[string]bool{}
	for e := range resumed.ResultChan() {
		object, err := meta.Accessor(e.Object)
		if err != nil {
			t.Fatalf("%s: %v", e.Type, err)
		}
		if e.Type == watch.Deleted {
			deleted[object.GetName()] = true
		}
		if len(deleted) == len(names) {
			break
		}
	}
	if len(deleted) != len(names) {
		t.Errorf("the watch has seen the end of %v", deleted)
	}
	within(t, time.Minute, "kubectl prints the one that is left", func(context.Context) error {
		if out := s.mustKubectl(t, "", "get", "workspaces"); !strings.Contains(out, "unwatched") || strings.Contains(out, "watched-") {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
}
