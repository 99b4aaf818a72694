package plans

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/reference"
)

// fakeAPIServer is an in-memory API server of JSON objects: resourceVersions, generations, the status
// subresource, conflicts, watches and cascading deletion by owner. It knows no kinds.
type fakeAPIServer struct {
	mu      sync.Mutex
	version int
	objects map[string]fields // by RESOURCE.GROUP/NAMESPACE/NAME
	log     []logged
	more    chan struct{}
}

type logged struct {
	version int
	key     string
	kind    string
	object  []byte
}

func newServer(t *testing.T) (*fakeAPIServer, *rest.Config) {
	s := &fakeAPIServer{version: 1, objects: map[string]fields{}, more: make(chan struct{})}
	h := httptest.NewServer(s)
	t.Cleanup(func() { h.CloseClientConnections(); h.Close() })
	return s, &rest.Config{Host: h.URL, QPS: -1, Burst: -1, ContentConfig: rest.ContentConfig{ContentType: "application/json", AcceptContentTypes: "application/json"}}
}

// target identifies the object of a request.
type target struct{ group, version, resource, namespace, name, sub string }

func (a target) key() string { return a.resource + "." + a.group + "/" + a.namespace + "/" + a.name }

func targetOf(path string) target {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	var a target
	if parts[0] == "api" {
		a.version, parts = parts[1], parts[2:]
	} else {
		a.group, a.version, parts = parts[1], parts[2], parts[3:]
	}
	if parts[0] == "namespaces" && len(parts) > 2 {
		a.namespace, parts = parts[1], parts[2:]
	}
	for i, to := range []*string{&a.resource, &a.name, &a.sub} {
		if i < len(parts) {
			*to = parts[i]
		}
	}
	return a
}

