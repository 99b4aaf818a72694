package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/zclconf/go-cty/cty"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/plugin"
	"github.com/atoll-dev/atoll/infra/providerapi"
	infraschema "github.com/atoll-dev/atoll/infra/schema"
	"github.com/atoll-dev/atoll/playground/atoll"
)

// The two ways to serve a provider's types.
const (
	asKinds = "kinds of a Provider"
	asCRDs  = "CustomResourceDefinitions"
)

// wideProvider is the test provider with many types. typesTimeout is the timeout until all are served.
const (
	wideProvider = "wide"
	typesTimeout = 90 * time.Minute
)

// typesRun holds the measurements of a server before and after it serves a provider's types.
type typesRun struct {
	As    string `json:"as"`
	Types int    `json:"types"`
	// Served is the time until discovery lists all types, and CPU the server's CPU time meanwhile.
	Served float64 `json:"served_s"`
	CPU    float64 `json:"cpu_s"`
	// MiB before, with all types served, and after the group's OpenAPI document was read and an object applied.
	BeforeHeap, BeforeRSS float64
	ServedHeap, ServedRSS float64
	UsedHeap, UsedRSS     float64
	// Document and Apply are the durations of these two, the first time.
	Document, Apply float64
	DocumentMiB     float64
}

// builtProvider is a provider in a mirror.
type builtProvider struct {
	Source, Version, ZH, H1, Unpacked string
}

// measureTypes measures both ways to serve the same types, each on a server of its own.
func (r *report) measureTypes(ctx context.Context, o options, dir string) error {
	mirror := filepath.Join(dir, "mirror")
	built, err := buildProviders(ctx, mirror, wideProvider)
	if err != nil {
		return err
	}
	catalog, err := catalogOf(ctx, built[0])
	if err != nil {
		return err
	}
	names := infraschema.Names(catalog.Resources(), nil)
	names = names[:max(1, int(float64(len(names))*min(o.scale, 1)))]
	for _, as := range []string{asKinds, asCRDs} {
		run, err := typesServed(ctx, as, dir, built[0], mirror, catalog, names)
		if err != nil {
			return fmt.Errorf("%s: %w", as, err)
		}
		r.Types = append(r.Types, run)
	}
	writeTypes(os.Stdout, r.Types)
	return nil
}

func catalogOf(ctx context.Context, built builtProvider) (*plugin.Catalog, error) {
	private, err := os.MkdirTemp("", "p")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(private)
	host, err := plugin.New(plugin.Config{Directory: private})
	if err != nil {
		return nil, err
	}
	defer host.Close()
	found, err := filepath.Glob(filepath.Join(built.Unpacked, "terraform-provider-*"))
	if err != nil || len(found) != 1 {
		return nil, fmt.Errorf("no provider executable in %s", built.Unpacked)
	}
	return host.Catalog(ctx, plugin.Binary{Name: wideProvider, Path: found[0]}, nil)
}

// typesServed measures one server.
func typesServed(ctx context.Context, as, dir string, built builtProvider, mirror string, catalog *plugin.Catalog, names []infraschema.Name) (run typesRun, err error) {
	run = typesRun{As: as, Types: len(names)}
	at := filepath.Join(dir, map[string]string{asKinds: "kinds", asCRDs: "crds"}[as])
	config := atoll.Config{Dir: at, LogFile: at + ".log"}
	if as == asKinds {
		config.Flags = []string{"--provider-mirror", filepath.Join(mirror, "packed")}
	}
	server, err := atoll.Start(ctx, config)
	if err != nil {
		return run, err
	}
	defer server.Kill()
	s := &typesServer{Server: server, group: infraschema.Group(wideProvider)}
	if err := s.open(); err != nil {
		return run, err
	}
	if run.BeforeHeap, run.BeforeRSS, err = s.memory(ctx); err != nil {
		return run, err
	}
	used, err := processTime(server.PID())
	if err != nil {
		return run, err
	}
	began := time.Now()
	if as == asKinds {
		err = s.createProvider(ctx, built, filepath.Join(mirror, "packed"), names)
	} else {
		err = s.createCRDs(ctx, catalog, names)
	}
	if err != nil {
		return run, err
	}
	if err := s.discovered(ctx, as, len(names)); err != nil {
		return run, err
	}
	run.Served = time.Since(began).Seconds()
	usedNow, err := processTime(server.PID())
	if err != nil {
		return run, err
	}
	run.CPU = (usedNow - used).Seconds()
	if run.ServedHeap, run.ServedRSS, err = s.memory(ctx); err != nil {
		return run, err
	}
	began = time.Now()
	document, err := getPath(ctx, server, "/openapi/v3/apis/"+s.group+"/v1")
	if err != nil {
		return run, err
	}
	run.Document, run.DocumentMiB = time.Since(began).Seconds(), float64(len(document))/(1<<20)
	began = time.Now()
	if err := s.apply(ctx, catalog, names[0]); err != nil {
		return run, err
	}
	run.Apply = time.Since(began).Seconds()
	run.UsedHeap, run.UsedRSS, err = s.memory(ctx)
	return run, err
}

