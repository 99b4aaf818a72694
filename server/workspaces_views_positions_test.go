package server_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
)

// TestWorkspaceViewPositions: a watch continues at the position of a list or of a bookmark without a gap. At any other one it gets 410.
func TestWorkspaceViewPositions(t *testing.T) {
	s := newViewStage(t, "pos-")
	s.permit("view")
	eventually(t, "the view of no consumer is empty", func(ctx context.Context) error {
		list, err := s.view(s.account, "*").List(ctx, metav1.ListOptions{})
		if err == nil && (len(list.Items) > 0 || len(list.GetResourceVersion()) < 17) {
			t.Errorf("%v", list)
		}
		return err
	})
	c1, c2 := clientsOf(t, s.consumer("c1")).Resource(sharedWidgets), clientsOf(t, s.consumer("c2")).Resource(sharedWidgets)
	for _, name := range []string{"a", "b", "c"} {
		s.create(c1, name)
		s.create(c2, name)
	}
	all := s.view(s.account, "*")
	var pages []string
	position := ""
	for opts := (metav1.ListOptions{Limit: 2}); ; {
		list, err := all.List(t.Context(), opts)
		if err != nil || len(list.Items) > 2 || position != "" && list.GetResourceVersion() != position {
			t.Fatalf("%v, %v", list, err)
		}
		for _, o := range list.Items {
			pages = append(pages, s.nameOf(&o))
		}
		if position = list.GetResourceVersion(); len(pages) == 2 { // not in the pages that follow
			s.create(c2, "new")
		}
		if opts.Continue = list.GetContinue(); opts.Continue == "" {
			break
		}
	}
	if want := []string{"c1/a", "c1/b", "c1/c", "c2/a", "c2/b", "c2/c"}; !slices.Equal(pages, want) {
		t.Errorf("pages have %v", pages)
	}
	events := func(from string, want ...string) (bookmark string) {
		t.Helper()
		w, err := all.Watch(t.Context(), metav1.ListOptions{ResourceVersion: from, AllowWatchBookmarks: true})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		var got []string
		for e := range w.ResultChan() {
			o, ok := e.Object.(*unstructured.Unstructured)
			if !ok {
				t.Fatalf("%+v", e)
			}
			if e.Type == watch.Bookmark && len(got) >= len(want) {
				bookmark = o.GetResourceVersion()
				break
			}
			if e.Type != watch.Bookmark {
				got = append(got, fmt.Sprintf("%s %s", e.Type, s.nameOf(o)))
			}
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("events %v, want %v", got, want)
		}
		return bookmark
	}
	bookmark := events(position, "ADDED c2/new")
	if bookmark <= position {
		t.Errorf("%s after %s", bookmark, position)
	}
	if err := c1.Namespace("default").Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.create(c2, "x")
	events(bookmark, "ADDED c2/x", "DELETED c1/a")
	// A watch that ends has a last bookmark, so that its client need not list again.
	two := int64(2)
	short, err := all.Watch(t.Context(), metav1.ListOptions{ResourceVersion: bookmark, AllowWatchBookmarks: true, TimeoutSeconds: &two})
	if err != nil {
		t.Fatal(err)
	}
	var last watch.Event
	for e := range short.ResultChan() {
		last = e
	}
	if o, ok := last.Object.(*unstructured.Unstructured); ok && last.Type == watch.Bookmark {
		s.create(c1, "y")
		events(o.GetResourceVersion(), "ADDED c1/y")
	} else {
		t.Errorf("the last event is %+v", last)
	}
	object, err := c1.Namespace("default").Get(t.Context(), "b", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, unknown := range []string{object.GetResourceVersion(), "9000000000000000000"} {
		if _, err := all.Watch(t.Context(), metav1.ListOptions{ResourceVersion: unknown}); !apierrors.IsResourceExpired(err) {
			t.Errorf("watch from %s: %v", unknown, err)
		}
		if _, err := all.List(t.Context(), metav1.ListOptions{ResourceVersion: unknown, ResourceVersionMatch: metav1.ResourceVersionMatchExact}); !apierrors.IsResourceExpired(err) {
			t.Errorf("list at %s: %v", unknown, err)
		}
	}
	s.consumer("c3")
	events(position, "ADDED c1/y", "ADDED c2/new", "ADDED c2/x", "DELETED c1/a")
	s.mustKubectl(t, "", "delete", "workspace", s.name+"c2")
	w, err := all.Watch(t.Context(), metav1.ListOptions{ResourceVersion: position})
	if err == nil { // c1 may have sent its events before
		for e := range w.ResultChan() {
			if e.Type == watch.Error {
				err = apierrors.FromObject(e.Object)
			}
		}
	}
	if !apierrors.IsResourceExpired(err) {
		t.Errorf("a consumer of the position is gone: %v", err)
	}
}
