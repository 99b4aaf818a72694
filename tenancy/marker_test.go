package tenancy

import (
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/dynamic"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// TestMarker: requests share a mark for a short time. After that, and after a failure, the next one writes another. The status is not
// lost by a mark, and no mark is written on a workspace of another UID.
func TestMarker(t *testing.T) {
	s := &controlled{api: fakeapi.New(t, fakeapi.CRDsOf(t, v1alpha1.CRDs)...)}
	client, err := dynamic.NewForConfig(s.api.Config())
	if err != nil {
		t.Fatal(err)
	}
	clock := testingclock.NewFakeClock(time.Now())
	m := NewMarker(client, clock, "server-1")
	uid := s.create("team")
	s.api.Merge(v1alpha1.WorkspaceResource, "", "team", `{"status":{"phase":"Ready"}}`)
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			if err := m.Mark(t.Context(), Controllers, "team", uid); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	first := s.due("team")
	if writes := s.api.Writes(); len(writes) != 1 || !strings.HasSuffix(first, " server-1") {
		t.Errorf("%v; the mark is %q", writes, first)
	}
	is := &v1alpha1.Workspace{}
	if s.api.Read(v1alpha1.WorkspaceResource, "", "team", is); is.Status.Phase != v1alpha1.WorkspaceReady {
		t.Errorf("%+v", is.Status)
	}
	clock.Step(markValidity)
	if err := m.Mark(t.Context(), Controllers, "team", uid); err != nil || s.due("team") == first {
		t.Errorf("%v; the mark is still %q", err, first)
	}
	for range 2 { // the second one is not the first one's failure
		if err := m.Mark(t.Context(), Controllers, "missing", "uid"); err == nil || !strings.Contains(err.Error(), "write the status of workspace missing") {
			t.Error(err)
		}
	}
	if err := m.Mark(t.Context(), Controllers, "team", "another"); err == nil {
		t.Error("a workspace of another UID is marked")
	}
}

// TestMarkerOfMoved: a mark at the former path of a workspace is none at the new one.
func TestMarkerOfMoved(t *testing.T) {
	s := &controlled{api: fakeapi.New(t, fakeapi.CRDsOf(t, v1alpha1.CRDs)...)}
	client, err := dynamic.NewForConfig(s.api.Config())
	if err != nil {
		t.Fatal(err)
	}
	m := NewMarker(client, testingclock.NewFakeClock(time.Now()), "server-1")
	s.create("a")
	s.create("b")
	for _, root := range []string{"a", "b"} {
		if err := m.Mark(t.Context(), Controllers, root+":inner", "uid"); err != nil {
			t.Fatal(err)
		}
		is := &v1alpha1.Workspace{}
		if s.api.Read(v1alpha1.WorkspaceResource, "", root, is); is.Status.DueBelow[root+":inner"] == "" {
			t.Errorf("%s is not marked: %+v", root, is.Status)
		}
	}
}
