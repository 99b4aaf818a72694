// Package fakeapi is a Kubernetes API server in memory, for tests of controllers. Ordinary clients
// (typed, dynamic, metadata, discovery) reach it over HTTP.
//
// It behaves like a kube-apiserver where controllers depend on it: one order of resource versions,
// watches that resume without a gap, optimistic locking, generations, status as a subresource,
// finalizers, preconditions, background garbage collection by owner, and server-side apply by
// upstream's own library with managed fields. It has no authentication, admission or validation.
//
// client-go's fake clients stop short of that: they lose events between a list and the watch that
// follows it, know no generations and no finalizers, and each test invented the rest.
package fakeapi

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
)

// Server is an API server that runs until the test ends.
type Server struct {
	t    testing.TB
	http *httptest.Server

	mu          sync.Mutex
	kinds       map[schema.GroupVersionResource]Kind
	types       map[schema.GroupVersionKind]typesFunc
	managers    map[managerKey]*managedfields.FieldManager
	version     int64
	oldest      int64 // watches from before it are answered 410 Gone
	uids        int
	collections map[schema.GroupResource]*collection
	writes      []string
	hooks       []Hook
	// subresources are by RESOURCE.GROUP/SUBRESOURCE.
	subresources map[string]Subresource
	atOnce       []func(*unstructured.Unstructured)
}

// key is where an object is stored. Versions of a kind share their objects.
type key struct {
	resource schema.GroupResource
	name     types.NamespacedName
}

// event is one change of one object, for watches.
type event struct {
	version int64
	kind    string // ADDED, MODIFIED or DELETED
	object  *object
	before  *object // nil if ADDED
}

// Request is what a Hook is asked about.
type Request struct {
	Verb        string // get, list, watch, create, update, patch, apply or delete
	Resource    schema.GroupVersionResource
	Subresource string
	Namespace   string
	Name        string
	DryRun      bool
	Manager     string // the field manager, if the client names one
	User        string // the user whom the client impersonates, if any
	// Object is what the request carries: the object, or the patch as JSON allows.
	Object map[string]any
}

// Hook sees each request before it is served. If it returns a status, that is the answer, and
// nothing is done. It may block, and may change objects first, as another user would who comes
// between a client's reads and writes.
type Hook func(Request) *metav1.Status

// New starts a server that serves these kinds.
func New(t testing.TB, kinds ...Kind) *Server {
	t.Helper()
	s := &Server{
		t: t, version: 1, kinds: map[schema.GroupVersionResource]Kind{}, types: map[schema.GroupVersionKind]typesFunc{},
		managers: map[managerKey]*managedfields.FieldManager{}, collections: map[schema.GroupResource]*collection{},
		subresources: map[string]Subresource{},
	}
	s.Serve(kinds...)
	s.http = httptest.NewServer(s)
	t.Cleanup(func() {
		s.http.CloseClientConnections() // watches would keep Close waiting
		s.http.Close()
	})
	return s
}

// Serve adds kinds, as a CustomResourceDefinition would.
func (s *Server) Serve(kinds ...Kind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range kinds {
		s.kinds[k.GVR()] = k
		if k.types != nil {
			s.types[k.GVK()] = k.types
		}
	}
	clear(s.managers)
}

// Config is how clients reach the server, without a rate limit.
func (s *Server) Config() *rest.Config {
	return &rest.Config{Host: s.http.URL, QPS: -1, ContentConfig: rest.ContentConfig{ContentType: "application/json", AcceptContentTypes: "application/json"}}
}

// Dynamic is a client of the server.
func (s *Server) Dynamic() dynamic.Interface {
	s.t.Helper()
	client, err := dynamic.NewForConfig(s.Config())
	if err != nil {
		s.t.Fatal(err)
	}
	return client
}

// Metadata is a client of the server that reads only the metadata of objects.
func (s *Server) Metadata() metadata.Interface {
	s.t.Helper()
	client, err := metadata.NewForConfig(s.Config())
	if err != nil {
		s.t.Fatal(err)
	}
	return client
}

// OnRequest adds a hook. Hooks are asked in the order in which they were added.
func (s *Server) OnRequest(h Hook) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hooks = append(s.hooks, h)
}

// OnStore adds a function that edits each object before it is stored, such as one that sets what a
// controller of Kubernetes would put into the status. It must not call methods of the Server.
func (s *Server) OnStore(edit func(*unstructured.Unstructured)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.atOnce = append(s.atOnce, edit)
}

// Writes lists the writes that clients asked for and that were not refused, in order:
// "VERB RESOURCE[/SUBRESOURCE] [NAMESPACE/]NAME", followed by " (dry run)" for those.
func (s *Server) Writes() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.writes)
}

// Watching reports whether a client watches a resource.
func (s *Server) Watching(resource schema.GroupVersionResource) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.collection(resource.GroupResource()).watching > 0
}

// Hold keeps the events of a resource from all watches until release is called, like a server that is busy. Lists and other
// requests are answered as always.
func (s *Server) Hold(resource schema.GroupVersionResource) (release func()) {
	set := func(held bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		c := s.collection(resource.GroupResource())
		c.held = held
		c.wake()
	}
	set(true)
	return func() { set(false) }
}

