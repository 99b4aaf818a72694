package reach

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// client is what a client knows from the events of its watch.
type client struct {
	t       *testing.T
	events  watch.Interface
	known   map[string]string // labels "x" of pods, by name
	version string
}

func (f *fixture) watch(namespace, version string) *client {
	f.t.Helper()
	w, err := f.reach.Watch(f.t.Context(), Pods, namespace, f.here, metav1.ListOptions{ResourceVersion: version})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(w.Stop)
	return &client{t: f.t, events: w, known: map[string]string{}, version: version}
}

// next applies one event.
func (c *client) next() (kind watch.EventType, name string) {
	c.t.Helper()
	select {
	case e, open := <-c.events.ResultChan():
		if !open {
			c.t.Fatal("the watch has ended")
		}
		pod, ok := e.Object.(*corev1.Pod)
		if !ok {
			c.t.Fatalf("%s: %v", e.Type, e.Object)
		}
		name := pod.Namespace + "/" + pod.Name
		switch e.Type {
		case watch.Deleted:
			delete(c.known, name)
		case watch.Added, watch.Modified:
			c.known[name] = pod.Labels["x"]
		}
		if c.version != "" && len(pod.ResourceVersion) < len(c.version) || len(pod.ResourceVersion) == len(c.version) && pod.ResourceVersion <= c.version {
			c.t.Errorf("version %s after %s", pod.ResourceVersion, c.version)
		}
		c.version = pod.ResourceVersion
		return e.Type, name
	case <-time.After(20 * time.Second):
		c.t.Fatal("no event came")
	}
	return "", ""
}

func (c *client) expect(kind watch.EventType, name string) {
	c.t.Helper()
	if gotKind, got := c.next(); gotKind != kind || got != name {
		c.t.Errorf("got %s %s, want %s %s", gotKind, got, kind, name)
	}
}

func (f *fixture) label(cluster, namespace, name, value string) {
	f.t.Helper()
	f.members[cluster].Change(resource("", "pods"), namespace, name, func(pod *unstructured.Unstructured) {
		labels := pod.GetLabels()
		labels["x"] = value
		pod.SetLabels(labels)
	})
}

// TestWatchContinues: a watch continues where a list, or another watch, ended: nothing is missed and nothing comes twice.
func TestWatchContinues(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "east", "west")
	f.bind("shop", "web", "east", "west")
	f.pod("east", "shop", "a", "web-1")
	f.pod("west", "shop", "b", "web-1")
	_, version, _ := f.list("shop", metav1.ListOptions{})

	f.pod("east", "shop", "foreign", "")
	f.members["west"].Delete(resource("", "pods"), "shop", "b") // between list and watch
	c := f.watch("shop", version)
	c.expect(watch.Deleted, "shop/b")
	f.label("east", "shop", "a", "1")
	c.expect(watch.Modified, "shop/a")
	before := c.version
	f.pod("west", "shop", "c", "web-1")
	c.expect(watch.Added, "shop/c")
	f.members["east"].Delete(resource("", "pods"), "shop", "foreign")
	f.control.Put(map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"namespace": "shop", "name": "stored"}})
	c.expect(watch.Added, "shop/stored")
	c.events.Stop()

	again := f.watch("shop", before)
	kinds := map[string]watch.EventType{}
	for range 2 {
		kind, name := again.next()
		kinds[name] = kind
	}
	if !maps.Equal(kinds, map[string]watch.EventType{"shop/c": watch.Added, "shop/stored": watch.Added}) {
		t.Errorf("from the version before: %v", kinds)
	}
	// The pod ends although its owners are gone: the client knows it.
	f.members["west"].Delete(resource("apps", "deployments"), "shop", "web")
	again.expect(watch.Deleted, "shop/c")
}

// TestWatchFromElsewhere: versions that this server cannot continue from are answered with 410, and the client lists again.
func TestWatchFromElsewhere(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "east")
	_, version, _ := f.list("shop", metav1.ListOptions{})
	other := New(func() (dynamic.Interface, error) { return f.control.Dynamic(), nil }, f.tunnels, clock.RealClock{})
	for name, from := range map[string]string{"of the store": "12", "of another namespace": "", "of another server": version} {
		at, namespace := f.reach, "shop"
		switch name {
		case "of another namespace":
			from, namespace = version, "other"
		case "of another server":
			at = other
		}
		if _, err := at.Watch(t.Context(), Pods, namespace, f.here, metav1.ListOptions{ResourceVersion: from}); !apierrors.IsResourceExpired(err) {
			t.Errorf("a version %s: %v", name, err)
		}
	}
}

