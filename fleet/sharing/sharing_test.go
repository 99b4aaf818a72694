package sharing

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// fakeSharing is a Client of an API server in memory, which has the clusters east and
// west and a CRD of group a.x.
type fakeSharing struct {
	*Client
	api *fakeapi.Server
	out bytes.Buffer

	mu   sync.Mutex
	told []string
}

func newFakeSharing(t *testing.T) *fakeSharing {
	t.Helper()
	l := &fakeSharing{api: fakeapi.New(t, fakeapi.Custom("Cluster", v1alpha1.ClusterResource), fakeapi.Custom("SharedAPI", v1alpha1.SharedAPIResource),
		fakeapi.BuiltIn("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions"))}
	l.api.Put(object("Cluster", "east"))
	l.api.Put(object("Cluster", "west"))
	l.api.Put(map[string]any{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "things.a.x"}})
	l.Client = &Client{host: "atoll.test", dynamic: l.api.Dynamic(), metadata: l.api.Metadata()}
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
	l.api.Change(v1alpha1.SharedAPIResource, "", name, func(u *unstructured.Unstructured) {
		status, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&reported(u.GetGeneration(), entries).Status)
		if err != nil {
			t.Fatal(err)
		}
		u.Object["status"] = status
	})
}

// during runs f concurrently with a list of steps. Each step runs once the given line
// was printed.
func (l *fakeSharing) during(t *testing.T, f func() error, steps ...any) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }()
	for i := 0; i < len(steps); i += 2 {
		line, step := steps[i].(string), steps[i+1].(func())
		fakeapi.Eventually(t, fmt.Sprintf("%q is printed", line), func() error {
			l.mu.Lock()
			defer l.mu.Unlock()
			if line == "" && l.exists("a.x") || line != "" && strings.Contains(strings.Join(l.told, "\n"), line) {
				return nil
			}
			return fmt.Errorf("printed are %q", l.told)
		})
		step()
	}
	return <-done
}

func (l *fakeSharing) exists(name string) bool {
	return l.api.Get(v1alpha1.SharedAPIResource, "", name) != nil
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
		var writes atomic.Int32
		l.api.OnRequest(func(r fakeapi.Request) *metav1.Status {
			if r.Verb == "patch" && writes.Add(1) == 1 {
				l.api.Change(r.Resource, "", r.Name, func(u *unstructured.Unstructured) {
					if edited {
						u.Object["spec"].(map[string]any)["clusters"] = []any{"north"}
					} else {
						u.Object["status"] = map[string]any{"observedGeneration": u.GetGeneration()}
					}
				})
			}
			return nil
		})
		ask.Clusters = []string{"west"}
		err := l.Expose(t.Context(), ask, l.options(false))
		if edited && (err == nil || !strings.Contains(err.Error(), "modified concurrently")) || !edited && (err != nil || writes.Load() != 2) {
			t.Errorf("edited %v: %v after %d writes", edited, err, writes.Load())
		}
	}
}

func TestNotAnAtollServer(t *testing.T) {
	t.Parallel()
	l := newFakeSharing(t)
	l.api.OnRequest(func(r fakeapi.Request) *metav1.Status {
		if r.Resource != v1alpha1.SharedAPIResource {
			return nil
		}
		status := apierrors.NewNotFound(r.Resource.GroupResource(), "").Status()
		return &status
	})
	err := l.Expose(t.Context(), Exposure{Groups: []string{"a.x"}, Clusters: []string{"east"}}, l.options(true))
	if err == nil || !strings.Contains(err.Error(), "atoll.test does not serve SharedAPIs") {
		t.Error(err)
	}
}
