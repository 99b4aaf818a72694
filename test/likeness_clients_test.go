package test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
)

func noteObject(namespace, name, text string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": notes.GroupVersion().String(), "kind": "Note",
		"metadata": map[string]any{"namespace": namespace, "name": name},
		"spec":     map[string]any{"text": text},
	}}
}

// clearNotes leaves no note in namespace default when the test ends.
func (f *fixture) clearNotes(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		if _, err := f.tryKubectl(context.Background(), "atoll", "", "delete", "notes", "--all", "-n", "default"); err != nil {
			t.Error(err)
		}
	})
}

// longLived is a client for watches, which have no end.
func (f *fixture) longLived(t *testing.T, cluster string) dynamic.Interface {
	t.Helper()
	config := f.rest(t, cluster)
	config.Timeout = 0
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// A thousand clients of one member watch a shared kind, more than fit into one
// connection to Atoll, and all are told of a change.
func TestAThousandWatchersOfAMember(t *testing.T) {
	const watchers = 1000
	f := whole(t)
	f.shareNotes(t)
	f.clearNotes(t)
	client := f.longLived(t, "west").Resource(notes).Namespace("default")
	created, err := client.Create(t.Context(), noteObject("default", "news", "old"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var told, failed atomic.Int32
	var started, ended sync.WaitGroup
	turn := make(chan struct{}, 50) // so many at a time
	began := time.Now()
	for range watchers {
		started.Add(1)
		ended.Go(func() {
			turn <- struct{}{}
			w, err := client.Watch(ctx, metav1.ListOptions{ResourceVersion: created.GetResourceVersion()})
			<-turn
			started.Done()
			if err != nil {
				failed.Add(1)
				return
			}
			defer w.Stop()
			for event := range w.ResultChan() {
				if event.Type == watch.Modified {
					told.Add(1)
					return
				}
			}
		})
	}
	started.Wait()
	if failed.Load() > 0 {
		t.Fatalf("%d watches do not start", failed.Load())
	}
	t.Logf("%d watches started in %s", watchers, time.Since(began).Round(time.Millisecond))
	began = time.Now()
	if _, err := f.dynamicOf(t, "east").Resource(notes).Namespace("default").Patch(t.Context(), "news", types.MergePatchType, []byte(`{"spec":{"text":"new"}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, "all watchers are told", func(context.Context) error {
		if n := told.Load(); n < watchers {
			return fmt.Errorf("%d of %d", n, watchers)
		}
		return nil
	})
	t.Logf("all were told within %s", time.Since(began).Round(time.Millisecond))
	cancel()
	ended.Wait()
}

// A kind that comes to a group which members serve already is known to kubectl
// there at once, and not when their API servers next read discovery.
func TestANewSharedKindIsKnownAtOnce(t *testing.T) {
	f := whole(t)
	f.shareNotes(t)
	f.apply(t, `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: stamps.shared.test.atoll.dev},
spec: {group: shared.test.atoll.dev, scope: Cluster, names: {plural: stamps, singular: stamp, kind: Stamp},
versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]}}`)
	t.Cleanup(func() {
		if _, err := f.tryKubectl(context.Background(), "atoll", "", "delete", "crd", "stamps.shared.test.atoll.dev", "--ignore-not-found"); err != nil {
			t.Error(err)
		}
	})
	known := func(cluster string, want bool) {
		t.Helper()
		eventually(t, 20*time.Second, fmt.Sprintf("%s knows of the kind: %t", cluster, want), func(context.Context) error {
			_, lists, err := f.client(t, cluster).Discovery().ServerGroupsAndResources()
			if err != nil {
				return err
			}
			found := slices.ContainsFunc(lists, func(l *metav1.APIResourceList) bool {
				return l.GroupVersion == notes.GroupVersion().String() && slices.ContainsFunc(l.APIResources, func(r metav1.APIResource) bool { return r.Kind == "Stamp" })
			})
			if found != want {
				return fmt.Errorf("found: %t", found)
			}
			return nil
		})
	}
	for _, c := range islands {
		known(c, true)
	}
	f.kubectl(t, "atoll", "delete", "crd", "stamps.shared.test.atoll.dev")
	for _, c := range islands {
		known(c, false)
	}
}

// An informer in a member misses no event and repeats none while Atoll restarts and a client keeps writing.
func TestAnInformerOutlivesARestartOfAtoll(t *testing.T) {
	f := whole(t)
	f.shareNotes(t)
	f.clearNotes(t)
	client := f.longLived(t, "west")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	informers := dynamicinformer.NewFilteredDynamicSharedInformerFactory(client, 0, "default", nil)
	informer := informers.ForResource(notes).Informer()
	var mu sync.Mutex
	added, deleted := map[string]int{}, map[string]int{}
	count := func(of map[string]int) func(any) {
		return func(object any) {
			if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = unknown.Obj
			}
			mu.Lock()
			defer mu.Unlock()
			of[object.(*unstructured.Unstructured).GetName()]++
		}
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: count(added), DeleteFunc: count(deleted)}); err != nil {
		t.Fatal(err)
	}
	informers.Start(ctx.Done())
	defer informers.Shutdown()
	defer cancel()
	informers.WaitForCacheSync(ctx.Done())

	// A writer retries each note until it exists.
	var written []string
	var wrote sync.WaitGroup
	stop := make(chan struct{})
	write := func(name string) bool {
		for ctx.Err() == nil {
			_, err := f.dynamicOf(t, "east").Resource(notes).Namespace("default").Create(ctx, noteObject("default", name, "x"), metav1.CreateOptions{})
			if err == nil || apierrors.IsAlreadyExists(err) {
				return true
			}
			time.Sleep(20 * time.Millisecond)
		}
		return false
	}
	var progress atomic.Int32
	wrote.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			name := fmt.Sprintf("n%05d", i)
			if !write(name) {
				return
			}
			written = append(written, name)
			progress.Add(1)
		}
	})
	more := func(n int32) {
		t.Helper()
		target := progress.Load() + n
		eventually(t, settle, fmt.Sprintf("%d more notes are written", n), func(context.Context) error {
			if at := progress.Load(); at < target {
				return fmt.Errorf("%d of %d", at, target)
			}
			return nil
		})
	}
	more(20)
	f.KillAtoll()
	if err := f.StartAtoll(ctx); err != nil {
		t.Fatal(err)
	}
	more(20)
	close(stop)
	wrote.Wait()
	const last = "last"
	if !write(last) {
		t.Fatal("the last note is not written")
	}
	written = append(written, last)
	eventually(t, settle, "the informer has the last note", func(context.Context) error {
		_, ok, err := informer.GetStore().GetByKey("default/" + last)
		if err == nil && !ok {
			err = fmt.Errorf("it has %d notes", len(informer.GetStore().ListKeys()))
		}
		return err
	})
	mu.Lock()
	defer mu.Unlock()
	for _, name := range written {
		if added[name] != 1 || deleted[name] != 0 {
			t.Errorf("the informer was told %d times that %s came, and %d times that it went", added[name], name, deleted[name])
		}
	}
	for _, c := range islands {
		f.wantReady(t, settle, c, true)
	}
}