func refuse(w http.ResponseWriter, code int, reason, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	json.NewEncoder(w).Encode(fields{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": message, "code": code})
}

func metaOf(o fields) fields {
	m, _ := o["metadata"].(fields)
	if m == nil {
		m = fields{}
		o["metadata"] = m
	}
	return m
}

func text(v any) string { s, _ := v.(string); return s }

func copied(o fields) fields {
	out := fields{}
	data, _ := json.Marshal(o)
	json.Unmarshal(data, &out)
	return out
}

func (s *fakeAPIServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a := targetOf(r.URL.Path)
	body, _ := io.ReadAll(r.Body)
	if r.URL.Query().Get("watch") != "" {
		if r.URL.Query().Get("sendInitialEvents") != "" {
			refuse(w, http.StatusUnprocessableEntity, "Invalid", "no watch lists here")
			return
		}
		s.watch(w, r, a)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var given fields
	if len(body) > 0 {
		if err := json.Unmarshal(body, &given); err != nil {
			refuse(w, http.StatusBadRequest, "BadRequest", err.Error())
			return
		}
	}
	if r.Method == http.MethodGet && a.name == "" {
		s.list(w, a)
		return
	}
	if r.Method == http.MethodPost {
		s.post(w, a, given)
		return
	}
	live := s.objects[a.key()]
	if live == nil {
		refuse(w, http.StatusNotFound, "NotFound", a.key()+" not found")
		return
	}
	switch r.Method {
	case http.MethodGet:
		answer(w, live)
	case http.MethodDelete:
		wanted, _ := given["preconditions"].(fields)
		for _, name := range []string{"uid", "resourceVersion"} {
			if is := wanted[name]; is != nil && is != metaOf(live)[name] {
				refuse(w, http.StatusConflict, "Conflict", "precondition "+name)
				return
			}
		}
		s.remove(a.key())
		answer(w, live)
	case http.MethodPut:
		s.replace(w, a, live, given)
	case http.MethodPatch:
		next := copied(live)
		merge(next, given)
		s.replace(w, a, live, next)
	}
}

func merge(into, patch fields) {
	for k, v := range patch {
		sub, is := v.(fields)
		had, also := into[k].(fields)
		switch {
		case v == nil:
			delete(into, k)
		case is && also:
			merge(had, sub)
		default:
			into[k] = v
		}
	}
}

func answer(w http.ResponseWriter, o any) {
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(o)
}

func (s *fakeAPIServer) list(w http.ResponseWriter, a target) {
	items := []fields{}
	for key, o := range s.objects {
		if strings.HasPrefix(key, a.resource+"."+a.group+"/") && (a.namespace == "" || text(metaOf(o)["namespace"]) == a.namespace) {
			items = append(items, o)
		}
	}
	answer(w, fields{"kind": "List", "apiVersion": "v1", "metadata": fields{"resourceVersion": strconv.Itoa(s.version)}, "items": items})
}

func (s *fakeAPIServer) post(w http.ResponseWriter, a target, o fields) {
	m := metaOf(o)
	if text(m["name"]) == "" {
		m["name"] = fmt.Sprintf("%s%d", text(m["generateName"]), s.version)
	}
	a.name = text(m["name"])
	if a.namespace != "" {
		m["namespace"] = a.namespace
	}
	if s.objects[a.key()] != nil {
		refuse(w, http.StatusConflict, "AlreadyExists", a.key()+" already exists")
		return
	}
	m["uid"] = fmt.Sprintf("uid-%d", s.version)
	m["generation"] = 1
	if text(m["creationTimestamp"]) == "" {
		m["creationTimestamp"] = time.Now().UTC().Format(time.RFC3339)
	}
	s.store(a.key(), "ADDED", o)
	answer(w, o)
}

func (s *fakeAPIServer) replace(w http.ResponseWriter, a target, live, next fields) {
	lm, nm := metaOf(live), metaOf(next)
	if v := text(nm["resourceVersion"]); v != "" && v != lm["resourceVersion"] {
		refuse(w, http.StatusConflict, "Conflict", "it has been modified")
		return
	}
	if uid := text(nm["uid"]); uid != "" && uid != lm["uid"] {
		refuse(w, http.StatusConflict, "Conflict", "another uid")
		return
	}
	out := copied(next)
	if a.sub == "status" {
		out = copied(live)
		out["status"] = next["status"]
	} else if live["status"] != nil {
		out["status"] = live["status"]
	}
	m := metaOf(out)
	m["uid"], m["generation"], m["creationTimestamp"] = lm["uid"], lm["generation"], lm["creationTimestamp"]
	was, _ := json.Marshal(live["spec"])
	is, _ := json.Marshal(out["spec"])
	if string(was) != string(is) {
		n, _ := strconv.Atoi(fmt.Sprint(lm["generation"]))
		m["generation"] = n + 1
	}
	s.store(a.key(), "MODIFIED", out)
	answer(w, out)
}

func (s *fakeAPIServer) store(key, kind string, o fields) {
	s.version++
	metaOf(o)["resourceVersion"] = strconv.Itoa(s.version)
	o = copied(o)
	s.objects[key] = o
	s.note(key, kind, o)
}

func (s *fakeAPIServer) note(key, kind string, o fields) {
	data, _ := json.Marshal(o)
	s.log = append(s.log, logged{s.version, key, kind, data})
	close(s.more)
	s.more = make(chan struct{})
}

func (s *fakeAPIServer) remove(key string) {
	o := s.objects[key]
	delete(s.objects, key)
	s.version++
	gone := copied(o)
	metaOf(gone)["resourceVersion"] = strconv.Itoa(s.version)
	s.note(key, "DELETED", gone)
	for other, candidate := range s.objects {
		owners, _ := metaOf(candidate)["ownerReferences"].([]any)
		for _, owner := range owners {
			if ref, _ := owner.(fields); ref["uid"] == metaOf(o)["uid"] {
				s.remove(other)
				break
			}
		}
	}
}

func (s *fakeAPIServer) watch(w http.ResponseWriter, r *http.Request, a target) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	after, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	flush := w.(http.Flusher)
	flush.Flush()
	for at := 0; ; {
		s.mu.Lock()
		log, more := s.log[at:], s.more
		at += len(log)
		s.mu.Unlock()
		for _, e := range log {
			if e.version > after && strings.HasPrefix(e.key, a.resource+"."+a.group+"/"+a.namespace) {
				fmt.Fprintf(w, `{"type":%q,"object":%s}`+"\n", e.kind, e.object)
			}
		}
		flush.Flush()
		select {
		case <-more:
		case <-r.Context().Done():
			return
		}
	}
}

// count returns the number of objects of a resource.
func (s *fakeAPIServer) count(resource string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for key := range s.objects {
		if strings.HasPrefix(key, resource+".") {
			n++
		}
	}
	return n
}

// testEnv is a reconciler with a fakeAPIServer.
type testEnv struct {
	t          *testing.T
	server     *fakeAPIServer
	rest       *rest.Config
	api        resources
	kube       kubernetes.Interface
	dyn        dynamic.Interface
	inventory  *fakeInventory
	kinds      *fakeTypes
	engine     *fakeEngine
	reconciler *reconciler
	stop       func()
	// workloads makes plans include workloads.
	workloads  bool
	onLargeRun func(bool) func()
}

// syncedFeed is a feed that is always current.
type syncedFeed struct{ drifted map[reference.Ref]bool }

func (f syncedFeed) WaitCurrent(context.Context) error { return nil }
func (f syncedFeed) Drifted(ref reference.Ref) bool    { return f.drifted[ref] }

func newTestEnv(t *testing.T) *testEnv {
	t.Helper()
	s := &testEnv{t: t, inventory: newFakeInventory(), kinds: newFakeTypes(), engine: &fakeEngine{}}
	s.server, s.rest = newServer(t)
	var err error
	if s.dyn, err = dynamic.NewForConfig(s.rest); err != nil {
		t.Fatal(err)
	}
	if s.kube, err = kubernetes.NewForConfig(s.rest); err != nil {
		t.Fatal(err)
	}
	s.api = newResources(s.dyn)
	s.kinds.serve(demo, "disks", "Disk", "demo_disk", false)
	s.put("/api/v1/namespaces", fields{"apiVersion": "v1", "kind": "Namespace", "metadata": fields{"name": "shop"}})
	return s
}

// begin runs a reconciler until stop or the end of the test.
func (s *testEnv) begin() {
	s.t.Helper()
	language, err := reference.New()
	if err != nil {
		s.t.Fatal(err)
	}
	s.reconciler = newReconciler(reconcilerConfig{
		api: s.api, dynamic: s.dyn, kube: s.kube, engine: s.engine, inventory: s.inventory, types: s.kinds, language: language,
		objects: &objectStore{dynamic: s.dyn, kube: s.kube, clock: clock.RealClock{}},
		clock:   clock.RealClock{}, log: slog.New(slog.DiscardHandler), journal: "me", kinds: s.kinds, onLargeRun: s.onLargeRun,
		impersonate: func(*v1alpha1.Person) (dynamic.Interface, error) { return s.dyn, nil },
	})
	s.reconciler.feed = syncedFeed{}
	if s.workloads {
		s.reconciler.workloads = s.workloadStore()
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	r := s.reconciler
	go func() { defer close(done); r.run(ctx) }()
	var once sync.Once
	s.stop = func() { once.Do(func() { cancel(); <-done }) }
	s.t.Cleanup(s.stop)
}

// put creates an object as a user would.
func (s *testEnv) put(path string, o fields) {
	s.t.Helper()
	data, _ := json.Marshal(o)
	answer, err := http.Post(s.rest.Host+path, "application/json", strings.NewReader(string(data)))
	if err != nil {
		s.t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode >= 300 {
		said, _ := io.ReadAll(answer.Body)
		s.t.Fatalf("%s: %s", path, said)
	}
}

const ours = "/apis/infra.atoll.dev/v1alpha1/namespaces/shop/"

func (s *testEnv) make(resource, kind, name string, spec fields) {
	s.t.Helper()
	s.put(ours+resource, fields{"apiVersion": "infra.atoll.dev/v1alpha1", "kind": kind, "metadata": fields{"name": name}, "spec": spec})
}

// touch patches an object as a user would.
func (s *testEnv) touch(resource, name string, patch string) {
	s.t.Helper()
	request, _ := http.NewRequest(http.MethodPatch, s.rest.Host+ours+resource+"/"+name, strings.NewReader(patch))
	request.Header.Set("Content-Type", "application/merge-patch+json")
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		s.t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode >= 300 {
		s.t.Fatalf("%s %s: %s", resource, name, answer.Status)
	}
}

func (s *testEnv) remove(resource, name string) {
	s.t.Helper()
	request, _ := http.NewRequest(http.MethodDelete, s.rest.Host+ours+resource+"/"+name, nil)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		s.t.Fatal(err)
	}
	answer.Body.Close()
}

// events returns the reasons of the recorded events.
func (s *testEnv) events() []string {
	s.server.mu.Lock()
	defer s.server.mu.Unlock()
	var out []string
	for key, o := range s.server.objects {
		if strings.HasPrefix(key, "events.") {
			out = append(out, text(o["reason"]))
		}
	}
	slices.Sort(out)
	return out
}
