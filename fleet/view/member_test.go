package view

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// What a syncer reports of types is kept as its cluster's, and what is wanted besides
// comes back.
func TestTypesAreReported(t *testing.T) {
	s := open(t)
	r := s.remote(0, 24*time.Hour)
	wanted, err := r.ReportTypes(t.Context(), fleet.TypesReport{Groups: map[string]fleet.GroupDigest{"a.example": {}, "": {}}, Others: []string{"apps"}})
	if err != nil || fmt.Sprint(wanted) != "{[ a.example] [apps]}" {
		t.Errorf("%v %v", wanted, err)
	}
	if err := r.ReportGroup(t.Context(), fleet.GroupReport{Group: "a.example", Content: []byte("much")}); err != nil {
		t.Error(err)
	}
	if err := r.ReportGroup(t.Context(), fleet.GroupReport{Group: "bad"}); !apierrors.IsBadRequest(err) {
		t.Errorf("what the keeper refuses: %v", err)
	}
	if got := strings.Join(s.kept, "; "); got != "east serves [ a.example]; east has much of a.example; east has  of bad" {
		t.Errorf("kept: %s", got)
	}
}

func lesson(name, apiVersion, kind, health string) *unstructured.Unstructured {
	return thing(v1alpha1.Group+"/"+v1alpha1.Version, lessonKind, "", name, map[string]any{"spec": map[string]any{
		"target": map[string]any{"apiVersion": apiVersion, "kind": kind}, "health": "'" + health + "'"}})
}

// What was taught about the kinds in a view is in the view, and of other kinds nothing.
func TestWhatIsTaughtIsInTheView(t *testing.T) {
	s := open(t, secret("one"), bind("one", "east"), bind("two", "west"), secret("two"),
		lesson("secrets", "v1", "Secret", "Degraded"), lesson("maps", "v1", "ConfigMap", "Degraded"))
	r := s.remote(0, 24*time.Hour)
	r.await(t)
	names := func() string {
		code, said := s.ask(syncerOf("east"), "GET", eastView+"/apis/"+apiVersion+"/"+lessons, nil)
		var got metav1.PartialObjectMetadataList
		if err := json.Unmarshal([]byte(said), &got); err != nil || code != http.StatusOK {
			t.Fatalf("%d %s", code, said)
		}
		var out []string
		for _, i := range got.Items {
			out = append(out, i.Name)
		}
		return strings.Join(out, " ")
	}
	health := func() v1alpha1.Health {
		b, ok := r.Binding(keyTo("one"))
		if !ok {
			return ""
		}
		k, _ := r.KindOf(b)
		h, _ := k.Health(secret("one"))
		return h
	}
	if got := names(); got != "secrets" {
		t.Errorf("lessons in the view: %q", got)
	}
	soon(t, "the lesson is known", func() bool { return health() == v1alpha1.Degraded })
	heard := make(chan types.NamespacedName, 100)
	defer r.Subscribe(func(key types.NamespacedName) { heard <- key })()
	<-heard
	next := lesson("secrets", "v1", "Secret", "Progressing")
	next.SetGeneration(4)
	s.control1(v1alpha1.ResourceInterpretationResource, "", next, "update")
	soon(t, "the change is known", func() bool { return health() == v1alpha1.Progressing })
	soon(t, "it is told", func() bool { return len(heard) > 0 })
	// The next in age counts when the first is gone, and all go with the last object.
	s.control1(v1alpha1.ResourceInterpretationResource, "", lesson("others", "v1", "Secret", "Healthy"), "create")
	s.control1(v1alpha1.ResourceInterpretationResource, "", next, "delete")
	soon(t, "the other one counts", func() bool { return health() == v1alpha1.Healthy })
	s.control1(v1alpha1.ResourceBindingResource, "shop", bind("one", "west"), "update")
	soon(t, "the view has no lesson", func() bool { return names() == "" })
}

