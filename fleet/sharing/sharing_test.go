package sharing

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// fakeSharing is a Client of a fake Atoll with the clusters east and west and a CRD
// of group a.x.
type fakeSharing struct {
	*Client
	client *dynamicfake.FakeDynamicClient
	out    bytes.Buffer

	mu   sync.Mutex
	told []string
}

func newFakeSharing(t *testing.T) *fakeSharing {
	t.Helper()
	crd := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"},
		ObjectMeta: metav1.ObjectMeta{Name: "things.a.x"}}
	known := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(known); err != nil {
		t.Fatal(err)
	}
	l := &fakeSharing{client: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{v1alpha1.ClusterResource: "ClusterList", v1alpha1.SharedAPIResource: "SharedAPIList"},
		object("Cluster", "east"), object("Cluster", "west"))}
	l.Client = &Client{host: "atoll.test", dynamic: l.client, metadata: metadatafake.NewSimpleMetadataClient(known, crd)}
	return l
}

// options prints what the callbacks are called with.
func (l *fakeSharing) options(wait bool) Options {
	return Options{
		Wait: wait,
		Written: func(summary string, _ *unstructured.Unstructured) error {
			fmt.Fprintln(&l.out, summary)
			return nil
		},
		Progress: func(line string) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.told = append(l.told, line)
		},
	}
}

func object(kind, name string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": kind, "spec": map[string]any{}}}
	u.SetName(name)
	return u
}

// printed returns the new output since the last call: standard output, then progress.
func (l *fakeSharing) printed() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := l.out.String() + strings.Join(l.told, "\n")
	l.out.Reset()
	l.told = nil
	return strings.TrimSpace(out)
}

// report writes the status that the controller would write, in the notation of
// reported.
func (l *fakeSharing) report(t *testing.T, name, entries string) {
	t.Helper()
	u, err := l.client.Resource(v1alpha1.SharedAPIResource).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	status, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&reported(0, entries).Status)
	if err != nil {
		t.Fatal(err)
	}
	u.Object["status"] = status
	if err := l.client.Tracker().Update(v1alpha1.SharedAPIResource, u, ""); err != nil {
		t.Fatal(err)
	}
}

// during runs f concurrently with a list of steps. Each step runs once the given line
// was printed.
func (l *fakeSharing) during(t *testing.T, f func() error, steps ...any) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }()
	for i := 0; i < len(steps); i += 2 {
		line, step := steps[i].(string), steps[i+1].(func())
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
			l.mu.Lock()
			seen := strings.Contains(strings.Join(l.told, "\n"), line)
			l.mu.Unlock()
			if line == "" && l.exists("a.x") || line != "" && seen {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("never printed %q, but %q", line, l.printed())
			}
		}
		step()
	}
	return <-done
}

func (l *fakeSharing) exists(name string) bool {
	_, err := l.client.Resource(v1alpha1.SharedAPIResource).Get(context.Background(), name, metav1.GetOptions{})
	return err == nil
}

