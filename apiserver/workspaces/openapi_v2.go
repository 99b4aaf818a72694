package workspaces

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// openAPIV2 is the path of the one document that clients without OpenAPI v3 read.
const openAPIV2 = "/openapi/v2"

// specsKept is how many documents of version 2 are kept. Each takes megabytes; all workspaces with the same definitions share one, such as those that
// have none of their own.
const specsKept = 4

// documentV2 returns the handler of the document with the built-in kinds, those of the workspace, and those of its bindings.
func (c *chain) documentV2(s *sources) (http.Handler, error) {
	all, err := s.definitions()
	if err != nil {
		return nil, err
	}
	var key strings.Builder
	for _, d := range all {
		fmt.Fprintf(&key, "%s %s\n", d.UID, d.ResourceVersion)
	}
	if found, ok := c.specs.Get(key.String()); ok {
		return found.(http.Handler), nil
	}
	merged, err := mergedSpec(c.builtInSpec, all)
	if err != nil {
		return nil, err
	}
	paths := mux.NewPathRecorderMux("openapi v2 of a workspace")
	handler.NewOpenAPIService(merged).RegisterOpenAPIVersionedService(openAPIV2, paths)
	c.specs.Add(key.String(), paths)
	return paths, nil
}

// definitions returns the definitions of all sources whose kinds are served, sorted by their names.
func (s *sources) definitions() (all []*apiextensionsv1.CustomResourceDefinition, err error) {
	add := func(from *customServer, wanted func(*apiextensionsv1.CustomResourceDefinition) bool) {
		found, listErr := from.definitions.List(labels.Everything())
		if listErr != nil {
			err = listErr
		}
		for _, d := range found {
			if apihelpers.IsCRDConditionTrue(d, apiextensionsv1.Established) && wanted(d) {
				all = append(all, d)
			}
		}
	}
	if s.own != nil {
		add(s.own, func(*apiextensionsv1.CustomResourceDefinition) bool { return true })
	}
	for _, from := range s.bound {
		add(from.customServer, func(d *apiextensionsv1.CustomResourceDefinition) bool {
			return d.Spec.Group == from.group && from.exporter.provides(d.Spec.Names.Plural)
		})
	}
	slices.SortFunc(all, func(a, b *apiextensionsv1.CustomResourceDefinition) int {
		return strings.Compare(a.Name+" "+string(a.UID), b.Name+" "+string(b.UID))
	})
	return all, err
}

// mergedSpec adds the kinds of definitions to the built-in ones, as upstream does for the definitions of a whole server.
func mergedSpec(builtIn *spec.Swagger, definitions []*apiextensionsv1.CustomResourceDefinition) (*spec.Swagger, error) {
	var specs []*spec.Swagger
	for _, d := range definitions {
		for _, version := range d.Spec.Versions {
			if !version.Served {
				continue
			}
			one, err := builder.BuildOpenAPIV2(d, version.Name, builder.Options{V2: true, IncludeSelectableFields: true})
			if err != nil {
				return nil, fmt.Errorf("describe %s: %w", d.Name, err)
			}
			one.Definitions = handler.PruneDefaults(one.Definitions) // those of the built-in kinds have none either
			specs = append(specs, one)
		}
	}
	return builder.MergeSpecs(builtIn, specs...)
}
