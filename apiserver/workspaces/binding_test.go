package workspaces

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
)

const (
	definitionsPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	widgetsPath     = "/apis/example.com/v1/namespaces/default/widgets"
)

// bind binds workspaces to the group example.com of another one. The returned function ends the requests that use the exporter.
func (s *stage) bind(exporter string, resources sets.Set[string], consumers ...string) (end func()) {
	from := s.awake[exporter]
	life, end := context.WithCancel(context.Background())
	s.t.Cleanup(end)
	for _, path := range consumers {
		s.bindings[s.awake[path]] = []Binding{{Group: "example.com", Name: "widgets",
			Open: func(ctx context.Context) (context.Context, Exporter, func(), error) {
				if life.Err() != nil {
					return nil, Exporter{}, nil, ErrNotFound
				}
				in, cancel := context.WithCancel(ctx)
				stop := context.AfterFunc(life, cancel)
				return in, Exporter{from, resources}, func() { stop(); cancel() }, nil
			}}}
	}
	return end
}

func widget(name, colour string) string {
	return fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":%q},"spec":{"colour":%q}}`, name, colour)
}

// TestBinding: consumers have the definitions of the exporter and objects of their own. Neither another consumer nor the exporter sees
// them. They are in discovery and OpenAPI. When the exporter's definition is deleted, consumers' objects stay stored.
func TestBinding(t *testing.T) {
	s := newStage(t, "exporter", "a", "b", "c")
	s.want(201, s.as(admin, "POST", "/clusters/exporter"+definitionsPath, definition("colour")))
	end := s.bind("exporter", nil, "a", "b")
	create := func(path, body string) response { return s.as(admin, "POST", "/clusters/"+path+widgetsPath, body) }
	s.eventually("widgets are served", func() bool { return create("exporter", widget("w", "of exporter")).code == 201 })
	s.want(201, create("a", widget("w", "of a")))
	s.want(201, create("b", widget("w", "of b")))
	s.want(201, create("a", widget("only", "of a")))
	s.want(422, create("a", widget("bad", "x")[:len(widget("bad", "x"))-len(`,"spec":{"colour":"x"}}`)]+`,"spec":{}}`))
	s.want(404, s.as(admin, "POST", "/clusters/a/apis/example.com/v1/namespaces/missing/widgets", widget("w", "x")))
	for path, want := range map[string]int{"exporter": 1, "a": 2, "b": 1} {
		list := s.want(200, s.as(admin, "GET", "/clusters/"+path+"/apis/example.com/v1/widgets", ""))
		if strings.Count(list.body, `"colour":"of `+path+`"`) != want || strings.Count(list.body, `"colour":`) != want {
			t.Errorf("%s has %s", path, list.body)
		}
	}
	s.want(403, s.as(alice, "GET", "/clusters/a"+widgetsPath, ""))
	s.want(404, create("c", widget("w", "x")))
	for path, want := range map[string]bool{"a": true, "c": false} {
		for document, group := range map[string]string{"/apis": "example.com", "/openapi/v3": "example.com", "/openapi/v2": "/apis/example.com/v1/"} {
			s.eventually(fmt.Sprintf("%s of %s has the group: %v", document, path, want), func() bool {
				return strings.Contains(s.want(200, s.as(admin, "GET", "/clusters/"+path+document, "")).body, group) == want
			})
		}
	}
	if body := s.want(200, s.as(admin, "GET", "/clusters/a/openapi/v3/apis/example.com/v1", "")).body; !strings.Contains(body, "colour") {
		t.Errorf("%.300s", body)
	}
	for _, path := range []string{"a", "b", "c"} {
		if s.awake[path].running() != nil {
			t.Errorf("%s has a server of custom resources of its own", path)
		}
	}
	if list := s.want(200, s.as(admin, "GET", "/clusters/a"+definitionsPath, "")); !strings.Contains(list.body, `"items":[]`) {
		t.Error(list.body)
	}

	s.want(200, s.as(admin, "DELETE", "/clusters/exporter"+definitionsPath+"/widgets.example.com", ""))
	s.eventually("the definition is gone", func() bool {
		return s.as(admin, "GET", "/clusters/exporter"+definitionsPath+"/widgets.example.com", "").code == 404
	})
	s.eventually("the consumer gets 404", func() bool { return s.as(admin, "GET", "/clusters/a"+widgetsPath+"/w", "").code == 404 })
	s.want(201, s.as(admin, "POST", "/clusters/exporter"+definitionsPath, definition("colour")))
	s.eventually("the consumer has its objects again", func() bool {
		return strings.Contains(s.as(admin, "GET", "/clusters/a"+widgetsPath+"/w", "").body, "of a")
	})
	s.want(404, s.as(admin, "GET", "/clusters/exporter"+widgetsPath+"/w", "")) // deleted with its definition
	end()
	s.want(404, s.as(admin, "GET", "/clusters/a"+widgetsPath+"/w", ""))
	if body := s.want(200, s.as(admin, "GET", "/clusters/a/apis", "")).body; strings.Contains(body, "example.com") {
		t.Error(body)
	}
}

