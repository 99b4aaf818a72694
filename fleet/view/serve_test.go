package view

import (
	"bufio"
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// stage is a Host over a control plane that is a fake: clusters east and west in mode
// Pull, south in mode Push, and bindings of both.
type stage struct {
	t       *testing.T
	control *dynamicfake.FakeDynamicClient
	kube    *kubefake.Clientset
	host    *Host
	server  *httptest.Server

	mu      sync.Mutex
	applied []clienttesting.PatchActionImpl
	kept    []string // what was reported of types, by cluster
}

// KeepTypes and KeepGroup note what they are given.
func (s *stage) KeepTypes(_ context.Context, _ *fleet.Term, c *v1alpha1.Cluster, said fleet.TypesReport) (fleet.TypesWanted, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept = append(s.kept, c.Name+" serves "+fmt.Sprint(slices.Sorted(maps.Keys(said.Groups)))+said.Message)
	return fleet.TypesWanted{Missing: slices.Sorted(maps.Keys(said.Groups)), InFull: said.Others}, nil
}

func (s *stage) KeepGroup(_ context.Context, _ *fleet.Term, c *v1alpha1.Cluster, said fleet.GroupReport) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept = append(s.kept, fmt.Sprintf("%s has %s of %s", c.Name, said.Content, said.Group))
	if said.Group == "bad" {
		return apierrors.NewBadRequest("it is bad")
	}
	return nil
}

func fakeLists() map[schema.GroupVersionResource]string {
	crds := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	out := map[schema.GroupVersionResource]string{
		v1alpha1.ClusterResource: "ClusterList", v1alpha1.ResourceBindingResource: "ResourceBindingList",
		v1alpha1.ClusterResourceBindingResource: "ClusterResourceBindingList", crds: "CustomResourceDefinitionList",
		v1alpha1.APIResourceImportResource: "APIResourceImportList", v1alpha1.NegotiatedAPIResourceResource: "NegotiatedAPIResourceList",
		corev1.SchemeGroupVersion.WithResource("namespaces"): "NamespaceList",
		v1alpha1.ResourceInterpretationResource:              "ResourceInterpretationList",
		v1alpha1.PlacementResource:                           "PlacementList", v1alpha1.ClusterPlacementResource: "ClusterPlacementList",
	}
	for _, k := range interpret.Kinds() {
		out[k.GVR()] = k.Kind + "List"
	}
	return out
}

func open(t *testing.T, objects ...*unstructured.Unstructured) *stage {
	t.Helper()
	s := &stage{t: t, kube: kubefake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})}
	var initial []runtime.Object
	for _, o := range append(objects, pulling("east"), pulling("west"), thing(apiVersion, clusterKind, "", "south", nil),
		thing("v1", "Namespace", "", "shop", nil)) {
		initial = append(initial, o)
	}
	s.control = dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), fakeLists(), initial...)
	s.control.PrependReactor("patch", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		a := action.(clienttesting.PatchActionImpl)
		if a.PatchType != types.ApplyPatchType {
			return false, nil, nil
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.applied = append(s.applied, a)
		return true, &unstructured.Unstructured{Object: map[string]any{}}, nil
	})
	cfg := fleet.Config{Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler)}
	s.host = NewHost(Config{Log: cfg.Log, Clock: cfg.Clock, Types: s,
		Sign: func(cluster, credential string, _ *x509.CertificateRequest) ([]byte, error) {
			return []byte("certificate of " + cluster + " by " + credential), nil
		},
		open: func(ctx context.Context) (*fleet.Term, error) {
			return fleet.TermOver(ctx, cfg, s.kube, s.control, nil, interpret.Kinds())
		}})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	running := make(chan struct{})
	go func() { defer close(done); close(running); _ = s.host.Run(ctx) }()
	<-running
	s.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		caller := Caller{Name: r.Header.Get("Test-User")}
		if groups := r.Header.Get("Test-Groups"); groups != "" {
			caller.Groups = strings.Split(groups, ",")
		}
		s.host.Serve(w, r, caller)
	}))
	t.Cleanup(func() { stop(); <-done; s.server.CloseClientConnections(); s.server.Close() })
	return s
}

func pulling(name string) *unstructured.Unstructured {
	c := thing(apiVersion, clusterKind, "", name, map[string]any{"spec": map[string]any{"mode": "Pull"}})
	c.SetAnnotations(map[string]string{v1alpha1.CredentialAnnotation: "good"})
	return c
}

