package cliview

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// testSession is a Session with an API server in memory. What controllers would do there happens when the
// session reads an object.
type testSession struct {
	t *testing.T
	*Session
	api      *fakeapi.Server
	out, err lockedBuffer

	mu sync.Mutex
	// statuses are written to objects without one, by resource.
	statuses map[string]string
	// changes are those of plans by name, or of all other plans under "".
	changes map[string][]change.Change
	// before sees each request first, and may answer it.
	before func(fakeapi.Request) *metav1.Status
	// looked may modify each object before it is read.
	looked func(*unstructured.Unstructured)
	pages  int
}

// lockedBuffer may be read while it is written.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

const digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

var (
	plansAt, appliesAt, approvalsAt = v1alpha1.PlanResource, v1alpha1.ApplyResource, v1alpha1.ApprovalResource

	networksAt, filesAt = resource(demo, "networks"), resource(demo, "files")
)

func resource(group, plural string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: group, Version: "v1", Resource: plural}
}

const demo = "demo.providers.atoll.dev"

func newTestSession(t *testing.T) *testSession {
	s := &testSession{t: t, statuses: map[string]string{}, changes: map[string][]change.Change{}}
	s.api = fakeapi.New(t, fakeapi.Custom("Plan", plansAt), fakeapi.Custom("Apply", appliesAt), fakeapi.Custom("Approval", approvalsAt),
		fakeapi.Custom("Network", networksAt), fakeapi.Custom("File", filesAt), fakeapi.Custom("DataFile", resource(demo, "datafiles")),
		fakeapi.Custom("Deployment", resource("apps", "deployments")))
	s.api.OnRequest(s.control)
	s.api.ServeSubresource(plansAt, "changes", s.serveChanges)
	session, err := Connect(s.api.Config())
	if err != nil {
		t.Fatal(err)
	}
	s.Session = session
	s.Namespace, s.Program, s.PollInterval = "shop", "atoll", time.Millisecond
	s.Session.Out, s.Session.Err = &s.out, &s.err
	return s
}

// answers sets the user's input.
func (s *testSession) answers(text string) { s.In, s.Interactive = strings.NewReader(text), true }

// control does what controllers would have done before a read.
func (s *testSession) control(r fakeapi.Request) *metav1.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.before != nil {
		if status := s.before(r); status != nil {
			return status
		}
	}
	if r.Verb != "get" || r.Subresource != "" || s.api.Get(r.Resource, r.Namespace, r.Name) == nil {
		return nil
	}
	s.api.Change(r.Resource, r.Namespace, r.Name, func(u *unstructured.Unstructured) {
		if status := s.statuses[r.Resource.Resource]; status != "" && u.Object["status"] == nil {
			u.Object["status"] = s.status(status)
		}
		if s.looked != nil {
			s.looked(u)
		}
	})
	return nil
}

func (s *testSession) serveChanges(w http.ResponseWriter, r *http.Request, _, of string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pages++
	q := r.URL.Query()
	from, _ := strconv.Atoi(q.Get("continue"))
	limit, _ := strconv.Atoi(q.Get("limit"))
	items := []change.Change{}
	all, has := s.changes[of]
	if !has {
		all = s.changes[""]
	}
	next := ""
	for i, c := range all {
		if i < from || q.Get("drift") == "true" && c.Drift == nil {
			continue
		}
		filed := c.Action
		if c.Deferred != "" {
			filed = change.Deferred
		}
		if len(q["action"]) > 0 && !slices.Contains(q["action"], string(filed)) {
			continue
		}
		if len(items) == limit {
			next = strconv.Itoa(i)
			break
		}
		items = append(items, c)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"kind": "PlanChangeList", "metadata": map[string]any{"continue": next}, "items": items})
}

// put stores an object, later than the others. The manifest is JSON.
func (s *testSession) put(resource schema.GroupVersionResource, name, manifest string) {
	s.t.Helper()
	o := &unstructured.Unstructured{Object: s.status(manifest)}
	o.SetGroupVersionKind(resource.GroupVersion().WithKind(map[string]string{"plans": "Plan", "applies": "Apply", "approvals": "Approval", "networks": "Network", "files": "File"}[resource.Resource]))
	o.SetName(name)
	o.SetNamespace("shop")
	o.SetCreationTimestamp(metav1.Unix(int64(1000+len(s.api.List(resource))), 0))
	s.api.Put(o)
}

// at returns a field of a stored object, as text.
func (s *testSession) at(resource schema.GroupVersionResource, name string, fields ...string) string {
	s.t.Helper()
	u := s.api.Get(resource, "shop", name)
	if u == nil {
		s.t.Fatalf("%s %s does not exist", resource.Resource, name)
	}
	v, _, _ := unstructured.NestedFieldNoCopy(u.Object, fields...)
	text, _ := json.Marshal(v)
	return string(text)
}

// made is how many objects the session has created.
func (s *testSession) made() (n int) {
	for _, w := range s.api.Writes() {
		if strings.HasPrefix(w, "create ") {
			n++
		}
	}
	return n
}

// status parses a status or an object. DIGEST in it is the digest.
func (s *testSession) status(text string) map[string]any {
	o := map[string]any{}
	if err := json.Unmarshal([]byte(strings.ReplaceAll(text, "DIGEST", digest)), &o); err != nil {
		s.t.Fatalf("%v: %s", err, text)
	}
	return o
}

// created returns a change that creates a demo_file.
func created(name string) change.Change {
	return change.Change{Address: change.Address{Namespace: "shop", Type: "demo_file", Name: name}, Action: change.Create,
		After:  &change.Value{JSON: json.RawMessage(`{"content":"hello","id":null,"name":"` + name + `"}`), Unknown: []string{"id"}},
		Fields: []change.Field{{Path: "content", Action: change.FieldAdded, After: json.RawMessage(`"hello"`)}}}
}

func deleted(name string) change.Change {
	return change.Change{Address: change.Address{Namespace: "shop", Type: "demo_network", Name: name}, Action: change.Delete, Reason: change.NotWritten,
		Before: &change.Value{JSON: json.RawMessage(`{"cidr":"10.0.0.0/8","name":"` + name + `"}`)}}
}

func drifted(name string) change.Change {
	return change.Change{Address: change.Address{Namespace: "shop", Type: "demo_file", Name: name}, Action: change.NoOp, Drift: &change.Difference{
		Before: &change.Value{JSON: json.RawMessage(`{"content":"hello","name":"` + name + `"}`)},
		After:  &change.Value{JSON: json.RawMessage(`{"content":"bye","name":"` + name + `"}`)},
		Fields: []change.Field{{Path: "content", Action: change.FieldChanged, Before: json.RawMessage(`"hello"`), After: json.RawMessage(`"bye"`)}}}}
}

// contains fails unless the text has all of these.
func contains(t *testing.T, text string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in:\n%s", want, text)
		}
	}
}

// TestAsk: only "yes" confirms, and where no one can answer, the error has the remedy.
func TestAsk(t *testing.T) {
	s := newTestSession(t)
	for answer, want := range map[string]string{
		"yes\n": "<nil>", " yes": "<nil>", "y\n": "leave east: not confirmed", "\n": "leave east: not confirmed",
		"": "leave east: standard input is not a terminal or has ended: use --yes",
	} {
		s.answers(answer)
		if got := fmt.Sprint(s.Ask(t.Context(), "Remove it?", "leave east", "use --yes")); got != want {
			t.Errorf("%q: %s", answer, got)
		}
	}
	if !strings.Contains(s.err.String(), `Remove it? Only "yes" will be accepted: `) {
		t.Errorf("it asks %q", s.err.String())
	}
}
