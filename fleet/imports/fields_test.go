package imports

import (
	"context"
	"crypto/sha512"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kschema "k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/atoll-dev/atoll/fleet/schema"
)

var appsV1 = kschema.GroupVersion{Group: "apps", Version: "v1"}

// fakeDocuments is the document source of a member. It counts the reads.
type fakeDocuments struct {
	at    map[kschema.GroupVersion]string // addresses
	texts map[string]string               // by address
	reads int

	mu      sync.Mutex
	failing bool
}

func (p *fakeDocuments) setFailing(failing bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failing = failing
}

// serve replaces the document.
func (p *fakeDocuments) serve(text string) {
	other := serving(text)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.at, p.texts = other.at, other.texts
}

func (p *fakeDocuments) index(context.Context) (map[kschema.GroupVersion]string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failing {
		return nil, errors.New("no answer")
	}
	return p.at, nil
}

func (p *fakeDocuments) document(_ context.Context, address string) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reads++
	if text, ok := p.texts[address]; ok {
		return []byte(text), nil
	}
	return nil, errors.New("no such document")
}

func (p *fakeDocuments) resources(_ context.Context, gv kschema.GroupVersion) (*metav1.APIResourceList, error) {
	return &metav1.APIResourceList{GroupVersion: gv.String(), APIResources: []metav1.APIResource{
		{Name: "deployments", SingularName: "deployment", Namespaced: true, Kind: "Deployment", ShortNames: []string{"deploy"}, Verbs: []string{"create", "get", "watch"}},
		{Name: "deployments/scale", Kind: "Scale", Verbs: []string{"get"}},
		{Name: "lookups", Kind: "Lookup", Verbs: []string{"create"}},
	}}, nil
}

// deployments returns a document in which the spec of Deployments has these fields.
func deployments(fields ...string) string {
	properties := ""
	for _, f := range fields {
		properties += fmt.Sprintf("%s: {type: integer}, ", f)
	}
	data, err := yaml.YAMLToJSON([]byte(`{openapi: 3.0.0, info: {title: Kubernetes, version: v1}, paths: {}, components: {schemas: {io.k8s.api.apps.v1.Deployment: {
type: object, x-kubernetes-group-version-kind: [{group: apps, version: v1, kind: Deployment}],
properties: {apiVersion: {type: string}, kind: {type: string}, spec: {type: object, properties: {` + properties + `}}}}}}}`))
	if err != nil {
		panic(err)
	}
	return string(data)
}

// serving returns a source with one document, at an address with its digest.
func serving(text string) *fakeDocuments {
	address := fmt.Sprintf("/openapi/v3/apis/apps/v1?hash=%X", sha512.Sum512([]byte(text)))
	return &fakeDocuments{at: map[kschema.GroupVersion]string{appsV1: address}, texts: map[string]string{address: text}}
}

func pullInto(t *testing.T, f *Fields, name string, p *fakeDocuments) {
	t.Helper()
	index, err := p.index(t.Context())
	if err == nil {
		_, err = f.refresh(t.Context(), name, p, index)
	}
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

func deployment(spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apps/v1", "kind": "Deployment",
		"metadata": map[string]any{"name": "web"}, "spec": spec, "status": map[string]any{"news": int64(1)}}}
}

// lacks returns what one member lacks, and whether the member is known.
func lacks(f *Fields, cluster string, obj *unstructured.Unstructured) (*schema.Gap, bool) {
	return f.Gaps(obj)[cluster], f.Known(cluster)
}

