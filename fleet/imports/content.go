package imports

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	kschema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/schema"
)

// Bounds of what a syncer may report. The first is what a ConfigMap holds.
const (
	mostContent  = 1_000_000 // bytes of one group, compressed
	mostUnpacked = 32 << 20  // bytes of one group
	mostReported = 32 << 20  // bytes of all groups, compressed
	mostKept     = 256 << 20 // bytes of all groups
	mostGroups   = 500
)

// content is what a syncer reports of one API group.
type content struct {
	Types []contentType `json:"types,omitempty"`
	// Kinds are the schemas that Fields goes by, of Kubernetes' own kinds, by version and
	// kind.
	Kinds map[string]map[string]*schema.Props `json:"kinds,omitempty"`
}

type contentType struct {
	Spec     v1alpha1.CommonAPIResourceSpec `json:"spec"`
	Source   v1alpha1.SchemaSource          `json:"source"`
	Approved string                         `json:"approved,omitempty"`
}

// contentsOf lays out by groups what was read of a member.
func contentsOf(types map[kschema.GroupVersionResource]served, documents map[kschema.GroupVersion]*document) map[string]*content {
	out := map[string]*content{}
	of := func(group string) *content {
		if out[group] == nil {
			out[group] = &content{Kinds: map[string]map[string]*schema.Props{}}
		}
		return out[group]
	}
	for gvr, t := range types {
		in := of(gvr.Group)
		in.Types = append(in.Types, contentType{Spec: t.spec, Source: t.source, Approved: t.approved})
	}
	for gv, doc := range documents {
		kinds := map[string]*schema.Props{}
		for gvk, props := range doc.kinds {
			kinds[gvk.Kind] = props
		}
		of(gv.Group).Kinds[gv.Version] = kinds
	}
	for _, in := range out {
		slices.SortFunc(in.Types, func(a, b contentType) int {
			return cmp.Or(strings.Compare(a.Spec.Plural, b.Spec.Plural), strings.Compare(a.Spec.GroupVersion.Version, b.Spec.GroupVersion.Version))
		})
	}
	return out
}

// pack writes a content as it is sent, with the digest that identifies it.
func (in *content) pack() (packed []byte, digest string, err error) {
	data, err := json.Marshal(in)
	if err != nil {
		return nil, "", err
	}
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(data); err != nil {
		return nil, "", err
	}
	if err := w.Close(); err != nil {
		return nil, "", err
	}
	return out.Bytes(), digestOfContent(data), nil
}

// digestOfContent is of what is packed: compressing may differ from one build to another.
func digestOfContent(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// unpack reads what was sent, and no more of it than it may be.
func unpack(packed []byte) (data []byte, digest string, err error) {
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err == nil {
		data, err = io.ReadAll(io.LimitReader(r, mostUnpacked+1))
	}
	switch {
	case err != nil:
		return nil, "", fmt.Errorf("the content is not gzipped: %w", err)
	case len(data) > mostUnpacked:
		return nil, "", fmt.Errorf("the content is larger than %d bytes", mostUnpacked)
	}
	return data, digestOfContent(data), nil
}

// group is what a member serves of one API group, as its syncer reported it.
type group struct {
	types     map[kschema.GroupVersionResource]served
	documents map[kschema.GroupVersion]*document
	size      int
}

// readGroup reads the content of a group. It comes from somebody who need not be
// trusted: it speaks of this group alone, and everything that follows from it is worked
// out here.
func readGroup(name string, data []byte) (*group, error) {
	var in content
	if err := json.Unmarshal(data, &in); err != nil {
		return nil, fmt.Errorf("the content is not the JSON that belongs here: %w", err)
	}
	out := &group{types: map[kschema.GroupVersionResource]served{}, documents: map[kschema.GroupVersion]*document{}, size: len(data)}
	for _, t := range in.Types {
		s, err := t.served(name)
		if err != nil {
			return nil, err
		}
		out.types[s.spec.Resource()] = s
	}
	placed := ofInterest()
	for version, kinds := range in.Kinds {
		gv := kschema.GroupVersion{Group: name, Version: version}
		doc := &document{kinds: map[kschema.GroupVersionKind]*schema.Props{}}
		for kind, props := range kinds {
			if !placed.has(gv.WithKind(kind)) || props == nil {
				return nil, fmt.Errorf("fields of %s are nobody's business: they are reported of Kubernetes' own kinds that are placed", gv.WithKind(kind))
			}
			doc.kinds[gv.WithKind(kind)] = props
		}
		said, err := json.Marshal(kinds)
		if err != nil {
			return nil, err
		}
		// No digest of a member's own, by which others are known to have the same.
		doc.digest = "reported " + gv.String() + " " + digestOfContent(said)
		out.documents[gv] = doc
	}
	return out, nil
}

// served checks a reported type, and gives it as if it had been read here.
func (t *contentType) served(group string) (none served, err error) {
	spec := &t.Spec
	name := fmt.Sprintf("type %q of version %q", spec.Plural, spec.GroupVersion.Version)
	switch {
	case spec.GroupVersion.Group != group:
		return none, fmt.Errorf("%s is of group %q and not of %q", name, spec.GroupVersion.Group, group)
	case ownGroup(group):
		return none, fmt.Errorf("group %s is Atoll's own: nothing of it is imported", group)
	case t.Source != v1alpha1.FromCRD && t.Source != v1alpha1.FromOpenAPI:
		return none, fmt.Errorf("%s has source %q, which is none", name, t.Source)
	case t.Source == v1alpha1.FromCRD && builtIn(group):
		return none, fmt.Errorf("%s is Kubernetes' own, and so from no CustomResourceDefinition", name)
	case len(validation.IsDNS1035Label(spec.Plural)) > 0, len(validation.IsDNS1035Label(spec.GroupVersion.Version)) > 0,
		len(validation.IsDNS1035Label(strings.ToLower(spec.Kind))) > 0:
		return none, fmt.Errorf("%s, kind %q: that is no name of a type", name, spec.Kind)
	}
	typ, err := typeOf(spec, spec.OpenAPIV3Schema.Raw)
	if err != nil {
		return none, fmt.Errorf("%s: %w", name, err)
	}
	out, err := newServed(typ, t.Source)
	out.approved = t.Approved
	return out, err
}
