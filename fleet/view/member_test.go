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
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// TestTypesAreReported: a syncer's report of types is stored for its cluster, and the response
// returns what else is requested.
func TestTypesAreReported(t *testing.T) {
	s := newFixture(t)
	r := s.remote(0, 24*time.Hour)
	wanted, err := r.ReportTypes(t.Context(), fleet.TypesReport{Groups: map[string]fleet.GroupDigest{"a.example": {}, "": {}}, Others: []string{"apps"}})
	if err != nil || fmt.Sprint(wanted) != "{[ a.example] [apps]}" {
		t.Errorf("%v %v", wanted, err)
	}
	if err := r.ReportGroup(t.Context(), fleet.GroupReport{Group: "a.example", Content: []byte("much")}); err != nil {
		t.Error(err)
	}
	if err := r.ReportGroup(t.Context(), fleet.GroupReport{Group: "bad"}); !apierrors.IsBadRequest(err) {
		t.Errorf("a report that the store rejects: %v", err)
	}
	if got := strings.Join(s.reports, "; "); got != "east serves [ a.example]; east has much of a.example; east has  of bad" {
		t.Errorf("stored: %s", got)
	}
}

func interpretation(name, apiVersion, kind, health string) *unstructured.Unstructured {
	return object(v1alpha1.Group+"/"+v1alpha1.Version, interpretationKind, "", name, map[string]any{"spec": map[string]any{
		"target": map[string]any{"apiVersion": apiVersion, "kind": kind}, "health": "'" + health + "'"}})
}

// TestInterpretationsInView: a view contains the interpretations of the kinds in it, and no
// others.
func TestInterpretationsInView(t *testing.T) {
	s := newFixture(t, secret("one"), bind("one", "east"), bind("two", "west"), secret("two"),
		interpretation("secrets", "v1", "Secret", "Degraded"), interpretation("maps", "v1", "ConfigMap", "Degraded"))
	r := s.remote(0, 24*time.Hour)
	r.await(t)
	names := func() string {
		code, text := s.ask(syncerOf("east"), "GET", eastView+"/apis/"+apiVersion+"/"+interpretations, nil)
		var got metav1.PartialObjectMetadataList
		if err := json.Unmarshal([]byte(text), &got); err != nil || code != http.StatusOK {
			t.Fatalf("%d %s", code, text)
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
		t.Errorf("interpretations in the view: %q", got)
	}
	fakeapi.Until(t, "the interpretation is known", func() bool { return health() == v1alpha1.Degraded })
	notified := make(chan types.NamespacedName, 100)
	defer r.Subscribe(func(key types.NamespacedName) { notified <- key })()
	<-notified
	s.control.Put(interpretation("secrets", "v1", "Secret", "Progressing"))
	fakeapi.Until(t, "the change is known", func() bool { return health() == v1alpha1.Progressing })
	fakeapi.Until(t, "the subscriber is notified", func() bool { return len(notified) > 0 })
	// When the oldest one is deleted, the next one applies; all leave the view with the last object.
	s.control.Put(interpretation("others", "v1", "Secret", "Healthy"))
	s.control.Delete(v1alpha1.ResourceInterpretationResource, "", "secrets")
	fakeapi.Until(t, "the other one applies", func() bool { return health() == v1alpha1.Healthy })
	s.control.Put(bind("one", "west"))
	fakeapi.Until(t, "the view has no interpretation", func() bool { return names() == "" })
}

// TestInterpretationDeletedWhileRead: an interpretation that is deleted at any time while the view
// is brought up to date leaves the view.
func TestInterpretationDeletedWhileRead(t *testing.T) {
	s := newFixture(t, secret("one"), bind("one", "east"), interpretation("secrets", "v1", "Secret", "Degraded"))
	s.remote(0, 24*time.Hour).await(t)
	s.host.mu.Lock()
	p := s.host.caches.views["east"]
	s.host.mu.Unlock()
	cached := p.view.session.Interpretations.Informer.GetStore()
	in, ok, err := cached.GetByKey("secrets")
	if !ok || err != nil {
		t.Fatalf("no interpretation: %v", err)
	}
	key := objectKey{v1alpha1.ResourceInterpretationResource, types.NamespacedName{Name: "secrets"}}
	present := func() bool { _, ok := p.log.find(key); return ok }
	for range 200 {
		_ = cached.Add(in)
		fakeapi.Until(t, "the interpretation is in the view", func() bool { p.markDirty(clusterOrigin()); return present() })
		p.markDirty(clusterOrigin())
		_ = cached.Delete(in)
		fakeapi.Until(t, "the interpretation leaves the view", func() bool { p.markDirty(clusterOrigin()); return !present() })
	}
}

// TestCustomKindsInAView: a custom kind is known by the view's data on it and by
// interpretations.
func TestCustomKindsInAView(t *testing.T) {
	s := newFixture(t)
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
	text, err := json.Marshal(interpretation("widgets", "example.com/v1", "Widget", "Degraded").Object)
	if err == nil {
		err = r.handleInterpretation(change{key: types.NamespacedName{Name: "widgets"}, object: text})
	}
	if err != nil {
		t.Fatal(err)
	}
	k, _ = r.KindOf(b)
	if h, _ := k.Health(secret("one")); h != v1alpha1.Degraded || k.GVR().Resource != "widgets" {
		t.Errorf("interpreted: %v %v", h, k.GVR())
	}
}

// TestRemovalOfEmptiedNamespace: a namespace that was emptied before its deletion is notified
// again when it is deleted.
func TestRemovalOfEmptiedNamespace(t *testing.T) {
	s := newFixture(t, secret("one"), bind("one", "east"))
	r := s.remote(0, 24*time.Hour)
	r.await(t)
	namespaces := schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	s.control.Put(bind("one", "west"))
	fakeapi.Until(t, "the view is empty", func() bool { _, has := r.Namespace("shop"); return !has })
	notified := make(chan types.NamespacedName, 100)
	defer r.Subscribe(func(key types.NamespacedName) { notified <- key })()
	s.control.Delete(namespaces, "", "shop")
	fakeapi.Until(t, "the subscriber is notified", func() bool {
		for len(notified) > 0 { // the end of the binding may still be among them
			if <-notified == (types.NamespacedName{Namespace: "shop"}) {
				return true
			}
		}
		return false
	})
	if gone, err := r.ConfirmNamespaceGone(t.Context(), "shop"); !gone || err != nil {
		t.Errorf("namespace gone: %v %v", gone, err)
	}
}

// TestListsInPages: the pages of a list together are complete.
func TestListsInPages(t *testing.T) {
	var objects []*unstructured.Unstructured
	var want []string
	for i := range 7 {
		name := fmt.Sprint("s", i)
		objects = append(objects, secret(name), bind(name, "east"))
		want = append(want, name)
	}
	s := newFixture(t, objects...)
	list := func(query string) (code int, out metav1.PartialObjectMetadataList) {
		t.Helper()
		code, text := s.ask(syncerOf("east"), "GET", eastView+"/api/v1/secrets?"+query, nil)
		if err := json.Unmarshal([]byte(text), &out); err != nil {
			t.Fatalf("%d %s", code, text)
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
	// A watch from the list's version sends changes between two pages.
	_, page := list("limit=3")
	s.control.Put(bind("s0", "west"))
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
