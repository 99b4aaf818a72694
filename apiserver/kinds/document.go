package kinds

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	generatedopenapi "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

const (
	modelRef   = "#/components/schemas/"
	objectMeta = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
	listMeta   = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta"
	kindMarker = "x-kubernetes-group-version-kind"
)

// writeDocument writes the OpenAPI v3 document of a version of a group, one kind after
// the other, so that only one schema is in memory. kubernetes is the version of
// Kubernetes.
func writeDocument(w io.Writer, kubernetes string, gv schema.GroupVersion, version servedVersion, read func(schema.GroupVersionKind) (*spec.Schema, error)) error {
	out := &documentWriter{w: w}
	out.raw(`{"openapi":"3.0.0","info":{"title":"Kubernetes","version":`)
	out.value(kubernetes)
	out.raw(`},"paths":{`)
	for i, k := range version.Kinds {
		for j, path := range kindPaths(gv, k) {
			out.field(i == 0 && j == 0, path.path, path.item)
		}
	}
	out.raw(`},"components":{"schemas":{`)
	models, err := metaModels()
	if err != nil {
		return err
	}
	for i, name := range slices.Sorted(maps.Keys(models)) {
		out.field(i == 0, name, models[name])
	}
	if version.Components != nil {
		components := version.Components()
		for _, name := range slices.Sorted(maps.Keys(components)) {
			out.field(false, name, components[name])
		}
	}
	for _, k := range version.Kinds {
		kind := gv.WithKind(k.Kind)
		s, err := read(kind)
		if err != nil {
			return fmt.Errorf("read the schema of %s: %w", k.Kind, err)
		}
		out.field(false, modelName(kind), completeSchema(s, kind))
		out.field(false, modelName(gv.WithKind(k.listKind())), listSchema(kind, k))
	}
	out.raw(`}}}`)
	return out.err
}

// writePatchDocument writes a document with nothing but the PATCH operation of each kind.
func writePatchDocument(w io.Writer, kubernetes string, gv schema.GroupVersion, version servedVersion) error {
	out := &documentWriter{w: w}
	out.raw(`{"openapi":"3.0.0","info":{"title":"Kubernetes","version":`)
	out.value(kubernetes)
	out.raw(`},"paths":{`)
	first := true
	for _, k := range version.Kinds {
		for _, path := range kindPaths(gv, k) {
			if patch, ok := path.item["patch"]; ok && strings.HasSuffix(path.path, "/{name}") {
				out.field(first, path.path, map[string]any{"patch": patch})
				first = false
			}
		}
	}
	out.raw(`}}`)
	return out.err
}

// documentWriter writes JSON piece by piece, until the first error.
type documentWriter struct {
	w   io.Writer
	err error
}

func (d *documentWriter) raw(text string) {
	if d.err == nil {
		_, d.err = io.WriteString(d.w, text)
	}
}

func (d *documentWriter) value(v any) {
	if d.err != nil {
		return
	}
	data, err := json.Marshal(v)
	if err != nil {
		d.err = err
		return
	}
	_, d.err = d.w.Write(data)
}

func (d *documentWriter) field(first bool, name string, v any) {
	if !first {
		d.raw(",")
	}
	d.value(name)
	d.raw(":")
	d.value(v)
}

// modelName returns the name of a kind's schema, in upstream's format for custom
// resources.
func modelName(kind schema.GroupVersionKind) string {
	parts := strings.Split(kind.Group, ".")
	slices.Reverse(parts)
	return strings.Join(parts, ".") + "." + kind.Version + "." + kind.Kind
}

func marker(kind schema.GroupVersionKind) map[string]any {
	return map[string]any{"group": kind.Group, "version": kind.Version, "kind": kind.Kind}
}

// completeSchema adds the fields that every kind has.
func completeSchema(s *spec.Schema, kind schema.GroupVersionKind) *spec.Schema {
	docs := metav1.TypeMeta{}.SwaggerDoc()
	s.Type = spec.StringOrArray{"object"}
	s.SetProperty("apiVersion", *spec.StringProperty().WithDescription(docs["apiVersion"]))
	s.SetProperty("kind", *spec.StringProperty().WithDescription(docs["kind"]))
	s.SetProperty("metadata", metadataSchema(objectMeta, "Standard object's metadata."))
	s.AddExtension(kindMarker, []any{marker(kind)})
	return s
}

func listSchema(kind schema.GroupVersionKind, names Names) *spec.Schema {
	docs := metav1.TypeMeta{}.SwaggerDoc()
	list := &spec.Schema{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{"object"}, Required: []string{"items"}}}
	list.Description = names.listKind() + " is a list of " + names.Kind
	list.SetProperty("apiVersion", *spec.StringProperty().WithDescription(docs["apiVersion"]))
	list.SetProperty("kind", *spec.StringProperty().WithDescription(docs["kind"]))
	list.SetProperty("metadata", metadataSchema(listMeta, "Standard list metadata."))
	list.SetProperty("items", *spec.ArrayProperty(spec.RefSchema(modelRef + modelName(kind))))
	list.AddExtension(kindMarker, []any{marker(kind.GroupVersion().WithKind(names.listKind()))})
	return list
}