type typesServer struct {
	*atoll.Server
	group     string
	dynamic   dynamic.Interface
	discovery *discovery.DiscoveryClient
}

func (s *typesServer) open() error {
	config, err := s.REST()
	if err != nil {
		return err
	}
	config.QPS, config.Burst = -1, -1
	if s.dynamic, err = dynamic.NewForConfig(config); err != nil {
		return err
	}
	s.discovery, err = discovery.NewDiscoveryClientForConfig(config)
	return err
}

// memory waits until the server is idle. It returns its heap after a garbage collection, and
// its resident memory.
func (s *typesServer) memory(ctx context.Context) (heap, rss float64, err error) {
	if err := (&fleetBench{server: s.Server}).settle(ctx); err != nil {
		return 0, 0, err
	}
	if _, err := getPath(ctx, s.Server, "/debug/pprof/heap?gc=1"); err != nil {
		return 0, 0, err
	}
	metrics, err := getPath(ctx, s.Server, "/metrics")
	if err != nil {
		return 0, 0, err
	}
	rss, err = residentMiB(s.PID())
	return gauge(metrics, "go_memstats_heap_alloc_bytes") / (1 << 20), rss, err
}

func (s *typesServer) createProvider(ctx context.Context, built builtProvider, packed string, names []infraschema.Name) error {
	wanted := make([]any, len(names))
	for i, n := range names {
		wanted[i] = n.Type
	}
	p := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": "Provider", "metadata": map[string]any{"name": wideProvider},
		"spec": map[string]any{"source": built.Source, "version": built.Version, "digests": []any{built.ZH, built.H1}, "types": wanted,
			"origin": map[string]any{"filesystemMirror": map[string]any{"path": packed}}},
	}}
	_, err := s.dynamic.Resource(v1alpha1.ProviderResource).Create(ctx, p, metav1.CreateOptions{})
	return err
}

// createCRDs makes a CRD for each type, eight at a time.
func (s *typesServer) createCRDs(ctx context.Context, catalog *plugin.Catalog, names []infraschema.Name) error {
	crds := s.dynamic.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	return each(ctx, len(names), func(ctx context.Context, i int) error {
		crd, err := crdOf(s.group, catalog, names[i])
		if err != nil {
			return err
		}
		_, err = crds.Create(ctx, crd, metav1.CreateOptions{})
		return err
	})
}

// discovered waits until discovery lists count kinds of the group.
func (s *typesServer) discovered(ctx context.Context, as string, count int) error {
	ctx, cancel := context.WithTimeout(ctx, typesTimeout)
	defer cancel()
	last := 0
	for {
		list, err := s.discovery.ServerResourcesForGroupVersion(s.group + "/v1")
		if err == nil {
			last = 0
			for _, r := range list.APIResources {
				if !strings.Contains(r.Name, "/") {
					last++ // not a subresource
				}
			}
			if last >= count {
				progress("")
				return nil
			}
		}
		progress(fmt.Sprintf("%s: %d of %d types are served", as, last, count))
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%d of %d types are served: %w", last, count, ctx.Err())
		}
	}
}

// apply writes an object of a type by server-side apply.
func (s *typesServer) apply(ctx context.Context, catalog *plugin.Catalog, name infraschema.Name) error {
	is, err := catalog.Resource(name.Type)
	if err != nil {
		return err
	}
	spec := map[string]any{}
	for _, a := range is.Block.Attributes {
		if a.Type == cty.String && (a.Required || a.Optional) && !a.Sensitive {
			spec[a.Name] = "text"
		}
	}
	object, err := json.Marshal(map[string]any{"apiVersion": s.group + "/v1", "kind": name.Kind, "metadata": map[string]any{"name": "one"}, "spec": spec})
	if err != nil {
		return err
	}
	_, err = s.dynamic.Resource(schema.GroupVersionResource{Group: s.group, Version: "v1", Resource: name.Plural}).Namespace("default").
		Patch(ctx, "one", types.ApplyPatchType, object, metav1.PatchOptions{FieldManager: "bench"})
	return err
}