func TestGapsOfMembers(t *testing.T) {
	f := NewFields()
	var notified []string
	cancel := f.OnChange(func(cluster string) { notified = append(notified, cluster) })
	old, young := serving(deployments("replicas")), serving(deployments("replicas", "rollback"))
	obj := deployment(map[string]any{"replicas": int64(3), "rollback": int64(1)})

	if gap, known := lacks(f, "east", obj); gap != nil || known {
		t.Errorf("before east was read: %v, %v", gap, known)
	}
	pullInto(t, f, "east", old)
	pullInto(t, f, "west", young)
	pullInto(t, f, "bare", &fakeDocuments{})
	gap, known := lacks(f, "east", obj)
	if !known || gap == nil || gap.Reason != schema.UnknownFields || !slices.Equal(gap.Fields, []string{".spec.rollback"}) || !strings.HasPrefix(gap.Message, "does not know .spec.rollback of Deployment") {
		t.Errorf("east: %+v, %v", gap, known)
	}
	if gap, known := lacks(f, "west", obj); gap != nil || !known {
		t.Errorf("west: %+v, %v", gap, known)
	}
	if gap, _ := lacks(f, "bare", obj); gap == nil || gap.Reason != schema.TypeNotServed {
		t.Errorf("bare: %+v", gap)
	}
	gaps := f.Gaps(obj)
	if len(gaps) != 2 || gaps["east"].Message != gap.Message || gaps["bare"].Reason != schema.TypeNotServed {
		t.Errorf("gaps: %v", gaps)
	}
	widget := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Widget"}}
	if gaps := f.Gaps(widget); gaps != nil {
		t.Errorf("gaps of a kind that is not built in: %v", gaps)
	}

	// A member of the same release is known without a read.
	twin := &fakeDocuments{at: old.at}
	pullInto(t, f, "twin", twin)
	if gap, _ := lacks(f, "twin", obj); gap == nil || twin.reads != 0 {
		t.Errorf("twin: %v after %d reads", gap, twin.reads)
	}
	// A member that announces a wrong digest affects only itself.
	liar := &fakeDocuments{at: map[kschema.GroupVersion]string{appsV1: "/openapi/v3/apis/apps/v1?hash=F00"},
		texts: map[string]string{"/openapi/v3/apis/apps/v1?hash=F00": deployments("replicas", "lies")}}
	pullInto(t, f, "liar", liar)
	honest := &fakeDocuments{at: liar.at, texts: map[string]string{"/openapi/v3/apis/apps/v1?hash=F00": deployments("replicas", "rollback")}}
	pullInto(t, f, "honest", honest)
	if gap, _ := lacks(f, "honest", obj); gap != nil || honest.reads != 1 {
		t.Errorf("honest: %v after %d reads", gap, honest.reads)
	}

	// An upgrade notifies; a failed read does not, and changes nothing.
	notified = nil
	pullInto(t, f, "east", young)
	pullInto(t, f, "east", young)
	if gap, _ := lacks(f, "east", obj); gap != nil || !slices.Equal(notified, []string{"east"}) {
		t.Errorf("after the upgrade: %v, notified of %v", gap, notified)
	}
	other := &fakeDocuments{at: map[kschema.GroupVersion]string{appsV1: "/other"}}
	if _, err := f.refresh(t.Context(), "east", other, other.at); err == nil {
		t.Error("no error for a document that cannot be read")
	}
	if gap, known := lacks(f, "east", obj); gap != nil || !known {
		t.Errorf("after a failure: %v, %v", gap, known)
	}
	cancel()
	f.forget("east")
	if _, known := lacks(f, "east", obj); known {
		t.Error("east is still known after it was removed")
	}
	for _, name := range []string{"west", "twin", "liar", "honest", "bare"} {
		f.forget(name)
	}
	if len(f.shared) != 0 || !slices.Equal(notified, []string{"east"}) {
		t.Errorf("%d unused documents are kept; notified of %v", len(f.shared), notified)
	}
}

// BenchmarkGaps measures the check that each scheduling decision makes, with a thousand members
// of three releases. One release lacks a field.
func BenchmarkGaps(b *testing.B) {
	f := NewFields()
	kinds := func(fields ...string) *document {
		known, err := kindsOf([]byte(deployments(fields...)), appsV1)
		if err != nil {
			b.Fatal(err)
		}
		return &document{digest: strings.Join(fields, ","), kinds: known}
	}
	releases := []*document{kinds("replicas", "rollback"), kinds("replicas", "rollback", "more"), kinds("replicas")}
	for i := range 1000 {
		f.set(fmt.Sprint("c", i), map[kschema.GroupVersion]*document{appsV1: releases[i%10/4]})
	}
	obj := deployment(map[string]any{"replicas": int64(3), "rollback": int64(1)})
	for b.Loop() {
		if n := len(f.Gaps(obj)); n != 200 {
			b.Fatalf("%d members lack something", n)
		}
	}
}