// TestBindingOfResources: of a group, a consumer has the resources of its binding alone.
func TestBindingOfResources(t *testing.T) {
	s := newStage(t, "exporter", "a")
	s.want(201, s.as(admin, "POST", "/clusters/exporter"+definitionsPath, definition("colour")))
	s.want(201, s.as(admin, "POST", "/clusters/exporter"+definitionsPath, strings.NewReplacer("widget", "gadget", "Widget", "Gadget").Replace(definition("size"))))
	s.bind("exporter", sets.New("widgets"), "a")
	for _, path := range []string{"widgets", "gadgets"} {
		s.eventually(path+" are served", func() bool { return s.as(admin, "GET", "/clusters/exporter/apis/example.com/v1/"+path, "").code == 200 })
	}
	s.want(200, s.as(admin, "GET", "/clusters/a"+widgetsPath, ""))
	s.want(404, s.as(admin, "GET", "/clusters/a/apis/example.com/v1/gadgets", ""))
	s.eventually("discovery has both in the exporter", func() bool {
		return strings.Contains(s.as(admin, "GET", "/clusters/exporter/apis/example.com/v1", "").body, "gadgets")
	})
	for _, path := range []string{"/apis/example.com", "/apis/example.com/v1"} {
		if body := s.want(200, s.as(admin, "GET", "/clusters/a"+path, "")).body; strings.Contains(body, "gadgets") || path == "/apis/example.com/v1" && !strings.Contains(body, "widgets") {
			t.Errorf("%s: %s", path, body)
		}
	}
}

// watching is a watch of Widgets in a workspace, in the background.
type watching struct {
	*httptest.ResponseRecorder
	mu    sync.Mutex
	ended chan struct{}
}

func (w *watching) Write(data []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ResponseRecorder.Write(data)
}

// CloseNotify is required of responses that are flushed.
func (*watching) CloseNotify() <-chan bool { return nil }

func (w *watching) has(text string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Contains(w.Body.String(), text)
}

func (s *stage) watch(url string) *watching {
	w := &watching{ResponseRecorder: httptest.NewRecorder(), ended: make(chan struct{})}
	r := httptest.NewRequest(http.MethodGet, url, nil)
	r = r.WithContext(request.WithUser(s.t.Context(), admin))
	go func() {
		defer close(w.ended)
		s.server.ServeHTTP(w, r)
	}()
	return w
}

// TestBindingWatch: a watch sees the changes of its workspace alone. It ends when the exporter ends, or changes the definition.
func TestBindingWatch(t *testing.T) {
	s := newStage(t, "exporter", "a", "b")
	s.want(201, s.as(admin, "POST", "/clusters/exporter"+definitionsPath, definition("colour")))
	end := s.bind("exporter", nil, "a", "b")
	s.eventually("widgets are served", func() bool {
		return s.as(admin, "POST", "/clusters/b"+widgetsPath, widget("first", "of b")).code == 201
	})
	watch := s.watch("/clusters/a/apis/example.com/v1/widgets?watch=true")
	s.want(201, s.as(admin, "POST", "/clusters/exporter"+widgetsPath, widget("w", "of exporter")))
	s.want(201, s.as(admin, "POST", "/clusters/b"+widgetsPath, widget("w", "of b")))
	s.want(201, s.as(admin, "POST", "/clusters/a"+widgetsPath, widget("w", "of a")))
	s.eventually("the watch has the object", func() bool { return watch.has("of a") })
	if watch.has("of b") || watch.has("of exporter") {
		t.Error(watch.Body.String())
	}
	crd := s.want(200, s.as(admin, "GET", "/clusters/exporter"+definitionsPath+"/widgets.example.com", "")).body
	s.want(200, s.as(admin, "PUT", "/clusters/exporter"+definitionsPath+"/widgets.example.com", strings.Replace(crd, `"properties":{"colour"`, `"properties":{"more":{"type":"string"},"colour"`, 1)))
	<-watch.ended
	// The new field is neither pruned when it is written nor when it is read.
	s.eventually("objects have the new field", func() bool {
		s.as(admin, "POST", "/clusters/a"+widgetsPath, strings.Replace(widget("more", "of a"), `"colour"`, `"more":"yes","colour"`, 1))
		found := strings.Contains(s.want(200, s.as(admin, "GET", "/clusters/a"+widgetsPath+"/more", "")).body, `"more":"yes"`)
		if !found {
			s.want(200, s.as(admin, "DELETE", "/clusters/a"+widgetsPath+"/more", ""))
		}
		return found
	})
	watch = s.watch("/clusters/a/apis/example.com/v1/widgets?watch=true")
	s.eventually("the watch has begun", func() bool { return watch.has("of a") })
	end()
	<-watch.ended
}

// TestObjectsOf: without a request, and for any request that is not one of a consumer, the objects are those of the definer or none.
func TestObjectsOf(t *testing.T) {
	definer, consumer, other := NewWorkspace("definer", nil), NewWorkspace("consumer", nil), NewWorkspace("other", nil)
	of := objectsOf(definer)
	bound := func(in, exporter *Workspace) context.Context {
		return context.WithValue(withWorkspace(context.Background(), in, ""), exporterKey{}, exporter)
	}
	for name, c := range map[string]struct {
		ctx  context.Context
		want *Workspace
	}{
		"no request":                     {context.Background(), definer},
		"the definer's":                  {withWorkspace(context.Background(), definer, ""), definer},
		"a consumer's":                   {bound(consumer, definer), consumer},
		"one that is not bound":          {withWorkspace(context.Background(), other, ""), nil},
		"one that is bound to another":   {bound(consumer, other), nil},
		"one of a consumer, no exporter": {bound(consumer, nil), nil},
	} {
		if got := of(c.ctx); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
