package apiserver_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kube-openapi/pkg/schemaconv"
	"k8s.io/kube-openapi/pkg/validation/spec"
	smdschema "sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"github.com/atoll-dev/atoll/apiserver"
	"github.com/atoll-dev/atoll/apiserver/kinds"
	"github.com/atoll-dev/atoll/kv/mvcc"
)

// source is a kinds.Source in memory.
type source struct {
	mu      sync.Mutex
	groups  map[string]kinds.Group
	schemas map[schema.GroupVersionKind]func() *spec.Schema
	changed chan struct{}
	synced  chan struct{}
	refused map[string]string
	opened  int // number of times that a kind has been opened
}

func newSource(groups ...kinds.Group) *source {
	s := &source{
		groups: map[string]kinds.Group{}, schemas: map[schema.GroupVersionKind]func() *spec.Schema{},
		changed: make(chan struct{}), synced: make(chan struct{}),
	}
	close(s.synced)
	s.serve(groups...)
	return s
}

// serve adds groups, or replaces those with the same name.
func (s *source) serve(groups ...kinds.Group) {
	s.change(func() {
		for _, g := range groups {
			s.groups[g.Name] = g
		}
	})
}

func (s *source) withdraw(group string) { s.change(func() { delete(s.groups, group) }) }

// describe sets a kind's schema, instead of widgetSchema.
func (s *source) describe(kind schema.GroupVersionKind, schema func() *spec.Schema) {
	s.change(func() { s.schemas[kind] = schema })
}

func (s *source) change(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do()
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *source) Groups() []kinds.Group {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.groups))
}

func (s *source) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

func (s *source) Synced() <-chan struct{} { return s.synced }

func (s *source) Refused(reasons map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused = reasons
}

func (s *source) reason(group string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refused[group]
}

func (s *source) times() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.opened
}

func (s *source) Schema(kind schema.GroupVersionKind) (*spec.Schema, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if describe := s.schemas[kind]; describe != nil {
		return describe(), nil
	}
	return widgetSchema(), nil
}

func (s *source) Open(kind schema.GroupVersionKind) (kinds.Definition, error) {
	described, err := s.Schema(kind)
	if err != nil {
		return kinds.Definition{}, err
	}
	s.mu.Lock()
	s.opened++
	s.mu.Unlock()
	merged, err := typeOf(described)
	return kinds.Definition{
		Type: merged,
		Columns: []kinds.Column{
			{Name: "Size", Type: "integer", JSONPath: ".spec.size"},
			{Name: "Phase", Type: "string", JSONPath: ".status.phase", Priority: 1},
			{Name: "Age", Type: "date", JSONPath: ".metadata.creationTimestamp"},
		},
		Prepare: func(_ context.Context, _, object *unstructured.Unstructured) {
			if _, ok, _ := unstructured.NestedFieldNoCopy(object.Object, "spec", "color"); !ok {
				_ = unstructured.SetNestedField(object.Object, "blue", "spec", "color")
			}
		},
		Validate: func(_ context.Context, old, object *unstructured.Unstructured) (field.ErrorList, []string) {
			size, _, _ := unstructured.NestedInt64(object.Object, "spec", "size")
			before, _, _ := unstructured.NestedInt64(orEmpty(old), "spec", "size")
			switch {
			case size > 1000:
				return field.ErrorList{field.Invalid(field.NewPath("spec", "size"), size, "at most 1000")}, nil
			case size < before:
				return field.ErrorList{field.Forbidden(field.NewPath("spec", "size"), "widgets do not shrink")}, nil
			case size > 100:
				return nil, []string{"spec.size: this is large"}
			}
			return nil, nil
		},
	}, err
}

func orEmpty(u *unstructured.Unstructured) map[string]any {
	if u == nil {
		return nil
	}
	return u.Object
}

// typeOf returns the type of whole objects of a kind with that schema.
func typeOf(described *spec.Schema) (typed.ParseableType, error) {
	const name = "object"
	described.Type = spec.StringOrArray{"object"}
	described.SetProperty("apiVersion", *spec.StringProperty())
	described.SetProperty("kind", *spec.StringProperty())
	anything := spec.Schema{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{"object"}}}
	anything.AddExtension("x-kubernetes-preserve-unknown-fields", true)
	described.SetProperty("metadata", anything)
	merged, err := schemaconv.ToSchemaFromOpenAPI(map[string]*spec.Schema{name: described}, false)
	if err != nil {
		return typed.ParseableType{}, fmt.Errorf("make the type: %w", err)
	}
	parser := typed.Parser{Schema: smdschema.Schema{Types: merged.Types}}
	return parser.Type(name), nil
}

func widgetSchema() *spec.Schema {
	integer := spec.Schema{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{"integer"}, Description: "How large the widget is."}}
	part := *object(map[string]spec.Schema{"name": *spec.StringProperty(), "weight": integer})
	parts := *spec.ArrayProperty(&part)
	parts.AddExtension("x-kubernetes-list-type", "map")
	parts.AddExtension("x-kubernetes-list-map-keys", []any{"name"})
	return object(map[string]spec.Schema{
		"spec": *object(map[string]spec.Schema{
			"size": integer, "color": *spec.StringProperty(), "parts": parts,
			"labels": {SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{"object"}, AdditionalProperties: &spec.SchemaOrBool{Schema: spec.StringProperty()}}},
		}),
		"status": *object(map[string]spec.Schema{"phase": *spec.StringProperty()}),
	})
}

func object(properties map[string]spec.Schema) *spec.Schema {
	return &spec.Schema{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{"object"}, Properties: properties}}
}

// kindNames returns the usual names of a kind.
func kindNames(kind string) kinds.Names {
	singular := strings.ToLower(kind)
	return kinds.Names{Kind: kind, Singular: singular, Plural: singular + "s", Status: true}
}

// shops returns two groups with three kinds: a namespaced one, a cluster-scoped one,
// and one without a status.
func shops() []kinds.Group {
	widget := kindNames("Widget")
	widget.ShortNames, widget.Categories = []string{"wd"}, []string{"things"}
	region := kindNames("Region")
	region.ClusterScoped = true
	plain := kindNames("Plain")
	plain.Status = false
	return []kinds.Group{
		{Name: "shop.example.com", Versions: []kinds.Version{{Name: "v1", Revision: "1", Kinds: []kinds.Names{widget, plain}}}},
		{Name: "world.example.com", Versions: []kinds.Version{{Name: "v2", Revision: "1", Kinds: []kinds.Names{region}}}},
	}
}

// servedBySource returns Config.Kinds for a source.
func servedBySource(s kinds.Source) func(apiserver.ChainEnd) apiserver.KindServer {
	return func(end apiserver.ChainEnd) apiserver.KindServer { return kinds.New(s, kinds.ChainEnd(end)) }
}

// serveKinds starts a server with a source.
func serveKinds(t *testing.T, s kinds.Source, with apiserver.Config) running {
	t.Helper()
	keyspace, _ := openKeyspace(t, inSQLite, mvcc.Options{})
	with.Kinds = servedBySource(s)
	server := startServer(t, keyspace, with, "sole")
	t.Cleanup(func() {
		if err := server.stop(); err != nil {
			t.Error(err)
		}
	})
	return server
}