// crdOf returns a CRD with the schema of a type.
func crdOf(group string, catalog *plugin.Catalog, name infraschema.Name) (*unstructured.Unstructured, error) {
	is, err := catalog.Resource(name.Type)
	if err != nil {
		return nil, err
	}
	spec := structural(&is.Block)
	crd := &apiextensionsv1.CustomResourceDefinition{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"},
		ObjectMeta: metav1.ObjectMeta{Name: name.Plural + "." + group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Kind: name.Kind, Plural: name.Plural, Singular: name.Singular, ListKind: name.Kind + "List"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true,
				Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object",
					Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": spec, "status": spec}}}}},
		},
	}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(crd)
	if err != nil {
		return nil, err
	}
	delete(object, "status")
	return &unstructured.Unstructured{Object: object}, nil
}

// structural returns the schema of a block in the form of a CRD.
func structural(b *providerapi.Block) apiextensionsv1.JSONSchemaProps {
	out := apiextensionsv1.JSONSchemaProps{Type: "object", Description: b.Description, Properties: map[string]apiextensionsv1.JSONSchemaProps{}}
	for i := range b.Attributes {
		a := &b.Attributes[i]
		is := structuralType(a.Type)
		is.Description = a.Description
		out.Properties[a.Name] = is
	}
	for i := range b.Blocks {
		n := &b.Blocks[i]
		one := structural(&n.Block)
		inner := one
		switch n.Nesting {
		case providerapi.NestingList, providerapi.NestingSet:
			one = apiextensionsv1.JSONSchemaProps{Type: "array", Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &inner}}
		case providerapi.NestingMap:
			one = apiextensionsv1.JSONSchemaProps{Type: "object", AdditionalProperties: &apiextensionsv1.JSONSchemaPropsOrBool{Allows: true, Schema: &inner}}
		}
		out.Properties[n.Name] = one
	}
	return out
}

func structuralType(t cty.Type) apiextensionsv1.JSONSchemaProps {
	switch {
	case t == cty.String:
		return apiextensionsv1.JSONSchemaProps{Type: "string"}
	case t == cty.Number:
		return apiextensionsv1.JSONSchemaProps{Type: "number"}
	case t == cty.Bool:
		return apiextensionsv1.JSONSchemaProps{Type: "boolean"}
	case t.IsListType(), t.IsSetType():
		one := structuralType(t.ElementType())
		return apiextensionsv1.JSONSchemaProps{Type: "array", Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &one}}
	case t.IsMapType():
		one := structuralType(t.ElementType())
		return apiextensionsv1.JSONSchemaProps{Type: "object", AdditionalProperties: &apiextensionsv1.JSONSchemaPropsOrBool{Allows: true, Schema: &one}}
	case t.IsObjectType():
		out := apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{}}
		for name, of := range t.AttributeTypes() {
			out.Properties[name] = structuralType(of)
		}
		return out
	}
	yes := true
	return apiextensionsv1.JSONSchemaProps{XPreserveUnknownFields: &yes}
}

func writeTypes(w io.Writer, runs []typesRun) {
	fmt.Fprintf(w, "\nA provider's types, served by one server; memory in MiB, heap after a collection\n\n")
	fmt.Fprintf(w, "| as | types | served after | CPU | heap before | served | used | RSS before | served | used | OpenAPI of the group | apply, the first |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n")
	for _, r := range runs {
		fmt.Fprintf(w, "| %s | %d | %.1f s | %.1f s | %.0f | %.0f | %.0f | %.0f | %.0f | %.0f | %.2f s (%.1f MiB) | %.3f s |\n", r.As, r.Types, r.Served, r.CPU,
			r.BeforeHeap, r.ServedHeap, r.UsedHeap, r.BeforeRSS, r.ServedRSS, r.UsedRSS, r.Document, r.DocumentMiB, r.Apply)
	}
	if len(runs) == 2 {
		kinds, crds := runs[0], runs[1]
		fmt.Fprintf(w, "\nHeap for the types: %.1f and %.1f MiB, 1 : %.0f; resident memory: %.0f and %.0f MiB\n",
			kinds.ServedHeap-kinds.BeforeHeap, crds.ServedHeap-crds.BeforeHeap, (crds.ServedHeap-crds.BeforeHeap)/max(kinds.ServedHeap-kinds.BeforeHeap, 0.1),
			kinds.ServedRSS-kinds.BeforeRSS, crds.ServedRSS-crds.BeforeRSS)
	}
}