// Compact forgets the history of watches, so that a watch which resumes from an older resource
// version has to list again.
func (s *Server) Compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.oldest = s.version
	for _, c := range s.collections {
		if n := len(c.events); n > 0 {
			c.events, c.lost = nil, c.events[n-1].version
		}
	}
}

// Put stores an object as another user would, whether it exists or not: metadata that a server
// sets is set, a new spec raises the generation, and the status is stored along. The object is
// unstructured, typed with its TypeMeta, or a map: whatever encodes to its JSON.
func (s *Server) Put(object any) *unstructured.Unstructured {
	s.t.Helper()
	raw, err := json.Marshal(object)
	next := &unstructured.Unstructured{}
	if err == nil {
		err = unmarshal(raw, &next.Object)
	}
	if err != nil {
		s.t.Fatalf("encode %v: %v", object, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.keyFor(next)
	if live := s.stored(k); live == nil {
		s.identify(next)
	} else {
		s.inherit(live.Unstructured, next)
	}
	return s.store(k, next).DeepCopy()
}

// Change edits a stored object as another user would, status included. The test fails if there is
// none.
func (s *Server) Change(resource schema.GroupVersionResource, namespace, name string, edit func(*unstructured.Unstructured)) *unstructured.Unstructured {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	k := keyOf(resource, namespace, name)
	live := s.stored(k)
	if live == nil {
		s.t.Fatalf("%s %s does not exist", resource.Resource, join(namespace, name))
	}
	next := live.DeepCopy()
	edit(next)
	s.inherit(live.Unstructured, next)
	return s.store(k, next).DeepCopy()
}

// Merge is Change by a JSON merge patch.
func (s *Server) Merge(resource schema.GroupVersionResource, namespace, name, patch string) *unstructured.Unstructured {
	s.t.Helper()
	return s.Change(resource, namespace, name, func(u *unstructured.Unstructured) {
		raw, err := json.Marshal(u.Object)
		if err == nil {
			raw, err = jsonpatch.MergePatch(raw, []byte(patch))
		}
		u.Object = nil // what the patch removes must not stay
		if err == nil {
			err = unmarshal(raw, &u.Object)
		}
		if err != nil {
			s.t.Errorf("merge %s: %v", patch, err)
		}
	})
}

// Get returns a copy of a stored object, or nil.
func (s *Server) Get(resource schema.GroupVersionResource, namespace, name string) *unstructured.Unstructured {
	s.mu.Lock()
	defer s.mu.Unlock()
	if live := s.stored(keyOf(resource, namespace, name)); live != nil {
		return live.DeepCopy()
	}
	return nil
}

// Read decodes a stored object into a typed one, and reports whether it exists.
func (s *Server) Read(resource schema.GroupVersionResource, namespace, name string, into any) bool {
	s.t.Helper()
	u := s.Get(resource, namespace, name)
	if u == nil {
		return false
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, into); err != nil {
		s.t.Fatalf("decode %s %s: %v", resource.Resource, join(namespace, name), err)
	}
	return true
}

// List returns copies of all objects of a resource, by namespace and name.
func (s *Server) List(resource schema.GroupVersionResource) []*unstructured.Unstructured {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*unstructured.Unstructured
	for _, u := range s.sorted(resource.GroupResource(), "") {
		out = append(out, u.DeepCopy())
	}
	return out
}

// Delete deletes an object as another user would: at once, or, if it has finalizers, when the last
// of them is removed. It reports whether the object existed.
func (s *Server) Delete(resource schema.GroupVersionResource, namespace, name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := keyOf(resource, namespace, name)
	if s.stored(k) == nil {
		return false
	}
	s.finalize(k)
	return true
}

func keyOf(resource schema.GroupVersionResource, namespace, name string) key {
	return key{resource.GroupResource(), types.NamespacedName{Namespace: namespace, Name: name}}
}

// keyFor finds the resource of an object by its kind.
func (s *Server) keyFor(u *unstructured.Unstructured) key {
	s.t.Helper()
	for _, k := range s.kinds {
		if k.GVK() == u.GroupVersionKind() {
			return keyOf(k.GVR(), u.GetNamespace(), u.GetName())
		}
	}
	s.t.Fatalf("the fake API server does not serve %s: name its Kind in New", u.GroupVersionKind())
	return key{}
}

func join(namespace, name string) string { return strings.TrimPrefix(namespace+"/"+name, "/") }

// Eventually waits until check returns nil, and fails the test with its last error if that takes
// longer than a minute, which a busy machine does not.
func Eventually(t testing.TB, what string, check func() error) {
	t.Helper()
	EventuallyWithin(t, time.Minute, what, check)
}

// EventuallyWithin is Eventually with another limit. It checks less and less often, and the less often
// the longer a check takes, to leave the processor to the controllers.
func EventuallyWithin(t testing.TB, limit time.Duration, what string, check func() error) {
	t.Helper()
	var err error
	pause := time.Millisecond
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); time.Sleep(pause) {
		began := time.Now()
		if err = check(); err == nil {
			return
		}
		pause = min(pause*5/4, max(20*time.Millisecond, 4*time.Since(began)))
	}
	t.Fatalf("%s: not after %v: %v", what, limit, err)
}

// Until is Eventually for a condition without an error.
func Until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	Eventually(t, what, func() error {
		if !holds() {
			return fmt.Errorf("it does not hold")
		}
		return nil
	})
}