func TestControlPlaneDefaultsAreNotGaps(t *testing.T) {
	job := func(policy string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"kind": "Job", "spec": map[string]any{"podReplacementPolicy": policy}}}
	}
	if !isDefault("Job", ".spec.podReplacementPolicy", job("TerminatingOrFailed")) || isDefault("Job", ".spec.podReplacementPolicy", job("Failed")) {
		t.Error("podReplacementPolicy")
	}
	set := func(scaled string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"kind": "StatefulSet", "spec": map[string]any{
			"persistentVolumeClaimRetentionPolicy": map[string]any{"whenDeleted": "Retain", "whenScaled": scaled}}}}
	}
	const path = ".spec.persistentVolumeClaimRetentionPolicy"
	if !isDefault("StatefulSet", path, set("Retain")) || isDefault("StatefulSet", path, set("Delete")) {
		t.Error("persistentVolumeClaimRetentionPolicy")
	}
}

func TestTypesInDocuments(t *testing.T) {
	p := serving(deployments("replicas"))
	w := documentTypes{}
	found, err := w.read(t.Context(), p, appsV1, p.at[appsV1])
	if err != nil {
		t.Fatal(err)
	}
	if len(found) != 1 || found[0].spec.Plural != "deployments" || found[0].spec.Kind != "Deployment" || found[0].spec.Scope != "Namespaced" || found[0].spec.ListKind != "DeploymentList" {
		t.Fatalf("found %+v", found)
	}
	typ, err := typeOf(&found[0].spec, found[0].spec.OpenAPIV3Schema.Raw)
	if err != nil || typ.Schema.Properties["spec"].Properties["replicas"].Type != "integer" {
		t.Errorf("%+v, %v", typ, err)
	}
	if _, err := w.read(t.Context(), p, appsV1, p.at[appsV1]); err != nil || p.reads != 1 {
		t.Errorf("the unchanged document was read %d times, %v", p.reads, err)
	}
	w.retain(nil)
	if len(w) != 0 {
		t.Error("types that are no longer served are kept")
	}
}

func TestVersionsInAnIndex(t *testing.T) {
	for path, want := range map[string]string{
		"api/v1": "v1", "apis/apps/v1": "apps/v1", "apis/example.com/v1beta1": "example.com/v1beta1",
		"api": "", "apis": "", "apis/apps": "", "version": "", ".well-known/openid-configuration": "", "openid/v1/jwks": "", "apis/a/b/c": "",
	} {
		gv, ok := versionOf(path)
		if ok != (want != "") || ok && gv.String() != want {
			t.Errorf("%s: %s, %v; want %q", path, gv, ok, want)
		}
	}
}

// slow is a document source that responds once answer is closed.
type slow struct {
	*fakeDocuments
	asked  *atomic.Int32
	answer chan struct{}
}

func (s slow) document(ctx context.Context, address string) ([]byte, error) {
	s.asked.Add(1)
	select {
	case <-s.answer:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return s.fakeDocuments.document(ctx, address)
}

// TestConcurrentReadsShareDocuments: the documents that many members of one release share are read from a
// few of them.
func TestConcurrentReadsShareDocuments(t *testing.T) {
	f := NewFields()
	member := slow{fakeDocuments: serving(deployments("replicas")), asked: &atomic.Int32{}, answer: make(chan struct{})}
	var all sync.WaitGroup
	for i := range 10 * maxConcurrentReads {
		all.Go(func() {
			if _, err := f.refresh(t.Context(), fmt.Sprintf("member-%d", i), member, member.at); err != nil {
				t.Error(err)
			}
		})
	}
	for member.asked.Load() < maxConcurrentReads && t.Context().Err() == nil {
		runtime.Gosched()
	}
	close(member.answer)
	all.Wait()
	if read := member.asked.Load(); read != maxConcurrentReads {
		t.Errorf("%d reads", read)
	}
	if !f.Known("member-0") || len(f.shared) != 1 {
		t.Errorf("%d documents are known", len(f.shared))
	}
}
