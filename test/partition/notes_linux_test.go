package partition_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
)

var notes = schema.GroupVersionResource{Group: "shared.test.atoll.dev", Version: "v1", Resource: "notes"}

// notesManifest is a group that is shared by all members, whose users may use it.
const notesManifest = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: notes.shared.test.atoll.dev}
spec:
  group: shared.test.atoll.dev
  scope: Namespaced
  names: {plural: notes, singular: note, kind: Note}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              text: {type: string}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: notes}
rules:
- {apiGroups: [shared.test.atoll.dev], resources: ["*"], verbs: ["*"]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: notes}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: notes}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: Group, name: atoll:members}
---
apiVersion: v1
kind: Namespace
metadata: {name: letters}
---
apiVersion: fleet.atoll.dev/v1alpha1
kind: SharedAPI
metadata: {name: notes}
spec:
  groups: [shared.test.atoll.dev]
  clusterSelector: {}
`

// notes returns a client of the notes in a member.
func (s *stage) notes(t *testing.T, member string) dynamic.ResourceInterface {
	t.Helper()
	config, err := s.rest(member)
	if err != nil {
		t.Fatal(err)
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client.Resource(notes).Namespace("letters")
}

func newNote(name, text string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "shared.test.atoll.dev/v1", "kind": "Note",
		"metadata": map[string]any{"name": name},
		"spec":     map[string]any{"text": text},
	}}
}

func revisionOf(o metav1.Object) int64 {
	n, _ := strconv.ParseInt(o.GetResourceVersion(), 10, 64)
	return n
}

// writer writes notes all the time, as a user of one member, and records the acknowledged writes. It writes
// each note several times.
type writer struct {
	mu sync.Mutex
	// acknowledged revisions, ascending; at has the time of each.
	acknowledged []int64
	at           map[int64]time.Time
	errors       []error
	// worst is the longest time between two acknowledgements.
	worst time.Duration

	stopped chan struct{}
	stop    context.CancelFunc
}

// writeInterval is the time between two writes: 20 writes a second.
const writeInterval = 50 * time.Millisecond

// startWriter writes notes whose names have a prefix, until end.
func startWriter(t *testing.T, client dynamic.ResourceInterface, prefix string) *writer {
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	w := &writer{at: map[int64]time.Time{}, stopped: make(chan struct{}), stop: stop}
	t.Cleanup(w.end)
	go func() {
		defer close(w.stopped)
		const names = 50
		have := map[string]*unstructured.Unstructured{}
		last := time.Now()
		tick := time.NewTicker(writeInterval)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			name := fmt.Sprintf("%s-%02d", prefix, i%names)
			// A write that has begun is completed: it may take effect, and then watches deliver it.
			written, err := write(context.WithoutCancel(ctx), client, have[name], name, strconv.Itoa(i))
			w.mu.Lock()
			if err != nil {
				w.errors = append(w.errors, err)
				// The next write of this note finds out whether this one took effect.
				have[name] = nil
			} else {
				now := time.Now()
				have[name] = written
				w.worst = max(w.worst, now.Sub(last))
				last = now
				w.acknowledged = append(w.acknowledged, revisionOf(written))
				w.at[revisionOf(written)] = now
			}
			w.mu.Unlock()
		}
	}()
	return w
}

// write creates a note, or updates the given one.
func write(ctx context.Context, client dynamic.ResourceInterface, have *unstructured.Unstructured, name, text string) (*unstructured.Unstructured, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	if have == nil {
		written, err := client.Create(ctx, newNote(name, text), metav1.CreateOptions{})
		if !apierrors.IsAlreadyExists(err) {
			return written, err
		}
		if have, err = client.Get(ctx, name, metav1.GetOptions{}); err != nil {
			return nil, err
		}
	}
	next := newNote(name, text)
	next.SetResourceVersion(have.GetResourceVersion())
	return client.Update(ctx, next, metav1.UpdateOptions{})
}

func (w *writer) end() {
	w.stop()
	<-w.stopped
}

// last returns the newest acknowledged revision.
func (w *writer) last() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.acknowledged) == 0 {
		return 0
	}
	return w.acknowledged[len(w.acknowledged)-1]
}

// observer watches notes in one member. When its watch ends, it resumes from the last event, and never lists
// again.
type observer struct {
	member string

	mu      sync.Mutex
	seen    []int64 // revisions, in the order of their events
	at      map[int64]time.Time
	resumed int // how often a watch was resumed
	errors  []error
}

func startObserver(t *testing.T, member string, client dynamic.ResourceInterface) *observer {
	t.Helper()
	list, err := client.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	o := &observer{member: member, at: map[int64]time.Time{}}
	stopped := make(chan struct{})
	t.Cleanup(func() { stop(); <-stopped })
	go func() {
		defer close(stopped)
		o.follow(ctx, client, list.GetResourceVersion())
	}()
	return o
}

func (o *observer) follow(ctx context.Context, client dynamic.ResourceInterface, version string) {
	for ctx.Err() == nil {
		w, err := client.Watch(ctx, metav1.ListOptions{ResourceVersion: version, AllowWatchBookmarks: true})
		if err != nil {
			o.refused(ctx, err)
			select {
			case <-ctx.Done():
			case <-time.After(200 * time.Millisecond):
			}
			continue
		}
		for e := range w.ResultChan() {
			version = o.event(e, version)
		}
		o.mu.Lock()
		o.resumed++
		o.mu.Unlock()
	}
}

// refused records an error only if it is about compacted revisions. Others are expected during a cut.
func (o *observer) refused(ctx context.Context, err error) {
	if ctx.Err() == nil && (apierrors.IsResourceExpired(err) || apierrors.IsGone(err)) {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.errors = append(o.errors, err)
	}
}

func (o *observer) event(e watch.Event, version string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch e.Type {
	case watch.Error:
		if err := apierrors.FromObject(e.Object); apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
			o.errors = append(o.errors, err)
		}
		return version
	case watch.Added, watch.Modified:
		note := e.Object.(*unstructured.Unstructured)
		o.seen = append(o.seen, revisionOf(note))
		o.at[revisionOf(note)] = time.Now()
		return note.GetResourceVersion()
	case watch.Bookmark:
		return e.Object.(*unstructured.Unstructured).GetResourceVersion()
	}
	o.errors = append(o.errors, fmt.Errorf("an unexpected event: %v", e))
	return version
}

func (o *observer) saw(revision int64) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, ok := o.at[revision]; !ok {
		return fmt.Errorf("no event of revision %d among %d events", revision, len(o.seen))
	}
	return nil
}

// firstAfter returns the time from a moment to the first event after it.
func (o *observer) firstAfter(moment time.Time) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, revision := range o.seen {
		if at := o.at[revision]; at.After(moment) {
			return at.Sub(moment)
		}
	}
	return -1
}

// silence returns the longest time without an event since a moment.
func (o *observer) silence(since time.Time) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	var worst time.Duration
	for _, revision := range o.seen {
		if at := o.at[revision]; at.After(since) {
			worst = max(worst, at.Sub(since))
			since = at
		}
	}
	return worst
}

// check fails the test unless all acknowledged writes were seen once, in order.
func (o *observer) check(t *testing.T, w *writer) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, err := range o.errors {
		t.Errorf("the watch in %s: %v", o.member, err)
	}
	if !slices.IsSorted(o.seen) || len(slices.Compact(slices.Clone(o.seen))) != len(o.seen) {
		t.Errorf("the watch in %s got events twice or out of order", o.member)
	}
	missed := 0
	for _, revision := range w.acknowledged {
		if _, ok := o.at[revision]; !ok {
			missed++
		}
	}
	// A write without an answer may have taken effect.
	more := len(o.seen) - (len(w.acknowledged) - missed)
	if missed > 0 || more > len(w.errors) {
		t.Errorf("the watch in %s missed %d of %d changes, and got %d events without a write", o.member, missed, len(w.acknowledged), more)
	}
}

// delays returns how long after its acknowledgement the event of each write in a time span came.
func (o *observer) delays(w *writer, from, to time.Time) samples {
	o.mu.Lock()
	defer o.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	var out samples
	for revision, at := range w.at {
		if seen, ok := o.at[revision]; ok && at.After(from) && at.Before(to) {
			out = append(out, max(seen.Sub(at), 0))
		}
	}
	return out
}