// A kind that is in no table is known by what the view says of it, and what was taught.
func TestCustomKindsInAView(t *testing.T) {
	s := open(t)
	r := s.remote(0, 24*time.Hour)
	b := &v1alpha1.ResourceBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "widget-one", UID: "u"}}
	b.Spec.Resource = v1alpha1.ObjectReference{APIVersion: "example.com/v1", Kind: "Widget", Resource: "widgets", Name: "one"}
	r.mu.Lock()
	r.bound[b.Key()] = &BoundObject{ObjectMeta: b.ObjectMeta, Binding: BoundBinding{Scale: &interpret.Scale{Replicas: []string{"spec", "size"}}}}
	r.mu.Unlock()
	k, ok := r.KindOf(b)
	if !ok || k.GVR() != (schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}) || !k.Divided || k.Scale().Replicas[1] != "size" {
		t.Errorf("%v %+v", ok, k)
	}
	said, err := json.Marshal(lesson("widgets", "example.com/v1", "Widget", "Degraded").Object)
	if err == nil {
		err = r.takeLesson(change{key: types.NamespacedName{Name: "widgets"}, object: said})
	}
	if err != nil {
		t.Fatal(err)
	}
	k, _ = r.KindOf(b)
	if h, _ := k.Health(secret("one")); h != v1alpha1.Degraded || k.GVR().Resource != "widgets" {
		t.Errorf("taught: %v %v", h, k.GVR())
	}
}

// A namespace that was emptied first is told of once more when it is gone.
func TestANamespaceThatWasEmptiedFirst(t *testing.T) {
	s := open(t, secret("one"), bind("one", "east"))
	r := s.remote(0, 24*time.Hour)
	r.await(t)
	namespaces := schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	s.control1(v1alpha1.ResourceBindingResource, "shop", bind("one", "west"), "update")
	soon(t, "the view is empty", func() bool { _, has := r.Namespace("shop"); return !has })
	heard := make(chan types.NamespacedName, 100)
	defer r.Subscribe(func(key types.NamespacedName) { heard <- key })()
	s.control1(namespaces, "", thing("v1", "Namespace", "", "shop", nil), "delete")
	soon(t, "it is told", func() bool { return len(heard) > 0 })
	if key := <-heard; key != (types.NamespacedName{Namespace: "shop"}) {
		t.Errorf("told: %v", key)
	}
	if err := s.kube.CoreV1().Namespaces().Delete(t.Context(), "shop", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if gone, err := r.NamespaceGone(t.Context(), "shop"); !gone || err != nil {
		t.Errorf("it is gone: %v %v", gone, err)
	}
}

// A list comes in pages, which together have all of it.
func TestListsInPages(t *testing.T) {
	var objects []*unstructured.Unstructured
	var want []string
	for i := range 7 {
		name := fmt.Sprint("s", i)
		objects = append(objects, secret(name), bind(name, "east"))
		want = append(want, name)
	}
	s := open(t, objects...)
	list := func(query string) (code int, out metav1.PartialObjectMetadataList) {
		t.Helper()
		code, said := s.ask(syncerOf("east"), "GET", eastView+"/api/v1/secrets?"+query, nil)
		if err := json.Unmarshal([]byte(said), &out); err != nil {
			t.Fatalf("%d %s", code, said)
		}
		return code, out
	}
	for limit := range 9 {
		var got []string
		version, next := "", ""
		for pages := 1; ; pages++ {
			code, page := list(fmt.Sprintf("limit=%d&continue=%s", limit, url.QueryEscape(next)))
			if code != http.StatusOK || version != "" && page.ResourceVersion != version || limit > 0 && len(page.Items) > limit {
				t.Fatalf("limit %d: %d, version %s after %s, %d items", limit, code, page.ResourceVersion, version, len(page.Items))
			}
			for _, i := range page.Items {
				got = append(got, i.Name)
			}
			left := int64(0)
			if page.RemainingItemCount != nil {
				left = *page.RemainingItemCount
			}
			if int(left) != len(want)-len(got) || (page.Continue == "") != (left == 0) {
				t.Errorf("limit %d: after %d items %d are left, continue %q", limit, len(got), left, page.Continue)
			}
			if version, next = page.ResourceVersion, page.Continue; next == "" || pages > len(want) {
				break
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("limit %d: %v", limit, got)
		}
	}
	// What comes between two pages is heard of by who watches from the list's version.
	_, page := list("limit=3")
	s.control1(v1alpha1.ResourceBindingResource, "shop", bind("s0", "west"), "update")
	_, rest := list("limit=9&continue=" + page.Continue)
	if rest.ResourceVersion != page.ResourceVersion || len(rest.Items) != 4 {
		t.Errorf("version %s, %d items", rest.ResourceVersion, len(rest.Items))
	}
	s.watch(syncerOf("east"), eastView+"/api/v1/secrets?watch=true&resourceVersion="+rest.ResourceVersion).expect("DELETED s0")
	for query, want := range map[string]int{"limit=-1": 400, "limit=x": 400, "continue=x": 400, "continue=eyJ2Ijo3fQ": 410} {
		if code, _ := list(query); code != want {
			t.Errorf("%s: %d, want %d", query, code, want)
		}
	}
}
