package imports

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"unique"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/schema"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// transport passes a syncer's reports to the ReportStore, as a view does.
type transport struct {
	s       *fixture
	cluster string

	mu     sync.Mutex
	groups []string // reported groups
}

func (c *transport) joined() *v1alpha1.Cluster {
	cluster, _ := c.s.session.Clusters.Get(c.cluster)
	return cluster
}

func (c *transport) ReportTypes(ctx context.Context, said fleet.TypesReport) (fleet.TypesWanted, error) {
	return ReportStore{}.StoreTypes(ctx, c.s.session, c.joined(), said)
}

func (c *transport) ReportGroup(ctx context.Context, said fleet.GroupReport) error {
	c.mu.Lock()
	c.groups = append(c.groups, said.Group)
	c.mu.Unlock()
	return ReportStore{}.StoreGroup(ctx, c.s.session, c.joined(), said)
}

func (c *transport) reported() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.groups)
}

// unattended changes a cluster to mode Pull; the test acts as its syncer.
func (s *fixture) unattended(cluster string) *transport {
	s.t.Helper()
	s.control.Change(v1alpha1.ClusterResource, "", cluster, func(u *unstructured.Unstructured) { u.Object["spec"] = map[string]any{"mode": "Pull"} })
	fakeapi.Eventually(s.t, "it is in mode Pull", func() error {
		if c, ok := s.session.Clusters.Get(cluster); !ok || !c.InPullMode() {
			return errors.New("it is not")
		}
		return nil
	})
	return &transport{s: s, cluster: cluster}
}

// pulling changes a cluster to mode Pull and runs a reporter for it.
func (s *fixture) pulling(cluster string) *transport {
	s.t.Helper()
	c := s.unattended(cluster)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- reportOver(ctx, cluster, s.members[cluster].clients(), clock.RealClock{}, slog.New(slog.DiscardHandler), c)
	}()
	s.t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			s.t.Error(err)
		}
	})
	return c
}

// TestReportedTypesAreImported: the types that the syncer of a cluster in mode Pull reports are
// imported, negotiated and deleted like those of other clusters.
func TestReportedTypesAreImported(t *testing.T) {
	s := newFixture(t, []string{"east", "far"})
	imports := v1alpha1.APIResourceImportResource
	c := s.pulling("far")
	s.members["far"].documents.serve(deployments("replicas"))
	s.serve("east", colour+", "+size)
	s.wantCondition(imports, importIn("east"), "Available", "True", "Served", "")
	s.serve("far", colour)
	s.wantCondition(imports, importIn("far"), "Available", "True", "Served", "")
	s.wantCondition(imports, importIn("far"), "Compatible", "True", "SchemaAccepted", "")
	fakeapi.Eventually(t, "both imports are equal", func() error {
		return equalImports(s, importIn("east"), importIn("far"), "groupVersion", "names", "scope", "source", "subResources")
	})
	// Fields that the cluster lacks are found as well.
	obj := deployment(map[string]any{"replicas": int64(3), "rollback": int64(1)})
	fakeapi.Eventually(t, "its fields are known", func() error {
		if gap, known := lacks(s.fields, "far", obj); !known || gap == nil || gap.Reason != schema.UnknownFields || gap.Fields[0] != ".spec.rollback" {
			return fmt.Errorf("%v, %v", gap, known)
		}
		return nil
	})
	// Without a controller, the stored reports yield the same.
	learnt := NewFields()
	if err := learnt.ReadReports(t.Context(), []*v1alpha1.Cluster{c.joined()}, s.control.Dynamic()); err != nil {
		t.Error(err)
	}
	if gap, known := lacks(learnt, "far", obj); !known || gap == nil || gap.Fields[0] != ".spec.rollback" {
		t.Errorf("a preview reads %v, %v", gap, known)
	}
	fakeapi.Eventually(t, "the Cluster's status counts the import", func() error { return s.imported("far", 1) })

	// Only changes are sent, and a deleted import is recreated.
	before := len(c.reported())
	s.serve("far", colour+", "+size)
	fakeapi.Eventually(t, "the change is imported", func() error { return hasSize(s, importIn("far")) })
	for _, group := range c.reported()[before:] {
		if group != "example.com" {
			t.Errorf("group %s was sent again because another changed", group)
		}
	}
	s.control.Delete(imports, "", importIn("far"))
	s.wantCondition(imports, importIn("far"), "Compatible", "True", "SchemaAccepted", "")

	// A cluster that cannot be read may still serve its types.
	s.members["far"].documents.setFailing(true)
	s.unserve("far")
	s.wantCondition(imports, importIn("far"), "Available", "True", "LastKnown", "status.types.message")
	s.members["far"].documents.setFailing(false)
	s.serve("far", colour)
	s.wantCondition(imports, importIn("far"), "Available", "True", "Served", "")
	s.unserve("far")
	s.wantAbsent(imports, importIn("far"))
	fakeapi.Until(t, "its report is deleted", func() bool {
		return s.control.Get(configMaps(), v1alpha1.SystemNamespace, v1alpha1.GroupReportName("far", "example.com")) == nil
	})
}