func thing(apiVersion, kind, namespace, name string, rest map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	for field, value := range rest {
		u.Object[field] = value
	}
	u.SetAPIVersion(apiVersion)
	u.SetKind(kind)
	u.SetNamespace(namespace)
	u.SetName(name)
	u.SetUID(types.UID("uid-" + name))
	u.SetGeneration(3)
	u.SetResourceVersion("1")
	return u
}

func secret(name string) *unstructured.Unstructured {
	return thing("v1", "Secret", "shop", name, map[string]any{"data": map[string]any{"word": "c2VjcmV0LW9mLQ==" + name}})
}

// bind gives the binding of a Secret to clusters.
func bind(name string, clusters ...string) *unstructured.Unstructured {
	var shares, states []any
	for _, c := range clusters {
		shares = append(shares, map[string]any{"name": c, "reason": "Chosen", "message": "because of " + strings.Join(clusters, " and ")})
		states = append(states, map[string]any{"name": c, "health": "Healthy", "message": "said by " + c, "lastUpdateTime": "2026-01-01T00:00:00Z"})
	}
	b := thing(apiVersion, "ResourceBinding", "shop", "secret-"+name, map[string]any{
		"spec": map[string]any{"resource": map[string]any{"apiVersion": "v1", "kind": "Secret", "name": name, "uid": "uid-" + name},
			"clusters": shares, "requiredBy": []any{map[string]any{"kind": "Deployment", "name": "unseen"}}},
		"status": map[string]any{"clusters": states, "placed": strings.Join(clusters, ",")},
	})
	b.SetUID(types.UID("uid-binding-" + name))
	return b
}

func syncerOf(cluster string) Caller {
	return Caller{v1alpha1.SyncerUser(cluster), []string{v1alpha1.SyncersGroup, v1alpha1.CredentialGroupPrefix + "good"}}
}

func (s *stage) ask(who Caller, method, path string, body any) (int, string) {
	s.t.Helper()
	answer := s.send(who, method, path, body)
	defer answer.Body.Close()
	var said bytes.Buffer
	if _, err := said.ReadFrom(answer.Body); err != nil {
		s.t.Fatal(err)
	}
	return answer.StatusCode, said.String()
}