// TestCutOff: pods of a cluster that is cut off stay, and what happened meanwhile is reported when it answers again, also if
// the cluster has forgotten its history. A cluster that left has no pods.
func TestCutOff(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "east", "west")
	f.bind("shop", "web", "east", "west")
	f.pod("east", "shop", "a", "web-1")
	f.pod("west", "shop", "b", "web-1")
	f.pod("west", "shop", "c", "web-1")
	_, version, _ := f.list("shop", metav1.ListOptions{})
	var cut atomic.Bool
	cut.Store(true)
	f.members["west"].OnRequest(func(fakeapi.Request) *metav1.Status {
		if cut.Load() {
			return &metav1.Status{Code: 503, Reason: metav1.StatusReasonServiceUnavailable, Message: "cut off"}
		}
		return nil
	})
	c := f.watch("shop", version)
	f.members["west"].Delete(resource("", "pods"), "shop", "b")
	f.label("west", "shop", "c", "1")
	f.pod("west", "shop", "d", "web-1")
	f.members["west"].Compact()
	f.label("east", "shop", "a", "1")
	c.expect(watch.Modified, "shop/a") // and nothing of west
	cut.Store(false)
	for len(c.known) < 3 || c.known["shop/c"] != "1" {
		if kind, name := c.next(); kind == watch.Deleted && name != "shop/b" {
			t.Errorf("%s is deleted", name)
		}
	}
	f.control.Delete(v1alpha1.ClusterResource, "", "west")
	for gone := map[string]bool{}; len(gone) < 2; {
		if kind, name := c.next(); kind == watch.Deleted && name != "shop/b" {
			gone[name] = true
		}
	}
}

// TestReflector: a reflector of client-go, whose watches end all the time, has the pods of the clusters when they no longer change.
func TestReflector(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "east", "west", "north")
	f.bind("shop", "web", "east", "west", "north")
	store := cache.NewStore(cache.MetaNamespaceKeyFunc)
	reflector := cache.NewReflectorWithOptions(&cache.ListWatch{ListWithContextFunc: f.flakyList, WatchFuncWithContext: f.flakyWatch}, &corev1.Pod{}, store, cache.ReflectorOptions{MinWatchTimeout: time.Minute})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		reflector.RunWithContext(ctx)
	}()
	defer func() { cancel(); <-done }()

	random := rand.New(rand.NewPCG(1, 2))
	clusters := []string{"east", "west", "north"}
	want := map[string]string{}
	for i := range 300 {
		cluster := clusters[random.IntN(3)]
		name := fmt.Sprintf("%s-%d", cluster, random.IntN(10))
		switch _, exists := want["shop/"+name]; {
		case !exists:
			f.pod(cluster, "shop", name, "web-1")
			want["shop/"+name] = ""
		case random.IntN(2) == 0:
			f.members[cluster].Delete(resource("", "pods"), "shop", name)
			delete(want, "shop/"+name)
		default:
			f.label(cluster, "shop", name, fmt.Sprint(i))
			want["shop/"+name] = fmt.Sprint(i)
		}
		if i%50 == 0 {
			f.members[cluster].Compact()
		}
	}
	fakeapi.Eventually(t, "the reflector has what the clusters have", func() error {
		got := map[string]string{}
		for _, obj := range store.List() {
			pod := obj.(*corev1.Pod)
			got[pod.Namespace+"/"+pod.Name] = pod.Labels["x"]
		}
		if !maps.Equal(got, want) {
			return fmt.Errorf("got %v, want %v", sorted(got), sorted(want))
		}
		return nil
	})
}

func sorted(m map[string]string) string {
	var all []string
	for name, value := range m {
		all = append(all, name+"="+value)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// flakyList and flakyWatch do what a client of the API gets, except that watches end after some events.
func (f *fixture) flakyList(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	list, warnings, err := f.reach.List(ctx, Pods, "shop", f.here, o)
	if len(warnings) > 0 {
		err = errors.Join(err, fmt.Errorf("%v", warnings))
	}
	return list, err
}

func (f *fixture) flakyWatch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	w, err := f.reach.Watch(ctx, Pods, "shop", f.here, o)
	if err != nil {
		return nil, err
	}
	left := 1 + rand.IntN(40)
	return watch.Filter(w, func(e watch.Event) (watch.Event, bool) {
		if left--; left == 0 {
			w.Stop()
		}
		return e, true
	}), nil
}