func metadataSchema(model, description string) spec.Schema {
	return spec.Schema{SchemaProps: spec.SchemaProps{
		Description: description, Default: map[string]any{}, AllOf: []spec.Schema{*spec.RefSchema(modelRef + model)},
	}}
}

// metaModels returns the schemas of metadata and of the types that it consists of.
func metaModels() (map[string]spec.Schema, error) {
	all := generatedopenapi.GetOpenAPIDefinitions(func(name string) spec.Ref { return spec.MustCreateRef(modelRef + canonical(name)) })
	byModel := make(map[string]common.OpenAPIDefinition, len(all))
	for name, definition := range all {
		byModel[canonical(name)] = definition
	}
	out := map[string]spec.Schema{}
	for next := []string{objectMeta, listMeta}; len(next) > 0; next = next[1:] {
		name := canonical(next[0])
		if _, done := out[name]; done {
			continue
		}
		definition, ok := byModel[name]
		if !ok {
			return nil, fmt.Errorf("there is no OpenAPI definition of %s", name)
		}
		out[name] = definition.Schema
		next = append(next, definition.Dependencies...)
	}
	return out, nil
}

// canonical converts a Go type's path to the name of its model.
func canonical(name string) string {
	domain, rest, ok := strings.Cut(name, "/")
	if !ok {
		return name // it is already a model name
	}
	parts := strings.Split(domain, ".")
	slices.Reverse(parts)
	return strings.Join(parts, ".") + "." + strings.ReplaceAll(rest, "/", ".")
}

// kindPath is a path of a kind and its operations.
type kindPath struct {
	path string
	item map[string]any
}

// kindPaths returns the paths of a kind with the parts that clients look for. kubectl
// finds a kind by its path, and learns from the parameters of PATCH whether dry run and
// strict validation are supported. Responses are not described: they would be many
// times as long, the same for each kind, and no client reads them.
func kindPaths(gv schema.GroupVersion, k Names) []kindPath {
	kind := gv.WithKind(k.Kind)
	base := "/apis/" + gv.String()
	if !k.ClusterScoped {
		base += "/namespaces/{namespace}"
	}
	all, one := base+"/"+k.Plural, base+"/"+k.Plural+"/{name}"
	selecting := []string{"labelSelector", "fieldSelector", "limit", "continue", "resourceVersion", "resourceVersionMatch", "sendInitialEvents", "allowWatchBookmarks", "timeoutSeconds", "watch"}
	writing := []string{"dryRun", "fieldManager", "fieldValidation"}
	deleting := []string{"dryRun", "gracePeriodSeconds", "orphanDependents", "propagationPolicy"}
	operation := func(action string, query ...string) map[string]any { return kindOperation(kind, action, query) }
	path := func(at string, operations map[string]any) kindPath {
		var in []any
		for _, name := range []string{"namespace", "name"} {
			if strings.Contains(at, "{"+name+"}") {
				in = append(in, map[string]any{"name": name, "in": "path", "required": true, "schema": map[string]any{"type": "string"}})
			}
		}
		if len(in) > 0 {
			operations["parameters"] = in
		}
		return kindPath{at, operations}
	}
	paths := []kindPath{
		path(all, map[string]any{
			"get": operation("list", selecting...), "post": operation("post", writing...),
			"delete": operation("deletecollection", append(selecting[:len(selecting)-1:len(selecting)-1], deleting...)...),
		}),
		path(one, map[string]any{
			"get": operation("get", "resourceVersion"), "put": operation("put", writing...),
			"patch": operation("patch", append(writing, "force")...), "delete": operation("delete", deleting...),
		}),
	}
	if !k.ClusterScoped {
		paths = append(paths, path("/apis/"+gv.String()+"/"+k.Plural, map[string]any{"get": operation("list", selecting...)}))
	}
	if k.Status {
		paths = append(paths, path(one+"/status", map[string]any{
			"get": operation("get", "resourceVersion"), "put": operation("put", writing...), "patch": operation("patch", append(writing, "force")...),
		}))
	}
	return paths
}

func kindOperation(kind schema.GroupVersionKind, action string, query []string) map[string]any {
	parameters := make([]any, 0, len(query))
	for _, name := range query {
		typ := "string"
		switch name {
		case "limit", "timeoutSeconds", "gracePeriodSeconds":
			typ = "integer"
		case "watch", "force", "sendInitialEvents", "allowWatchBookmarks", "orphanDependents":
			typ = "boolean"
		}
		parameters = append(parameters, map[string]any{"name": name, "in": "query", "schema": map[string]any{"type": typ, "uniqueItems": true}})
	}
	o := map[string]any{
		"parameters": parameters, "x-kubernetes-action": action, kindMarker: marker(kind),
		"responses": map[string]any{"200": map[string]any{"description": "OK"}},
	}
	body := map[string]any{"schema": map[string]any{"$ref": modelRef + modelName(kind)}}
	switch action {
	case "post", "put":
		o["requestBody"] = map[string]any{"required": true, "content": map[string]any{"application/json": body, "application/yaml": body}}
	case "patch":
		content := map[string]any{}
		for _, t := range []types.PatchType{types.JSONPatchType, types.MergePatchType, types.ApplyYAMLPatchType} {
			content[string(t)] = map[string]any{"schema": map[string]any{}}
		}
		o["requestBody"] = map[string]any{"required": true, "content": content}
	}
	return o
}