func (s *stage) send(who Caller, method, path string, body any) *http.Response {
	s.t.Helper()
	content, err := json.Marshal(body)
	if err != nil {
		s.t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(s.t.Context(), method, s.server.URL, bytes.NewReader(content))
	if err != nil {
		s.t.Fatal(err)
	}
	// As it is: a client of Go would clean the path.
	path, query, _ := strings.Cut(path, "?")
	r.URL.Opaque = "//" + strings.TrimPrefix(s.server.URL, "http://") + path
	r.URL.RawQuery = query
	r.Header.Set("Test-User", who.Name)
	r.Header.Set("Test-Groups", strings.Join(who.Groups, ","))
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	return answer
}

const eastView = v1alpha1.ViewsPath + "east"

// A syncer sees what is bound to its cluster, transformed for it, and of no other
// cluster a word.
func TestAViewHasWhatIsBound(t *testing.T) {
	s := open(t, secret("both"), secret("mine"), secret("theirs"), secret("nobodys"),
		bind("both", "east", "west"), bind("mine", "east"), bind("theirs", "west", "south"))
	for path, want := range map[string][]string{
		"/api/v1/secrets":                                    {"both", "mine"},
		"/api/v1/namespaces/shop/secrets":                    {"both", "mine"},
		"/api/v1/namespaces/other/secrets":                   {},
		"/api/v1/secrets?fieldSelector=metadata.name%3Dmine": {"mine"},
		"/apis/" + apiVersion + "/boundobjects":              {"secret-both", "secret-mine"},
		"/apis/" + apiVersion + "/clusters":                  {"east"},
		"/apis/" + apiVersion + "/boundnamespaces":           {"shop"},
		"/api/v1/configmaps":                                 {},
	} {
		code, said := s.ask(syncerOf("east"), "GET", eastView+path, nil)
		var got struct {
			Items []struct{ Metadata metav1.ObjectMeta }
		}
		if err := json.Unmarshal([]byte(said), &got); err != nil || code != http.StatusOK {
			t.Errorf("%s: %d %s", path, code, said)
			continue
		}
		var names []string
		for _, item := range got.Items {
			names = append(names, item.Metadata.Name)
		}
		if fmt.Sprint(names) != fmt.Sprint(want) {
			t.Errorf("%s: has %v, want %v", path, names, want)
		}
		for _, foreign := range []string{"west", "south", "theirs", "nobodys", "unseen"} {
			if strings.Contains(said, foreign) {
				t.Errorf("%s speaks of %q:\n%s", path, foreign, said)
			}
		}
	}
	code, said := s.ask(syncerOf("east"), "GET", eastView+"/api/v1/namespaces/shop/secrets/mine", nil)
	var got unstructured.Unstructured
	if err := got.UnmarshalJSON([]byte(said)); err != nil || code != http.StatusOK {
		t.Fatalf("%d %s", code, said)
	}
	if got.GetUID() != "uid-mine" || got.GetGeneration() != 3 || got.GetAnnotations()[v1alpha1.ClusterAnnotation] != "east" ||
		got.GetAnnotations()[v1alpha1.SourceUIDAnnotation] != "uid-mine" || got.GetLabels()[v1alpha1.ManagedLabel] != "true" {
		t.Errorf("it is not transformed: %s", said)
	}
}

// lines reads the events of a watch.
type lines struct {
	t    *testing.T
	read *bufio.Scanner
}

func (s *stage) watch(who Caller, path string) *lines {
	s.t.Helper()
	answer := s.send(who, "GET", path, nil)
	s.t.Cleanup(func() { answer.Body.Close() })
	if answer.StatusCode != http.StatusOK {
		s.t.Fatalf("watch %s: %s", path, answer.Status)
	}
	return &lines{s.t, bufio.NewScanner(answer.Body)}
}

// next gives the next event as "ADDED name", and its version.
func (l *lines) next() (what, version string) {
	l.t.Helper()
	if !l.read.Scan() {
		l.t.Fatalf("the watch ended: %v", l.read.Err())
	}
	var e struct {
		Type   string
		Object struct {
			Code     int32
			Metadata metav1.ObjectMeta
		}
	}
	if err := json.Unmarshal(l.read.Bytes(), &e); err != nil {
		l.t.Fatal(err)
	}
	if e.Type == "ERROR" {
		return fmt.Sprintf("ERROR %d", e.Object.Code), ""
	}
	return strings.TrimSpace(e.Type + " " + e.Object.Metadata.Name), e.Object.Metadata.ResourceVersion
}

func (l *lines) expect(want ...string) (version string) {
	l.t.Helper()
	for _, w := range want {
		var got string
		if got, version = l.next(); got != w {
			l.t.Fatalf("the watch says %q, want %q", got, w)
		}
	}
	return version
}

func (s *stage) control1(gvr schema.GroupVersionResource, namespace string, o *unstructured.Unstructured, how string) {
	s.t.Helper()
	api := s.control.Resource(gvr).Namespace(namespace)
	var err error
	switch how {
	case "create":
		_, err = api.Create(s.t.Context(), o, metav1.CreateOptions{})
	case "update":
		_, err = api.Update(s.t.Context(), o, metav1.UpdateOptions{})
	case "delete":
		err = api.Delete(s.t.Context(), o.GetName(), metav1.DeleteOptions{})
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// A watch tells of what comes, changes and goes, and goes on where it was.
func TestAViewIsWatched(t *testing.T) {
	s := open(t, secret("one"), bind("one", "east"), secret("two"))
	secrets := corev1.SchemeGroupVersion.WithResource("secrets")
	path := eastView + "/api/v1/secrets?watch=true&allowWatchBookmarks=true"
	w := s.watch(syncerOf("east"), path+"&sendInitialEvents=true&resourceVersionMatch=NotOlderThan")
	version := w.expect("ADDED one", "BOOKMARK")
	s.control1(v1alpha1.ResourceBindingResource, "shop", bind("two", "west", "east"), "create")
	w.expect("ADDED two")
	changed := secret("one")
	changed.Object["data"] = map[string]any{"word": "bmV3"}
	s.control1(secrets, "shop", changed, "update")
	w.expect("MODIFIED one")
	s.control1(v1alpha1.ResourceBindingResource, "shop", bind("two", "west"), "update")
	w.expect("DELETED two")

	// Whoever was away hears what is new, once.
	again := s.watch(syncerOf("east"), path+"&resourceVersion="+version)
	again.expect("MODIFIED one", "DELETED two")

	s.watch(syncerOf("east"), path+"&resourceVersion=7").expect("ERROR 410")
	if code, said := s.ask(syncerOf("east"), "GET", path+"&resourceVersion=none", nil); code != http.StatusGone {
		t.Errorf("a version that is none: %d %s", code, said)
	}
}

// A watch ends when its credential is revoked, or its cluster goes.
func TestAWatchEndsWithTheCredential(t *testing.T) {
	for what, change := range map[string]func(*stage){
		"revoked": func(s *stage) {
			c := pulling("east")
			c.SetAnnotations(map[string]string{v1alpha1.CredentialAnnotation: "another"})
			s.control1(v1alpha1.ClusterResource, "", c, "update")
		},
		"pushed": func(s *stage) {
			c := pulling("east")
			c.Object["spec"] = map[string]any{"mode": "Push"}
			s.control1(v1alpha1.ClusterResource, "", c, "update")
		},
		"gone": func(s *stage) { s.control1(v1alpha1.ClusterResource, "", pulling("east"), "delete") },
	} {
		t.Run(what, func(t *testing.T) {
			s := open(t, secret("one"), bind("one", "east"))
			w := s.watch(syncerOf("east"), eastView+"/api/v1/secrets?watch=1")
			w.expect("ADDED one")
			change(s)
			w.expect("ERROR 403")
			if code, said := s.ask(syncerOf("east"), "GET", eastView+"/api/v1/secrets", nil); code != http.StatusForbidden || strings.Contains(said, "word") {
				t.Errorf("%d %s", code, said)
			}
		})
	}
}

// What is not there was not asked for rightly, and is said so.
func TestWhatAViewRefuses(t *testing.T) {
	s := open(t, secret("mine"), secret("theirs"), bind("mine", "east"), bind("theirs", "west"), secret("free"))
	state := func(name string) map[string]any {
		return map[string]any{"state": map[string]any{"name": name, "health": "Healthy", "lastUpdateTime": "2026-01-01T00:00:00Z"}}
	}
	own := eastView + "/apis/" + apiVersion
	bound := own + "/namespaces/shop/boundobjects/"
	report := func(uid string, status map[string]any) map[string]any {
		return map[string]any{"metadata": map[string]any{"uid": uid}, "status": status}
	}
	other := syncerOf("east")
	other.Groups = []string{v1alpha1.SyncersGroup, v1alpha1.CredentialGroupPrefix + "old"}
	bare := Caller{Name: v1alpha1.SyncerUser("east")}
	anybody := Caller{Name: "jane"}
	for _, c := range []struct {
		who          Caller
		method, path string
		body         any
		code         int
	}{
		// Others' views.
		{syncerOf("east"), "GET", v1alpha1.ViewsPath + "west/api/v1/secrets", nil, 403},
		{syncerOf("east"), "GET", v1alpha1.ViewsPath + "south/api/v1/secrets", nil, 403},
		{syncerOf("east"), "GET", v1alpha1.ViewsPath + "nowhere/api", nil, 403},
		{syncerOf("east"), "POST", v1alpha1.ViewsPath + "west/credential", nil, 403},
		{syncerOf("south"), "GET", v1alpha1.ViewsPath + "south/api", nil, 403},
		{other, "GET", eastView + "/api/v1/secrets", nil, 403},
		{bare, "GET", eastView + "/api/v1/secrets", nil, 403},
		{anybody, "GET", v1alpha1.ViewsPath + "nowhere/api", nil, 404},
		// Others' objects.
		{syncerOf("east"), "GET", eastView + "/api/v1/namespaces/shop/secrets/theirs", nil, 404},
		{syncerOf("east"), "GET", eastView + "/api/v1/namespaces/shop/secrets/free", nil, 404},
		{syncerOf("east"), "GET", bound + "secret-theirs", nil, 404},
		{syncerOf("east"), "GET", own + "/clusters/west", nil, 404},
		{syncerOf("east"), "GET", own + "/boundnamespaces/kube-system", nil, 403},
		{syncerOf("east"), "GET", eastView + "/apis/" + apiVersion + "/resourcebindings", nil, 404},
		{syncerOf("east"), "GET", eastView + "/api/v1/nodes", nil, 404},
		// Paths that mean something else to somebody else.
		{syncerOf("east"), "GET", eastView + "/../west/api/v1/secrets", nil, 400},
		{syncerOf("east"), "GET", eastView + "/./api", nil, 400},
		{syncerOf("east"), "GET", eastView + "//api/v1/secrets", nil, 400},
		{syncerOf("east"), "GET", v1alpha1.ViewsPath + "/east/api", nil, 400},
		{syncerOf("east"), "GET", v1alpha1.ViewsPath + "east%2f..%2fwest/api", nil, 400},
		{syncerOf("east"), "GET", v1alpha1.ViewsPath + "%77est/api", nil, 400},
		{syncerOf("east"), "GET", eastView + "/%2e%2e/west/api", nil, 400},
		{syncerOf("east"), "GET", eastView + "/..;/west/api", nil, 400},
		{syncerOf("east"), "GET", eastView + "/api/v1/namespaces/shop/secrets/mine/log", nil, 405},
		// Writes.
		{syncerOf("east"), "PUT", eastView + "/api/v1/namespaces/shop/secrets/mine", secret("mine"), 405},
		{syncerOf("east"), "PATCH", eastView + "/api/v1/namespaces/shop/secrets/mine", map[string]any{}, 405},
		{syncerOf("east"), "DELETE", eastView + "/api/v1/namespaces/shop/secrets/mine", nil, 405},
		{syncerOf("east"), "DELETE", eastView + "/api/v1/secrets", nil, 405},
		{syncerOf("east"), "POST", eastView + "/api/v1/namespaces/shop/secrets", secret("new"), 405},
		{syncerOf("east"), "PUT", eastView + "/api/v1/namespaces/shop/secrets/mine/status", secret("mine"), 405},
		{syncerOf("east"), "PUT", bound + "secret-mine", report("uid-binding-mine", state("east")), 405},
		{syncerOf("east"), "PATCH", bound + "secret-mine/status", report("uid-binding-mine", state("east")), 405},
		{syncerOf("east"), "DELETE", bound + "secret-mine", nil, 405},
		{syncerOf("east"), "PUT", own + "/clusters/east", pulling("east"), 405},
		{syncerOf("east"), "PUT", own + "/clusters/west/status", fleet.Observation{Ready: true, Reason: "ClusterReady"}, 403},
		{syncerOf("east"), "PUT", own + "/clusters/west/halted", metav1.Condition{Type: v1alpha1.ClusterDeletionsHalted, Reason: "R"}, 403},
		{syncerOf("east"), "PUT", own + "/clusters/east/halted", metav1.Condition{Type: v1alpha1.ClusterReady, Reason: "R"}, 403},
		{syncerOf("east"), "PUT", own + "/clusters/east/status", fleet.Observation{Reason: "not a word"}, 400},
		{syncerOf("east"), "PUT", own + "/clusters/west/types", fleet.TypesReport{}, 403},
		{syncerOf("east"), "PUT", own + "/clusters/west/apigroup", fleet.GroupReport{Group: "example.com"}, 403},
		{syncerOf("east"), "POST", own + "/clusters/east/types", fleet.TypesReport{}, 405},
		{syncerOf("east"), "GET", own + "/clusters/east/types", nil, 405},
		{syncerOf("east"), "PUT", own + "/clusters/east/types", "no report", 400},
		{syncerOf("east"), "PUT", own + "/clusters/east/apigroup", "no report", 400},
		{syncerOf("east"), "PUT", own + "/resourceinterpretations/east", map[string]any{}, 405},
		{anybody, "PUT", own + "/clusters/east/types", fleet.TypesReport{}, 403},
		{anybody, "PUT", own + "/clusters/east/apigroup", fleet.GroupReport{Group: "example.com"}, 403},
		// Reports that are not its own, or not clear.
		{syncerOf("east"), "PUT", bound + "secret-mine/status", report("uid-binding-mine", state("west")), 403},
		{syncerOf("east"), "PUT", bound + "secret-theirs/status", report("uid-binding-theirs", state("east")), 404},
		{syncerOf("east"), "PUT", bound + "secret-mine/status", report("another", state("east")), 409},
		{syncerOf("east"), "PUT", bound + "secret-mine/status", report("uid-binding-mine", nil), 400},
		{syncerOf("east"), "PUT", bound + "secret-mine/status", "no report", 400},
		{anybody, "PUT", bound + "secret-mine/status", report("uid-binding-mine", state("east")), 403},
		{syncerOf("east"), "POST", bound + "secret-mine/events", Note{Type: "Loud", Reason: "R", Message: "m"}, 400},
		{syncerOf("east"), "POST", bound + "secret-theirs/events", Note{Type: "Normal", Reason: "R", Message: "m"}, 404},
		{syncerOf("east"), "GET", eastView + "/credential", nil, 405},
		{syncerOf("east"), "POST", eastView + "/credential", CredentialRequest{Request: "none"}, 400},
	} {
		if code, said := s.ask(c.who, c.method, c.path, c.body); code != c.code || code >= 400 && strings.Contains(said, "c2VjcmV0") {
			t.Errorf("%s %s %s: %d, want %d: %s", c.who.Name, c.method, c.path, code, c.code, said)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.applied {
		t.Errorf("something was written: %s %s", a.Resource, a.Patch)
	}
	if len(s.kept) > 0 {
		t.Errorf("something was kept: %s", s.kept)
	}
}

// A report becomes the cluster's own entry, and nothing besides.
func TestAReportIsTheClustersEntry(t *testing.T) {
	s := open(t, secret("both"), bind("both", "east", "west"))
	path := eastView + "/apis/" + apiVersion + "/namespaces/shop/boundobjects/secret-both/status"
	said := map[string]any{"metadata": map[string]any{"uid": "uid-binding-both", "labels": map[string]any{"a": "b"}, "finalizers": []string{}},
		"spec": map[string]any{"resource": map[string]any{"kind": "Other"}, "share": map[string]any{"name": "west"}},
		"status": map[string]any{"conditions": []any{"x"}, "state": map[string]any{"name": "east", "health": "Degraded",
			"lastUpdateTime": "1999-01-01T00:00:00Z", "status": map[string]any{"a": 1}}}}
	if code, answer := s.ask(syncerOf("east"), "PUT", path, said); code != http.StatusOK {
		t.Fatalf("%d %s", code, answer)
	}
	said["status"] = map[string]any{"removed": true}
	if code, answer := s.ask(syncerOf("east"), "PUT", path, said); code != http.StatusOK {
		t.Fatalf("%d %s", code, answer)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.applied) != 2 {
		t.Fatalf("written %d times", len(s.applied))
	}
	var got struct {
		Metadata map[string]any
		Spec     any
		Status   struct{ Clusters []v1alpha1.ClusterState }
	}
	a := s.applied[0]
	if err := json.Unmarshal(a.Patch, &got); err != nil {
		t.Fatal(err)
	}
	if a.Subresource != "status" || a.PatchOptions.FieldManager != "atoll-syncer-east" || got.Spec != nil || len(got.Metadata) != 3 {
		t.Errorf("written: %s %s as %s", a.Subresource, a.Patch, a.PatchOptions.FieldManager)
	}
	if c := got.Status.Clusters; len(c) != 1 || c[0].Name != "east" || c[0].Health != "Degraded" || time.Since(c[0].LastUpdateTime.Time) > time.Hour {
		t.Errorf("written: %s", a.Patch)
	}
	if last := string(s.applied[1].Patch); strings.Contains(last, "clusters") {
		t.Errorf("the entry is not taken out: %s", last)
	}
}

// A heartbeat is kept where one controller hears of it.
func TestAHeartbeatIsALease(t *testing.T) {
	s := open(t)
	path := eastView + "/apis/" + apiVersion + "/clusters/east/status"
	if code, answer := s.ask(syncerOf("east"), "PUT", path, fleet.Observation{Ready: true, Reason: "ClusterReady", Version: "v1.36.3"}); code != http.StatusOK {
		t.Fatalf("%d %s", code, answer)
	}
	lease, err := s.kube.CoordinationV1().Leases(v1alpha1.SystemNamespace).Get(t.Context(), v1alpha1.HeartbeatLease("east"), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	seen, err := fleet.ObservationOf(lease)
	if err != nil || !seen.Ready || seen.Version != "v1.36.3" || lease.Labels[v1alpha1.HeartbeatLabel] != "east" || lease.OwnerReferences[0].UID != "uid-east" {
		t.Errorf("%v %+v", err, lease)
	}
}

// Asking for a credential revokes those before it; renewing one does not.
func TestCredentials(t *testing.T) {
	s := open(t)
	_, request, err := NewKey("east")
	if err != nil {
		t.Fatal(err)
	}
	admin := Caller{Name: "admin"}
	get := func(who Caller, cluster string, renew bool) (int, string) {
		return s.ask(who, "POST", v1alpha1.ViewsPath+cluster+"/credential", CredentialRequest{Request: string(request), Renew: renew})
	}
	counts := func() string {
		u, err := s.control.Resource(v1alpha1.ClusterResource).Get(t.Context(), "east", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return u.GetAnnotations()[v1alpha1.CredentialAnnotation]
	}
	for _, renew := range []bool{true, false} { // a syncer only ever renews
		if code, said := get(syncerOf("east"), "east", renew); code != http.StatusOK || !strings.Contains(said, "certificate of east by good") || counts() != "good" {
			t.Errorf("the syncer renews: %d %s", code, said)
		}
	}
	if code, said := get(admin, "east", true); code != http.StatusOK || counts() != "good" {
		t.Errorf("an administrator renews: %d %s", code, said)
	}
	if code, said := get(admin, "east", false); code != http.StatusOK || counts() == "good" || !strings.Contains(said, "certificate of east by "+counts()) {
		t.Errorf("an administrator asks: %d %s", code, said)
	}
	if code, said := get(syncerOf("east"), "east", true); code != http.StatusForbidden {
		t.Errorf("who was revoked renews: %d %s", code, said)
	}
	if code, said := get(admin, "south", false); code != http.StatusConflict {
		t.Errorf("a cluster in mode Push: %d %s", code, said)
	}
	if code, said := get(admin, "nowhere", false); code != http.StatusNotFound {
		t.Errorf("no cluster: %d %s", code, said)
	}
}

// TestRequestedRemovalsAreTold to the cluster that they are about, so that its syncer
// counts none of them.
func TestRequestedRemovalsAreTold(t *testing.T) {
	moved := func(name string, requested ...any) *unstructured.Unstructured {
		b := bind(name, "east")
		spec := b.Object["spec"].(map[string]any)
		spec["clusters"] = []any{map[string]any{"name": "west", "reason": "Chosen"}}
		spec["requestedRemovals"] = requested
		return b
	}
	entry := func(cluster string) any { return map[string]any{"name": cluster, "reason": "UsersDeleted"} }
	s := open(t, secret("asked"), moved("asked", entry("east"), entry("north")), secret("moved"), moved("moved", entry("north")))
	for name, requested := range map[string]bool{"asked": true, "moved": false} {
		code, said := s.ask(syncerOf("east"), "GET", eastView+"/apis/"+apiVersion+"/namespaces/shop/boundobjects/secret-"+name, nil)
		var got BoundObject
		if err := json.Unmarshal([]byte(said), &got); err != nil || code != http.StatusOK {
			t.Fatalf("%d %s", code, said)
		}
		if !got.Leaves || got.Decided == requested {
			t.Errorf("%s leaves: %v, because of a decision: %v", name, got.Leaves, got.Decided)
		}
		if _, told := got.binding().RequestedRemoval("east"); told != requested {
			t.Errorf("%s: the syncer is told of a request: %v", name, told)
		}
		if strings.Contains(said, "north") {
			t.Errorf("%s: another cluster is named: %s", name, said)
		}
	}
}

// Whether an object is to leave is said of what is so now, and only where it is clear.
func TestLeavingIsConfirmed(t *testing.T) {
	leaves := func(s *stage, name string) bool {
		t.Helper()
		code, said := s.ask(syncerOf("east"), "GET", eastView+"/apis/"+apiVersion+"/namespaces/shop/boundobjects/secret-"+name, nil)
		var got BoundObject
		if err := json.Unmarshal([]byte(said), &got); err != nil || code != http.StatusOK {
			t.Fatalf("%d %s", code, said)
		}
		return got.Leaves
	}
	elsewhere := bind("moved", "east")
	elsewhere.Object["spec"].(map[string]any)["clusters"] = []any{map[string]any{"name": "west", "reason": "Chosen"}}
	deleted := bind("deleted", "east")
	now := metav1.Now()
	deleted.SetDeletionTimestamp(&now)
	deleted.SetFinalizers([]string{"x"})
	alone := bind("alone", "east")
	alone.SetDeletionTimestamp(&now)
	alone.SetFinalizers([]string{"x"})
	s := open(t, secret("stays"), bind("stays", "east"), secret("moved"), elsewhere, deleted, secret("alone"), alone)
	for name, want := range map[string]bool{"stays": false, "moved": true, "deleted": true, "alone": false} {
		if got := leaves(s, name); got != want {
			t.Errorf("%s leaves: %v", name, got)
		}
	}
}
