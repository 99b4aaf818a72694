package imports

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kschema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/kube-openapi/pkg/spec3"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/schema"
)

// builtIn reports whether Kubernetes itself defines a group.
func builtIn(group string) bool {
	switch group {
	case "apiextensions.k8s.io", "apiregistration.k8s.io":
		return true
	}
	return scheme.Scheme.IsGroupRegistered(group)
}

// refreshDocuments reads what the member serves without a CRD: the documents for Fields, and
// the types of groups that a policy names in full. It returns the digests of the documents for
// Fields.
func (p *typeWatcher) refreshDocuments(ctx context.Context, byCRD map[string]bool, types map[kschema.GroupVersionResource]servedType) (map[kschema.GroupVersion]string, error) {
	index, err := p.openapi.index(ctx)
	if err != nil {
		return nil, err
	}
	digests, err := p.fields.refresh(ctx, p.name, p.openapi, index)
	wanted := map[kschema.GroupVersion]string{}
	for gv, address := range index {
		if !byCRD[gv.Group] && !ownGroup(gv.Group) && p.inFull(gv.Group) {
			wanted[gv] = address
		}
	}
	for gv, address := range wanted {
		found, bad := p.documentTypes.read(ctx, p.openapi, gv, address)
		err = errors.Join(err, bad)
		for _, t := range found {
			types[t.spec.Resource()] = t
		}
	}
	p.documentTypes.retain(wanted)
	return digests, err
}

// documentTypes caches the types of documents by address; the address changes with the content.
type documentTypes map[string][]servedType

// retain removes the entries whose address is not in the index any more.
func (w documentTypes) retain(index map[kschema.GroupVersion]string) {
	addresses := slices.Collect(maps.Values(index))
	maps.DeleteFunc(w, func(address string, _ []servedType) bool { return !slices.Contains(addresses, address) })
}

func (w documentTypes) read(ctx context.Context, from documentSource, gv kschema.GroupVersion, address string) ([]servedType, error) {
	if known, ok := w[address]; ok {
		return known, nil
	}
	data, err := from.document(ctx, address)
	if err != nil {
		return nil, err
	}
	resources, err := from.resources(ctx, gv)
	if err != nil {
		return nil, err
	}
	found, err := typesIn(data, gv, resources)
	if err != nil {
		return nil, err
	}
	if strings.Contains(address, "hash=") {
		w[address] = found
	}
	return found, nil
}

func parse(data []byte, gv kschema.GroupVersion) (*spec3.OpenAPI, error) {
	doc := &spec3.OpenAPI{}
	if err := json.Unmarshal(data, doc); err != nil {
		return nil, fmt.Errorf("read the OpenAPI document of %s: %w", gv, err)
	}
	return doc, nil
}

// typesIn returns the types of a document, with the names that only discovery has.
func typesIn(data []byte, gv kschema.GroupVersion, resources *metav1.APIResourceList) (out []servedType, err error) {
	doc, err := parse(data, gv)
	if err != nil {
		return nil, err
	}
	for _, r := range resources.APIResources {
		// Only what can be created is a type of objects; subresources have a slash.
		if strings.Contains(r.Name, "/") || !slices.Contains(r.Verbs, "create") || !slices.Contains(r.Verbs, "watch") || r.Group != "" && r.Group != gv.Group {
			continue
		}
		t, err := schema.FromOpenAPI(doc, gv.WithKind(r.Kind))
		if err != nil {
			t.Schema = nil // served, but the schema is unknown
		}
		t.Group, t.Version, t.Kind, t.ListKind = gv.Group, gv.Version, r.Kind, r.Kind+"List"
		t.Plural, t.Singular, t.ShortNames, t.Categories = r.Name, r.SingularName, r.ShortNames, r.Categories
		t.Scope = apiextensionsv1.ClusterScoped
		if r.Namespaced {
			t.Scope = apiextensionsv1.NamespaceScoped
		}
		s, err := newServed(&t, v1alpha1.FromOpenAPI)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

// kindsOf returns the schemas of the placed kinds in a document.
func kindsOf(data []byte, gv kschema.GroupVersion) (map[kschema.GroupVersionKind]*schema.Props, error) {
	doc, err := parse(data, gv)
	if err != nil {
		return nil, err
	}
	out := map[kschema.GroupVersionKind]*schema.Props{}
	for _, k := range interpret.Kinds() {
		if k.GroupVersion() != gv {
			continue
		}
		if t, err := schema.FromOpenAPI(doc, k.GroupVersionKind); err == nil {
			stripDescriptions(t.Schema)
			out[k.GroupVersionKind] = t.Schema
		}
	}
	return out, nil
}

// stripDescriptions removes the descriptions from a schema: they are unused, and most of its
// size.
func stripDescriptions(p *schema.Props) {
	if p == nil {
		return
	}
	p.Description = ""
	for name, field := range p.Properties {
		stripDescriptions(&field)
		p.Properties[name] = field
	}
	if p.Items != nil {
		stripDescriptions(p.Items.Schema)
	}
	if p.AdditionalProperties != nil {
		stripDescriptions(p.AdditionalProperties.Schema)
	}
}

// ownTypes returns the versions of a built-in type that the control plane serves itself.
func (c *controller) ownTypes(ctx context.Context, gr kschema.GroupResource, versions map[string]*version) (map[string]*schema.Type, error) {
	index, err := c.own.index(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the control plane's own types: %w", err)
	}
	out := map[string]*schema.Type{}
	for name := range versions {
		gv := kschema.GroupVersion{Group: gr.Group, Version: name}
		address, serves := index[gv]
		if !serves {
			continue
		}
		found, err := documentTypes{}.read(ctx, c.own, gv, address)
		if err != nil {
			return nil, fmt.Errorf("read the control plane's own types: %w", err)
		}
		for _, t := range found {
			if t.spec.Plural == gr.Resource {
				if out[name], err = typeOf(&t.spec, t.spec.OpenAPIV3Schema.Raw); err != nil {
					return nil, err
				}
			}
		}
	}
	return out, nil
}
