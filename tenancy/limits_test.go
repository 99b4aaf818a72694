package tenancy

import (
	"context"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

func TestLimits(t *testing.T) {
	w := &v1alpha1.Workspace{}
	if Limits(w).Any() {
		t.Error("a workspace without limits has some")
	}
	w.Spec.Limits = &v1alpha1.WorkspaceLimits{Objects: ptr.To[int64](0), Bytes: ptr.To(resource.MustParse("10Mi"))}
	if l := Limits(w); l.Keys == nil || *l.Keys != 0 || l.Bytes == nil || *l.Bytes != 10<<20 {
		t.Errorf("%+v", l)
	}
}

// TestWith: a workspace that is being opened is awaited, so a change of its limits is not lost. One that is not awake stays closed.
func TestWith(t *testing.T) {
	s := newStage(t, clock.RealClock{})
	s.With("sleeping", func(*workspace) { t.Error("a workspace that is not awake") })
	s.slow = make(chan struct{})
	acquired := make(chan func())
	go func() {
		_, _, release, err := s.Acquire(t.Context(), "w")
		if err != nil {
			t.Error(err)
		}
		acquired <- release
	}()
	fakeapi.Eventually(t, "it is being opened", func() error {
		if keys := s.Keys(); len(keys) != 1 || keys[0] != "w" {
			return context.DeadlineExceeded
		}
		return nil
	})
	with := make(chan string, 1)
	go s.With("w", func(w *workspace) { with <- w.uid })
	close(s.slow)
	if uid := <-with; uid != "w" {
		t.Error(uid)
	}
	(<-acquired)()
}

// TestReportUsage: the usage is written once, and not for a workspace that is gone.
func TestReportUsage(t *testing.T) {
	api := fakeapi.New(t, fakeapi.CRDsOf(t, v1alpha1.CRDs)...)
	api.Put(&unstructured.Unstructured{Object: map[string]any{"apiVersion": "tenancy.atoll.dev/v1alpha1", "kind": "Workspace", "metadata": map[string]any{"name": "team"}}})
	read := func() *v1alpha1.Workspace {
		w := &v1alpha1.Workspace{}
		api.Read(v1alpha1.WorkspaceResource, "", "team", w)
		return w
	}
	definitions := int64(3)
	report := func(w *v1alpha1.Workspace) (writes int) {
		t.Helper()
		before := len(api.Writes())
		if err := ReportUsage(t.Context(), api.Dynamic(), w, kv.Usage{Keys: 7, Bytes: 2 << 20}, definitions, 40); err != nil {
			t.Error(err)
		}
		return len(api.Writes()) - before
	}
	if n := report(read()); n != 1 {
		t.Errorf("%d writes", n)
	}
	w := read()
	if u := w.Status.Usage; u == nil || u.Objects != 7 || u.Bytes.String() != "2Mi" || u.Definitions != 3 || u.Expressions != 40 {
		t.Errorf("%+v", u)
	}
	if n := report(w); n != 0 {
		t.Errorf("%d writes of the same usage", n)
	}
	definitions = 0 // a merge patch without the field would keep it
	report(w)
	if w = read(); w.Status.Usage.Definitions != 0 {
		t.Errorf("%+v", w.Status.Usage)
	}
	api.Delete(v1alpha1.WorkspaceResource, "", "team")
	w.Status.Usage = nil
	report(w)
}
