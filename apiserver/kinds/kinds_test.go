package kinds

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
	testclock "k8s.io/utils/clock/testing"
)

// opener builds kinds and counts how many are closed.
type opener struct {
	mu             sync.Mutex
	opened, closed int
	fail           error
}

func (o *opener) build(schema.GroupVersionResource, Names) (*servedKind, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.fail != nil {
		return nil, o.fail
	}
	o.opened++
	return &servedKind{objects: &registry.Store{DestroyFunc: func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.closed++
	}}}, nil
}

func (o *opener) want(t *testing.T, opened, closed int) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.opened != opened || o.closed != closed {
		t.Errorf("%d opened, %d closed; want %d and %d", o.opened, o.closed, opened, closed)
	}
}

// A kind stays open while it is in use, and for a while after that. If it changes,
// watches end, and requests in flight do not.
func TestKindsAreOpenWhileUsed(t *testing.T) {
	var o opener
	clock := testclock.NewFakeClock(time.Now())
	kinds := openKinds{kinds: map[schema.GroupVersionResource]*openKind{}}
	r := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	acquire := func(revision string) (ended func() bool, release func()) {
		t.Helper()
		_, life, release, err := kinds.acquire(r, Names{}, revision, clock, o.build)
		if err != nil {
			t.Fatal(err)
		}
		return func() bool { return life.Err() != nil }, release
	}
	_, first := acquire("1")
	_, second := acquire("1")
	o.want(t, 1, 0)
	first()
	clock.Step(idleTimeout * 2)
	kinds.retireIdle(clock.Now().Add(-idleTimeout))
	o.want(t, 1, 0) // the second request uses it
	second()
	kinds.retireIdle(clock.Now().Add(-idleTimeout))
	o.want(t, 1, 0) // it was used until a moment ago
	clock.Step(idleTimeout * 2)
	kinds.retireIdle(clock.Now().Add(-idleTimeout))
	o.want(t, 1, 1)

	ended, third := acquire("1")
	kinds.retire(func(k *openKind) bool { return k.revision == "1" })
	if !ended() {
		t.Error("the watch of a changed kind did not end")
	}
	o.want(t, 2, 1) // the request has not ended
	stillOpen, fourth := acquire("2")
	third()
	o.want(t, 3, 2)
	if stillOpen() {
		t.Error("the new kind has ended with the old one")
	}
	fourth()

	o.fail = errors.New("away")
	kinds.retire(func(*openKind) bool { return true })
	if _, _, _, err := kinds.acquire(r, Names{}, "2", clock, o.build); !errors.Is(err, o.fail) {
		t.Errorf("open: %v", err)
	}
	o.fail = nil
	_, fifth := acquire("2")
	fifth()
	o.want(t, 4, 3)
}

// Any number of requests may arrive concurrently, at any moment of a change.
func TestKindsAreOpenedConcurrently(t *testing.T) {
	var o opener
	clock := testclock.NewFakeClock(time.Now())
	kinds := openKinds{kinds: map[schema.GroupVersionResource]*openKind{}}
	r := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	var all sync.WaitGroup
	for i := range 64 {
		all.Go(func() {
			revision := "1"
			if i%8 == 0 {
				revision = "2"
			}
			kind, _, release, err := kinds.acquire(r, Names{}, revision, clock, o.build)
			if err != nil || kind == nil {
				t.Errorf("got %v, %v", kind, err)
				return
			}
			if i%5 == 0 {
				kinds.retire(func(*openKind) bool { return true })
			}
			release()
		})
	}
	all.Wait()
	kinds.retire(func(*openKind) bool { return true })
	o.want(t, o.opened, o.opened)
}

// Await returns when all kinds are known, and no earlier.
func TestAwait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Server{loaded: make(chan struct{})}
		var known atomic.Bool
		go func() { known.Store(s.Await(t.Context()) == nil) }()
		synctest.Wait()
		if known.Load() {
			t.Error("it returns too early")
		}
		ended, end := context.WithCancel(t.Context())
		end()
		if err := s.Await(ended); !errors.Is(err, context.Canceled) {
			t.Errorf("after the context's end: %v", err)
		}
		close(s.loaded)
		synctest.Wait()
		if !known.Load() {
			t.Error("it does not return")
		}
	})
}

func described() *spec.Schema {
	text := `{"type":"object","properties":{
		"spec":{"type":"object","properties":{
			"name":{"type":"string","description":"What it is called."},
			"free":{"type":"object","x-kubernetes-preserve-unknown-fields":true,"properties":{"a":{"type":"string"}}},
			"any":{"type":"object"},
			"map":{"type":"object","additionalProperties":{"type":"object","properties":{"a":{"type":"string"}}}},
			"list":{"type":"array","items":{"type":"object","properties":{"a":{"type":"string"}}}}}},
		"status":{"type":"object","properties":{"phase":{"type":"string"}}}}}`
	s := &spec.Schema{}
	if err := json.Unmarshal([]byte(text), s); err != nil {
		panic(err) // the text above is invalid
	}
	return s
}

// Fields that the schema does not list are removed and reported; where it allows any
// fields, they stay.
func TestUnknownFieldsOfKinds(t *testing.T) {
	const given = `{"apiVersion":"a","kind":"k","metadata":{"x":1},"extra":1,
		"spec":{"name":"n","nam":"n","free":{"b":1},"any":{"b":{"c":1}},"map":{"k":{"a":"","b":1}},"list":[{"a":""},{"b":1},"${x}"]},
		"status":{"phase":"p","face":"p"}}`
	var content map[string]any
	if err := json.Unmarshal([]byte(given), &content); err != nil {
		t.Fatal(err)
	}
	removed := kindFields{described()}.prune(content)
	if got, want := strings.Join(removed, " "), "extra spec.list[1].b spec.map.k.b spec.nam status.face"; got != want {
		t.Errorf("removed %s, want %s", got, want)
	}
	left, _ := json.Marshal(content)
	const want = `{"apiVersion":"a","kind":"k","metadata":{"x":1},"spec":{"any":{"b":{"c":1}},"free":{"b":1},"list":[{"a":""},{},"${x}"],"map":{"k":{"a":""}},"name":"n"},"status":{"phase":"p"}}`
	if string(left) != want {
		t.Errorf("got %s, want %s", left, want)
	}
}

