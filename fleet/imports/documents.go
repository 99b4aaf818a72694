package imports

import (
	"context"
	"errors"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kschema "k8s.io/apimachinery/pkg/runtime/schema"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/schema"
)

// builtIn tells whether Kubernetes itself defines a group.
func builtIn(group string) bool {
	switch group {
	case "apiextensions.k8s.io", "apiregistration.k8s.io":
		return true
	}
	return scheme.Scheme.IsGroupRegistered(group)
}

// pullDocuments reads what the member serves without a CRD: what Fields knows, and, of
// groups that a policy names in full, types. It gives the digests of what Fields read.
func (p *puller) pullDocuments(ctx context.Context, byCRD map[string]bool, types map[kschema.GroupVersionResource]served) (map[kschema.GroupVersion]string, error) {
	index, err := p.openapi.index(ctx)
	if err != nil {
		return nil, err
	}
	digests, err := p.fields.pull(ctx, p.name, p.openapi, index)
	for gv, address := range index {
		if byCRD[gv.Group] || ownGroup(gv.Group) || !p.inFull(gv.Group) {
			continue
		}
		found, bad := p.wholes.read(ctx, p.openapi, gv, address)
		err = errors.Join(err, bad)
		for _, t := range found {
			types[t.spec.Resource()] = t
		}
	}
	return digests, err
}

// wholes remembers the types of documents by their addresses, which change with what
// is in them.
type wholes map[string][]served

func (w wholes) read(ctx context.Context, from documents, gv kschema.GroupVersion, address string) ([]served, error) {
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
		for old := range w {
			if before, _, _ := strings.Cut(old, "?"); before == strings.SplitN(address, "?", 2)[0] {
				delete(w, old)
			}
		}
		w[address] = found
	}
	return found, nil
}

// ownTypes gives the versions of a built-in type that the control plane serves itself.
func (c *controller) ownTypes(ctx context.Context, gr kschema.GroupResource, versions map[string]*version) (map[string]*schema.Type, error) {
	index, err := c.own.index(ctx)
	if err != nil {
		return nil, fmt.Errorf("read what the control plane serves: %w", err)
	}
	out := map[string]*schema.Type{}
	for name := range versions {
		gv := kschema.GroupVersion{Group: gr.Group, Version: name}
		address, serves := index[gv]
		if !serves {
			continue
		}
		found, err := wholes{}.read(ctx, c.own, gv, address)
		if err != nil {
			return nil, fmt.Errorf("read what the control plane serves: %w", err)
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

var _ = apiextensionsv1.Established
var _ = metav1.ObjectMeta{}
var _ = v1alpha1.FromOpenAPI