func TestExposeThenUnexpose(t *testing.T) {
	t.Parallel()
	l := newFakeSharing(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	expose := func(clusters ...string) func() error {
		return func() error {
			return l.Expose(ctx, Exposure{Groups: []string{"a.x"}, Clusters: clusters}, l.options(true))
		}
	}
	err := l.during(t, expose("east"),
		"", func() { l.report(t, "a.x", "east=Applying") },
		"east: Applying", func() { l.report(t, "a.x", "east=Exposed:a.x/v1") })
	if got := l.printed(); err != nil || got != "sharedapi/a.x created\neast: Applying\neast: Applying → Exposed" {
		t.Fatalf("%v\n%s", err, got)
	}

	// Another cluster, and a timeout.
	short, cut := context.WithCancel(ctx)
	err = l.during(t, func() error {
		return l.Expose(short, Exposure{Groups: []string{"a.x"}, Clusters: []string{"east", "west"}}, l.options(true))
	}, "east: Exposed", func() { l.report(t, "a.x", "east=Exposed:a.x/v1 west=Unavailable") },
		"west: Unavailable", func() { cut() })
	if got := l.printed(); err == nil || !strings.HasPrefix(got, "sharedapi/a.x configured: also for west\n") ||
		!strings.Contains(err.Error(), "\n  west: Unavailable: the message\n") || strings.Contains(err.Error(), "east") {
		t.Fatalf("%v\n%s", err, got)
	}
	l.report(t, "a.x", "east=Exposed:a.x/v1 west=Exposed:a.x/v1")
	if err := expose("west", "east")(); err != nil {
		t.Fatal(err)
	}
	if got := l.printed(); got != "sharedapi/a.x unchanged\nwest: Exposed\neast: Exposed" {
		t.Fatal(got)
	}

	err = l.during(t, func() error { return l.Unexpose(ctx, []string{"a.x"}, []string{"west"}, l.options(true)) },
		"stay in Atoll", func() { l.report(t, "a.x", "east=Exposed:a.x/v1 west=Removing") },
		"west: ", func() { l.report(t, "a.x", "east=Exposed:a.x/v1") })
	// The status may have been observed before the removal began.
	if got := strings.Replace(l.printed(), "Exposed → Removing", "Removing", 1); err != nil ||
		got != "sharedapi/a.x configured: no longer for west\nthe objects stay in Atoll\nwest: Removing\nwest: Removing → Removed" {
		t.Fatalf("%v\n%s", err, got)
	}
	if err := l.Unexpose(ctx, []string{"a.x"}, nil, l.options(true)); err != nil {
		t.Fatal(err)
	}
	if got := l.printed(); got != "sharedapi/a.x deleted\nthe objects stay in Atoll\neast: Removed" || l.exists("a.x") {
		t.Fatal(got)
	}
}

func TestRetriesConflictIfOnlyStatusChanged(t *testing.T) {
	t.Parallel()
	for _, edited := range []bool{false, true} {
		l := newFakeSharing(t)
		ask := Exposure{Groups: []string{"a.x"}, Clusters: []string{"east"}}
		if err := l.Expose(t.Context(), ask, l.options(false)); err != nil {
			t.Fatal(err)
		}
		// The first write meets a newer version.
		conflicts := 0
		l.client.PrependReactor("patch", "sharedapis", func(clienttesting.Action) (bool, runtime.Object, error) {
			if conflicts++; conflicts > 1 {
				return false, nil, nil
			}
			u, err := l.client.Tracker().Get(v1alpha1.SharedAPIResource, "", "a.x")
			if err != nil {
				return true, nil, err
			}
			moved := u.(*unstructured.Unstructured).DeepCopy()
			moved.SetResourceVersion("2")
			if edited {
				if err := unstructured.SetNestedStringSlice(moved.Object, []string{"north"}, "spec", "clusters"); err != nil {
					return true, nil, err
				}
			}
			if err := l.client.Tracker().Update(v1alpha1.SharedAPIResource, moved, ""); err != nil {
				return true, nil, err
			}
			return true, nil, apierrors.NewConflict(v1alpha1.SharedAPIResource.GroupResource(), "a.x", nil)
		})
		ask.Clusters = []string{"west"}
		err := l.Expose(t.Context(), ask, l.options(false))
		if edited && (err == nil || !strings.Contains(err.Error(), "modified concurrently")) || !edited && (err != nil || conflicts != 2) {
			t.Errorf("edited %v: %v after %d writes", edited, err, conflicts)
		}
	}
}

func TestNotAnAtollServer(t *testing.T) {
	t.Parallel()
	l := newFakeSharing(t)
	l.client.PrependReactor("list", "sharedapis", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewNotFound(v1alpha1.SharedAPIResource.GroupResource(), "")
	})
	err := l.Expose(t.Context(), Exposure{Groups: []string{"a.x"}, Clusters: []string{"east"}}, l.options(true))
	if err == nil || !strings.Contains(err.Error(), "atoll.test does not serve SharedAPIs") {
		t.Error(err)
	}
}
