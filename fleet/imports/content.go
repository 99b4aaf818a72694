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

// Limits of a syncer's report. The first one is the capacity of a ConfigMap.
const (
	maxGroupBytes         = 1_000_000 // bytes of one group, compressed
	maxUnpackedGroupBytes = 32 << 20  // bytes of one group
	maxReportBytes        = 32 << 20  // bytes of all groups, compressed
	maxUnpackedBytes      = 256 << 20 // bytes of all groups
	maxGroups             = 500
)

// content is a syncer's report of one API group.
type content struct {
	Types []contentType `json:"types,omitempty"`
	// Kinds are the schemas of Kubernetes' built-in kinds for Fields, by version and kind.
	Kinds map[string]map[string]*schema.Props `json:"kinds,omitempty"`
}

type contentType struct {
	Spec     v1alpha1.CommonAPIResourceSpec `json:"spec"`
	Source   v1alpha1.SchemaSource          `json:"source"`
	Approved string                         `json:"approved,omitempty"`
}

// contentsOf groups the types and documents of a member by API group.
func contentsOf(types map[kschema.GroupVersionResource]servedType, documents map[kschema.GroupVersion]*document) map[string]*content {
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

// pack encodes a content for sending, and returns the digest that identifies it.
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

// digestOfContent is the digest of the uncompressed data: compression may differ between
// builds.
func digestOfContent(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// unpack decompresses a content, up to the size limit.
func unpack(packed []byte) (data []byte, digest string, err error) {
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err == nil {
		data, err = io.ReadAll(io.LimitReader(r, maxUnpackedGroupBytes+1))
	}
	switch {
	case err != nil:
		return nil, "", fmt.Errorf("the content is not gzipped: %w", err)
	case len(data) > maxUnpackedGroupBytes:
		return nil, "", fmt.Errorf("the content is larger than %d bytes", maxUnpackedGroupBytes)
	}
	return data, digestOfContent(data), nil
}

// groupTypes is what a member serves of one API group, as reported by its syncer.
type groupTypes struct {
	types     map[kschema.GroupVersionResource]servedType
	documents map[kschema.GroupVersion]*document
	size      int
}

// readGroup decodes the content of a group. The sender is not trusted: the content may describe
// only this group, and everything derived from it is computed here.
func readGroup(name string, data []byte) (*groupTypes, error) {
	var in content
	if err := json.Unmarshal(data, &in); err != nil {
		return nil, fmt.Errorf("the content is not valid JSON for a group report: %w", err)
	}
	out := &groupTypes{types: map[kschema.GroupVersionResource]servedType{}, documents: map[kschema.GroupVersion]*document{}, size: len(data)}
	for _, t := range in.Types {
		s, err := t.served(name)
		if err != nil {
			return nil, err
		}
		out.types[s.spec.Resource()] = s
	}
	placed := newPlacedKinds()
	for version, kinds := range in.Kinds {
		gv := kschema.GroupVersion{Group: name, Version: version}
		doc := &document{kinds: map[kschema.GroupVersionKind]*schema.Props{}}
		for kind, props := range kinds {
			if !placed.has(gv.WithKind(kind)) || props == nil {
				return nil, fmt.Errorf("fields of %s must not be reported: they are reported only for built-in kinds that are placed", gv.WithKind(kind))
			}
			doc.kinds[gv.WithKind(kind)] = props
		}
		data, err := json.Marshal(kinds)
		if err != nil {
			return nil, err
		}
		// Not a digest that a member chose: that would identify documents of other members.
		doc.digest = "reported " + gv.String() + " " + digestOfContent(data)
		out.documents[gv] = doc
	}
	return out, nil
}

// served validates a reported type and returns it like one that was read here.
func (t *contentType) served(group string) (none servedType, err error) {
	spec := &t.Spec
	name := fmt.Sprintf("type %q of version %q", spec.Plural, spec.GroupVersion.Version)
	switch {
	case spec.GroupVersion.Group != group:
		return none, fmt.Errorf("%s is of group %q and not of %q", name, spec.GroupVersion.Group, group)
	case ownGroup(group):
		return none, fmt.Errorf("group %s is Atoll's own and is not imported", group)
	case t.Source != v1alpha1.FromCRD && t.Source != v1alpha1.FromOpenAPI:
		return none, fmt.Errorf("%s has the unknown source %q", name, t.Source)
	case t.Source == v1alpha1.FromCRD && builtIn(group):
		return none, fmt.Errorf("%s is built into Kubernetes and cannot come from a CustomResourceDefinition", name)
	case len(validation.IsDNS1035Label(spec.Plural)) > 0, len(validation.IsDNS1035Label(spec.GroupVersion.Version)) > 0,
		len(validation.IsDNS1035Label(strings.ToLower(spec.Kind))) > 0:
		return none, fmt.Errorf("%s, kind %q: invalid type name", name, spec.Kind)
	}
	typ, err := typeOf(spec, spec.OpenAPIV3Schema.Raw)
	if err != nil {
		return none, fmt.Errorf("%s: %w", name, err)
	}
	out, err := newServed(typ, t.Source)
	out.approved = t.Approved
	return out, err
}
