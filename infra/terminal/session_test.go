package terminal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/infra/plan"
)

// testSession is a Session with a fake API: a store of objects by path, and the subresource changes.
type testSession struct {
	t *testing.T
	*Session
	out, err lockedBuffer

	mu      sync.Mutex
	objects map[string]map[string]any // by path
	made    int
	changes map[string][]plan.Change // by plan
	// kinds are additional kinds: group, kind, plural.
	kinds [][3]string
	// before handles each request first, and may answer it.
	before func(method, path string) *metav1.Status
	// after may modify each object that is written.
	after func(path string, o map[string]any)
	// looked is called for each object that is read.
	looked func(path string, o map[string]any)
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

const (
	plansAt     = "/apis/infra.atoll.dev/v1alpha1/namespaces/shop/plans"
	appliesAt   = "/apis/infra.atoll.dev/v1alpha1/namespaces/shop/applies"
	approvalsAt = "/apis/infra.atoll.dev/v1alpha1/namespaces/shop/approvals"
	networksAt  = "/apis/demo.providers.atoll.dev/v1/namespaces/shop/networks"
	filesAt     = "/apis/demo.providers.atoll.dev/v1/namespaces/shop/files"

	digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
)

func newTestSession(t *testing.T) *testSession {
	s := &testSession{t: t, objects: map[string]map[string]any{}, changes: map[string][]plan.Change{}, kinds: [][3]string{
		{"demo.providers.atoll.dev", "Network", "networks"}, {"demo.providers.atoll.dev", "File", "files"}, {"demo.providers.atoll.dev", "DataFile", "datafiles"},
		{"other.providers.atoll.dev", "File", "files"}, {"apps", "Deployment", "deployments"},
	}}
	server := httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(server.Close)
	session, err := Connect(&rest.Config{Host: server.URL})
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

func (s *testSession) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.before != nil {
		if status := s.before(r.Method, r.URL.Path); status != nil {
			refuse(w, status)
			return
		}
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		s.t.Error(err)
	}
	switch path := r.URL.Path; {
	case path == "/api" || path == "/apis" || strings.Count(path, "/") <= 3:
		s.discover(w, path)
	case strings.HasSuffix(path, "/changes"):
		s.serveChanges(w, r)
	case r.Method == http.MethodPost:
		s.create(w, path, body)
	case r.Method == http.MethodPatch:
		s.patch(w, path, body)
	case s.objects[path] != nil:
		if s.looked != nil {
			s.looked(path, s.objects[path])
		}
		answer(w, s.objects[path])
	case s.isCollection(path):
		items := []any{}
		for at, o := range s.objects {
			if strings.HasPrefix(at, path+"/") {
				items = append(items, o)
			}
		}
		slices.SortFunc(items, func(a, b any) int { return strings.Compare(nameOf(a), nameOf(b)) })
		answer(w, map[string]any{"kind": "List", "apiVersion": "v1", "metadata": map[string]any{}, "items": items})
	default:
		parts := strings.Split(path, "/")
		refuse(w, notFound(parts[len(parts)-2], parts[len(parts)-1]))
	}
}

func nameOf(o any) string { return o.(map[string]any)["metadata"].(map[string]any)["name"].(string) }

func (s *testSession) isCollection(path string) bool { return strings.Count(path, "/") == 6 }

func notFound(kind, name string) *metav1.Status {
	return &metav1.Status{Code: 404, Reason: metav1.StatusReasonNotFound, Message: fmt.Sprintf("%s %q not found", kind, name), Details: &metav1.StatusDetails{Kind: kind, Name: name}}
}

func refuse(w http.ResponseWriter, status *metav1.Status) {
	status.TypeMeta, status.Status = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, "Failure"
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(int(status.Code))
	_ = json.NewEncoder(w).Encode(status)
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

// discover serves discovery in the unaggregated format.
func (s *testSession) discover(w http.ResponseWriter, path string) {
	groups := map[string][]metav1.APIResource{}
	for _, k := range s.kinds {
		groups[k[0]] = append(groups[k[0]], metav1.APIResource{Name: k[2], Kind: k[1], SingularName: strings.ToLower(k[1]), Namespaced: true})
	}
	switch {
	case path == "/api":
		answer(w, metav1.APIVersions{})
	case path == "/apis":
		out := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
		for name := range groups {
			v := metav1.GroupVersionForDiscovery{GroupVersion: name + "/v1", Version: "v1"}
			out.Groups = append(out.Groups, metav1.APIGroup{Name: name, Versions: []metav1.GroupVersionForDiscovery{v}, PreferredVersion: v})
		}
		answer(w, out)
	default:
		group, version, _ := strings.Cut(strings.TrimPrefix(path, "/apis/"), "/")
		answer(w, metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: group + "/" + version, APIResources: groups[group]})
	}
}

func (s *testSession) create(w http.ResponseWriter, path string, body []byte) {
	o := map[string]any{}
	if err := json.Unmarshal(body, &o); err != nil {
		s.t.Errorf("create at %s: %v: %q", path, err, body)
	}
	s.made++
	meta := o["metadata"].(map[string]any)
	if meta["name"] == nil {
		meta["name"] = fmt.Sprintf("%v%d", meta["generateName"], s.made)
	}
	meta["namespace"] = "shop"
	meta["creationTimestamp"] = time.Unix(int64(1000+s.made), 0).UTC().Format(time.RFC3339)
	at := path + "/" + meta["name"].(string)
	if s.after != nil {
		s.after(at, o)
	}
	s.objects[at] = o
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	answer(w, o)
}

func (s *testSession) patch(w http.ResponseWriter, path string, body []byte) {
	if s.objects[path] == nil {
		refuse(w, notFound("things", path[strings.LastIndex(path, "/")+1:]))
		return
	}
	was, _ := json.Marshal(s.objects[path])
	is, err := jsonpatch.MergePatch(was, body)
	if err != nil {
		s.t.Error(err)
	}
	o := map[string]any{}
	if err := json.Unmarshal(is, &o); err != nil {
		s.t.Error(err)
	}
	if s.after != nil {
		s.after(path, o)
	}
	s.objects[path] = o
	answer(w, o)
}

func (s *testSession) serveChanges(w http.ResponseWriter, r *http.Request) {
	s.pages++
	parts := strings.Split(r.URL.Path, "/")
	q := r.URL.Query()
	from, _ := strconv.Atoi(q.Get("continue"))
	limit, _ := strconv.Atoi(q.Get("limit"))
	items, all := []plan.Change{}, s.changes[parts[len(parts)-2]]
	next := ""
	for i, c := range all {
		if i < from || q.Get("drift") == "true" && c.Drift == nil {
			continue
		}
		filed := c.Action
		if c.Deferred != "" {
			filed = plan.Deferred
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
	answer(w, map[string]any{"kind": "PlanChangeList", "metadata": map[string]any{"continue": next}, "items": items})
}

// put stores an object, as JSON.
func (s *testSession) put(path, manifest string) {
	s.t.Helper()
	o := map[string]any{}
	if err := json.Unmarshal([]byte(manifest), &o); err != nil {
		s.t.Fatalf("%v: %s", err, manifest)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.made++
	if o["metadata"] == nil {
		o["metadata"] = map[string]any{}
	}
	parts := strings.Split(path, "/")
	o["apiVersion"], o["kind"] = parts[2]+"/"+parts[3], map[string]string{"plans": "Plan", "applies": "Apply", "approvals": "Approval", "networks": "Network", "files": "File"}[parts[6]]
	meta := o["metadata"].(map[string]any)
	meta["name"], meta["namespace"] = path[strings.LastIndex(path, "/")+1:], "shop"
	meta["creationTimestamp"] = time.Unix(int64(1000+s.made), 0).UTC().Format(time.RFC3339)
	s.objects[path] = o
}

// object returns the stored object.
func (s *testSession) object(path string) map[string]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.objects[path]
}

// at returns a field of a stored object, as text.
func (s *testSession) at(path string, fields ...string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var v any = s.objects[path]
	for _, f := range fields {
		m, _ := v.(map[string]any)
		v = m[f]
	}
	text, _ := json.Marshal(v)
	return string(text)
}

// status parses the status of an object.
func (s *testSession) status(text string) map[string]any {
	o := map[string]any{}
	if err := json.Unmarshal([]byte(strings.ReplaceAll(text, "DIGEST", digest)), &o); err != nil {
		s.t.Fatalf("%v: %s", err, text)
	}
	return o
}

// created returns a change that creates a demo_file.
func created(name string) plan.Change {
	return plan.Change{Address: plan.Address{Namespace: "shop", Type: "demo_file", Name: name}, Action: plan.Create,
		After:  &plan.Value{JSON: json.RawMessage(`{"content":"hello","id":null,"name":"` + name + `"}`), Unknown: []string{"id"}},
		Fields: []plan.Field{{Path: "content", Action: plan.FieldAdded, After: json.RawMessage(`"hello"`)}}}
}

func deleted(name string) plan.Change {
	return plan.Change{Address: plan.Address{Namespace: "shop", Type: "demo_network", Name: name}, Action: plan.Delete, Reason: plan.NotWritten,
		Before: &plan.Value{JSON: json.RawMessage(`{"cidr":"10.0.0.0/8","name":"` + name + `"}`)}}
}

func drifted(name string) plan.Change {
	return plan.Change{Address: plan.Address{Namespace: "shop", Type: "demo_file", Name: name}, Action: plan.NoOp, Drift: &plan.Difference{
		Before: &plan.Value{JSON: json.RawMessage(`{"content":"hello","name":"` + name + `"}`)},
		After:  &plan.Value{JSON: json.RawMessage(`{"content":"bye","name":"` + name + `"}`)},
		Fields: []plan.Field{{Path: "content", Action: plan.FieldChanged, Before: json.RawMessage(`"hello"`), After: json.RawMessage(`"bye"`)}}}}
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