func hasSize(s *fixture, name string) error {
	u, err := s.get(v1alpha1.APIResourceImportResource, name)
	if err != nil {
		return err
	}
	if _, found, _ := unstructured.NestedMap(u.Object, "spec", "openAPIV3Schema", "properties", "spec", "properties", "size"); !found {
		return errors.New("there is no size")
	}
	return nil
}

func equalImports(s *fixture, one, other string, fields ...string) error {
	a, err := s.get(v1alpha1.APIResourceImportResource, one)
	if err != nil {
		return err
	}
	b, err := s.get(v1alpha1.APIResourceImportResource, other)
	if err != nil {
		return err
	}
	for _, f := range fields {
		x, _, _ := unstructured.NestedFieldNoCopy(a.Object, "spec", f)
		y, _, _ := unstructured.NestedFieldNoCopy(b.Object, "spec", f)
		if fmt.Sprint(x) != fmt.Sprint(y) {
			return fmt.Errorf("%s: %v and %v", f, x, y)
		}
	}
	return nil
}

// TestReportsArePublishedByPolicyAlone: types of groups without CRDs are imported only if a
// policy names the group in full, whatever a syncer reports. A policy that is created later
// takes effect.
func TestReportsArePublishedByPolicyAlone(t *testing.T) {
	s := newFixture(t, []string{"far"})
	c := s.unattended("far") // otherwise a report of the syncer itself could overwrite this one
	typ := func(plural, kind string, source v1alpha1.SchemaSource) contentType {
		out := contentType{Source: source, Spec: v1alpha1.CommonAPIResourceSpec{GroupVersion: v1alpha1.GroupVersion{Group: "lies.example.com", Version: "v1"},
			Scope: "Namespaced", TypeNames: v1alpha1.TypeNames{Plural: plural, Kind: kind}}}
		out.Spec.OpenAPIV3Schema.Raw = []byte(`{"type":"object"}`)
		return out
	}
	send(t, c, "lies.example.com", &content{Types: []contentType{typ("lies", "Lie", v1alpha1.FromOpenAPI), typ("truths", "Truth", v1alpha1.FromCRD)}})
	fakeapi.Eventually(t, "only the type with a CRD is imported", func() error { return s.imported("far", 1) })
	s.wantAbsent(v1alpha1.APIResourceImportResource, "lies.far.v1.lies.example.com")
	s.wantCondition(v1alpha1.NegotiatedAPIResourceResource, "truths.v1.lies.example.com", "Published", "False", "NotRequested", "")
	s.control.Put(s.read(`{apiVersion: fleet.atoll.dev/v1alpha1, kind: TypePolicy, metadata: {name: apps}, spec: {groups: [lies.example.com]}}`))
	s.wantCondition(v1alpha1.APIResourceImportResource, "lies.far.v1.lies.example.com", "Available", "True", "Served", "")
	wanted, err := c.ReportTypes(t.Context(), fleet.TypesReport{Others: []string{"apps", "lies.example.com", "fleet.atoll.dev"}})
	if err != nil || fmt.Sprint(wanted.InFull) != "[lies.example.com]" {
		t.Errorf("wanted in full: %v, %v", wanted.InFull, err)
	}
}

// imported checks how many types of a cluster are imported.
func (s *fixture) imported(cluster string, want int64) error {
	u, err := s.get(v1alpha1.ClusterResource, cluster)
	if err != nil {
		return err
	}
	if n, _, _ := unstructured.NestedInt64(u.Object, "status", "types", "imported"); n != want {
		return fmt.Errorf("%d types are imported", n)
	}
	return nil
}