// documents is a source that counts how many schemas are read.
type documents struct {
	Source
	read int
}

func (d *documents) Schema(schema.GroupVersionKind) (*spec.Schema, error) {
	d.read++
	return described(), nil
}

// A document is built on the first request, in whatever encoding; its hash is known
// before.
func TestOpenAPIOfKinds(t *testing.T) {
	source := &documents{}
	clock := testclock.NewFakeClock(time.Now())
	s := &Server{source: source, version: "v1.2.3", clock: clock, notFound: http.NotFoundHandler()}
	s.openAPI.built = map[schema.GroupVersion]*kindDocument{}
	group := Group{Name: "example.com", Versions: []Version{{Name: "v1", Revision: "1", Kinds: []Names{
		{Kind: "Widget", Plural: "widgets", Singular: "widget", Status: true}, {Kind: "Region", Plural: "regions", Singular: "region", ClusterScoped: true},
	}}}}
	nobody := func(string) string { return "" }
	s.table.Store(newTable([]Group{group}, nobody))
	get := func(url string, header ...string) *http.Response {
		r := httptest.NewRequest(http.MethodGet, url, nil)
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		return w.Result()
	}
	body := func(answer *http.Response) []byte {
		t.Helper()
		data, err := io.ReadAll(answer.Body)
		if err != nil || answer.StatusCode != http.StatusOK {
			t.Fatalf("%s, %v, %s", answer.Status, err, data)
		}
		return data
	}
	var list handler3.OpenAPIV3Discovery
	if err := json.Unmarshal(body(get(openAPIPath)), &list); err != nil || source.read != 0 {
		t.Fatalf("%v; the list read %d schemas", err, source.read)
	}
	url := list.Paths["apis/example.com/v1"].ServerRelativeURL
	answer := get(url)
	plain := body(answer)
	var document spec3.OpenAPI
	if err := json.Unmarshal(plain, &document); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{
		"/apis/example.com/v1/namespaces/{namespace}/widgets/{name}", "/apis/example.com/v1/namespaces/{namespace}/widgets/{name}/status",
		"/apis/example.com/v1/widgets", "/apis/example.com/v1/regions/{name}",
	} {
		if document.Paths.Paths[path] == nil {
			t.Errorf("without path %s", path)
		}
	}
	if got := document.Components.Schemas["com.example.v1.Widget"].Properties["spec"].Properties["name"].Description; got != "What it is called." {
		t.Errorf("description of the kind: %q", got)
	}
	for name, s := range document.Components.Schemas {
		wantReferences(t, name, s, document.Components.Schemas)
	}

	if zipped := get(url, "Accept-Encoding", "gzip"); zipped.Header.Get("Content-Encoding") != "gzip" {
		t.Errorf("compressed in %q", zipped.Header.Get("Content-Encoding"))
	} else if r, err := gzip.NewReader(bytes.NewReader(body(zipped))); err != nil {
		t.Error(err)
	} else if again, err := io.ReadAll(r); err != nil || !bytes.Equal(again, plain) {
		t.Errorf("the compressed document differs: %v", err)
	}
	// The first field is the OpenAPI version.
	if message := body(get(url, "Accept", "application/com.github.proto-openapi.spec.v3.v1.0+protobuf")); !bytes.HasPrefix(message, []byte("\n\x053.0.0")) {
		t.Errorf("as protobuf: %.20q", message)
	}
	if code := get(url, "Accept", "text/html").StatusCode; code != http.StatusNotAcceptable {
		t.Errorf("as HTML: %d", code)
	}
	if code := get(url, "If-None-Match", answer.Header.Get("Etag")).StatusCode; code != http.StatusNotModified {
		t.Errorf("with the ETag: %d", code)
	}
	if source.read != 2 {
		t.Errorf("%d schemas were read for two kinds", source.read)
	}
	s.openAPI.forget(clock.Now().Add(time.Second))
	get(url)
	if source.read != 4 {
		t.Errorf("%d schemas were read, want them read again", source.read)
	}
	group.Versions[0].Revision = "2"
	s.table.Store(newTable([]Group{group}, nobody))
	if moved := get(url); moved.StatusCode != http.StatusMovedPermanently || moved.Header.Get("Location") == url {
		t.Errorf("with another revision's hash: %s to %s", moved.Status, moved.Header.Get("Location"))
	}
}

// wantReferences checks that each reference has a target.
func wantReferences(t *testing.T, name string, s *spec.Schema, all map[string]*spec.Schema) {
	t.Helper()
	if ref := s.Ref.String(); ref != "" && all[strings.TrimPrefix(ref, modelRef)] == nil {
		t.Errorf("%s refers to missing %s", name, ref)
	}
	for i := range s.AllOf {
		wantReferences(t, name, &s.AllOf[i], all)
	}
	for p := range s.Properties {
		property := s.Properties[p]
		wantReferences(t, name+"."+p, &property, all)
	}
	if s.Items != nil && s.Items.Schema != nil {
		wantReferences(t, name+"[]", s.Items.Schema, all)
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		wantReferences(t, name+"{}", s.AdditionalProperties.Schema, all)
	}
}