func packed(t *testing.T, in any) []byte {
	t.Helper()
	data, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// send reports exactly one group.
func send(t *testing.T, c *transport, group string, in *content) {
	t.Helper()
	data, digest, err := in.pack()
	if err == nil {
		_, err = c.ReportTypes(t.Context(), fleet.TypesReport{Groups: map[string]fleet.GroupDigest{group: {Digest: digest, Size: len(data)}}})
	}
	if err == nil {
		err = c.ReportGroup(t.Context(), fleet.GroupReport{Group: group, Content: data})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestInvalidReportsAreRejected: an invalid report is rejected, and no part of it is stored.
func TestInvalidReportsAreRejected(t *testing.T) {
	s := newFixture(t, []string{"far"})
	c := s.unattended("far")
	typ := func(change func(*contentType)) *content {
		out := contentType{Source: v1alpha1.FromCRD, Spec: v1alpha1.CommonAPIResourceSpec{GroupVersion: v1alpha1.GroupVersion{Group: "example.com", Version: "v1"},
			Scope: "Namespaced", TypeNames: v1alpha1.TypeNames{Plural: "widgets", Kind: "Widget"}}}
		out.Spec.OpenAPIV3Schema.Raw = []byte(`{"type":"object"}`)
		change(&out)
		return &content{Types: []contentType{out}}
	}
	of := func(group string) func(*contentType) {
		return func(c *contentType) { c.Spec.GroupVersion.Group = group }
	}
	for name, tt := range map[string]struct {
		group string
		in    any
		says  string
	}{
		"of another group":        {"example.com", typ(of("other.com")), "and not of"},
		"of Atoll":                {"fleet.atoll.dev", typ(of("fleet.atoll.dev")), "Atoll's own"},
		"of Kubernetes, by a CRD": {"apps", typ(of("apps")), "built into Kubernetes"},
		"without a source":        {"example.com", typ(func(c *contentType) { c.Source = "" }), "source"},
		"with a path for a name":  {"example.com", typ(func(c *contentType) { c.Spec.Plural = "../x" }), "invalid type name"},
		"with no kind":            {"example.com", typ(func(c *contentType) { c.Spec.Kind = "" }), "invalid type name"},
		"without a version":       {"example.com", typ(func(c *contentType) { c.Spec.GroupVersion.Version = "" }), "invalid type name"},
		"with a broken schema":    {"example.com", typ(func(c *contentType) { c.Spec.OpenAPIV3Schema.Raw = []byte(`{"type":1}`) }), "schema"},
		"fields of a custom kind": {"example.com", map[string]any{"kinds": map[string]any{"v1": map[string]any{"Widget": map[string]any{}}}}, "must not be reported"},
		"no object":               {"example.com", "x", "JSON"},
		"too much, packed small":  {"example.com", strings.Repeat("x", maxUnpackedGroupBytes+1), "larger than"},
	} {
		err := c.ReportGroup(t.Context(), fleet.GroupReport{Group: tt.group, Content: packed(t, tt.in)})
		if !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	good, digest, err := typ(func(*contentType) {}).pack()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.ReportGroup(t.Context(), fleet.GroupReport{Group: "example.com", Content: good}); !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), "not listed") {
		t.Errorf("content of an unlisted group: %v", err)
	}
	if err := c.ReportGroup(t.Context(), fleet.GroupReport{Group: "example.com", Content: make([]byte, maxGroupBytes+1)}); !apierrors.IsBadRequest(err) {
		t.Errorf("too much: %v", err)
	}
	many := map[string]fleet.GroupDigest{}
	for i := range maxGroups + 1 {
		many[fmt.Sprint(i)] = fleet.GroupDigest{Digest: digest}
	}
	large := map[string]fleet.GroupDigest{}
	for i := range maxReportBytes/maxGroupBytes + 1 {
		large[fmt.Sprint(i)] = fleet.GroupDigest{Digest: digest, Size: maxGroupBytes}
	}
	for name, groups := range map[string]map[string]fleet.GroupDigest{
		"many": many, "large together": large, "negative": {"a": {Size: -1}}, "large": {"a": {Size: maxGroupBytes + 1}},
		"long name": {strings.Repeat("a", 254): {}}, "long digest": {"a": {Digest: strings.Repeat("a", 65)}},
	} {
		if _, err := c.ReportTypes(t.Context(), fleet.TypesReport{Groups: groups}); !apierrors.IsBadRequest(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if stored := s.control.List(configMaps()); len(stored) > 0 {
		t.Errorf("%d reports are stored", len(stored))
	}
}

// TestUnreadableTypesAreKept: a syncer that cannot read its cluster reports an empty list of
// groups, which does not mean that the cluster serves nothing.
func TestUnreadableTypesAreKept(t *testing.T) {
	l := newReportCache()
	trouble := &report{list: &fleet.TypesReport{Message: "no"}}
	if seen, documents := l.read("far", "1", trouble, nil); seen.complete || seen.err == nil || documents != nil {
		t.Errorf("at first: %+v, %v", seen, documents)
	}
	content, digest, err := (&content{Kinds: map[string]map[string]*schema.Props{"v1": {"Deployment": {Type: "object"}}}}).pack()
	if err != nil {
		t.Fatal(err)
	}
	list := &report{list: &fleet.TypesReport{Groups: map[string]fleet.GroupDigest{"apps": {Digest: digest, Size: len(content)}}}}
	parts := map[string]*report{"apps": {group: "apps", content: unique.Make(string(content))}}
	if seen, documents := l.read("far", "2", list, parts); !seen.complete || seen.err != nil || documents[appsV1] == nil {
		t.Errorf("when it was read: %+v, %v", seen, documents)
	}
	if seen, documents := l.read("far", "3", trouble, parts); !seen.complete || seen.err == nil || documents != nil {
		t.Errorf("when it cannot be read any more: %+v, %v", seen, documents)
	}
	if seen, documents := l.read("far", "4", list, nil); !seen.complete || seen.err == nil || documents != nil {
		t.Errorf("while nothing has arrived: %+v, %v", seen, documents)
	}
	l.forget("far")
	if len(l.groups) > 0 {
		t.Error("content of a removed cluster is left")
	}
}

// TestReportsAreDeletedWithModePull: the reports of a cluster that leaves mode Pull are deleted.
func TestReportsAreDeletedWithModePull(t *testing.T) {
	s := newFixture(t, []string{"far"})
	c := s.unattended("far")
	typ := contentType{Source: v1alpha1.FromCRD, Spec: v1alpha1.CommonAPIResourceSpec{GroupVersion: v1alpha1.GroupVersion{Group: "example.com", Version: "v1"},
		Scope: "Namespaced", TypeNames: v1alpha1.TypeNames{Plural: "widgets", Kind: "Widget"}}}
	typ.Spec.OpenAPIV3Schema.Raw = []byte(`{"type":"object"}`)
	send(t, c, "example.com", &content{Types: []contentType{typ}})
	s.wantCondition(v1alpha1.APIResourceImportResource, importIn("far"), "Available", "True", "Served", "")
	// An invalid report is rejected and changes nothing.
	broken := []byte("{}")
	_, err := c.ReportTypes(t.Context(), fleet.TypesReport{Groups: map[string]fleet.GroupDigest{"example.com": {Digest: digestOfContent(broken), Size: 2}}, Message: "it cannot be read"})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.ReportGroup(t.Context(), fleet.GroupReport{Group: "example.com", Content: broken}); !apierrors.IsBadRequest(err) {
		t.Errorf("content that cannot be decompressed: %v", err)
	}
	s.control.Change(v1alpha1.ClusterResource, "", "far", func(u *unstructured.Unstructured) { u.Object["spec"] = newCluster("far", true).Object["spec"] })
	fakeapi.Eventually(t, "all reports are deleted", func() error {
		if left := s.control.List(configMaps()); len(left) > 0 {
			return fmt.Errorf("%d are left", len(left))
		}
		return nil
	})
	s.wantAbsent(v1alpha1.APIResourceImportResource, importIn("far"))
}

// TestReportsOfRecreatedCluster: the reports of a cluster do not apply to a new one of
// the same name.
func TestReportsOfRecreatedCluster(t *testing.T) {
	s := newFixture(t, []string{"far"})
	c := s.pulling("far")
	s.serve("far", colour)
	s.wantCondition(v1alpha1.APIResourceImportResource, importIn("far"), "Available", "True", "Served", "")
	next := c.joined().DeepCopy()
	next.UID = "another"
	seen, _, _ := (&controller{Session: s.session, reports: s.reports(t)}).reportsOf(next)
	if seen != nil {
		t.Errorf("the new cluster has the report %+v", seen)
	}
	if digest, stored := storedDigest(s.session, next, "example.com"); stored {
		t.Errorf("the new cluster has the stored digest %s", digest)
	}
	fakeapi.Eventually(t, "the existing cluster has a stored digest", func() error {
		if _, stored := storedDigest(s.session, c.joined(), "example.com"); !stored {
			return errors.New("there is no digest")
		}
		return nil
	})
}

// reports returns a cache of the stored reports.
func (s *fixture) reports(t *testing.T) controllers.Cache[report] {
	i := watchReports(s.control.Dynamic())
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); i.Informer.RunWithContext(ctx) }()
	t.Cleanup(func() { stop(); <-done })
	fakeapi.Eventually(t, "the reports are read", func() error {
		if len(i.By(byLocation, "far")) == 0 {
			return errors.New("there are none")
		}
		return nil
	})
	return i
}
