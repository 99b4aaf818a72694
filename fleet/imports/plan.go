package imports

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kversion "k8s.io/apimachinery/pkg/version"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/schema"
)

// plan is the target state of a type's CRD.
type plan struct {
	versions []*version // the first one is the storage version
}

// plan selects the versions to publish. Objects are stored in one version and read in any, and
// the control plane cannot convert them. So only versions with equivalent schemas are published
// together. It sets the outcome of the other versions.
func (f *typeState) plan() plan {
	var candidates []*version
	for _, v := range f.versions {
		wanted, explicit := f.wants(v)
		switch {
		case f.mustKeep(v):
		case !wanted:
			v.published = publication{reason: v1alpha1.ReasonNotRequested, message: notRequested(f.gr.Group, explicit)}
			continue
		case v.typ == nil || v.current.typ == nil && v.compatible() == 0:
			v.published = publication{reason: v1alpha1.ReasonNotNegotiable, message: "no cluster serves the type with a schema that can be parsed: see the condition Compatible of its APIResourceImports"}
			continue
		}
		candidates = append(candidates, v)
	}
	if !slices.ContainsFunc(candidates, func(v *version) bool { wanted, _ := f.wants(v); return wanted }) {
		for _, v := range candidates {
			v.published = publication{}
		}
		return plan{}
	}
	freezeDiverging(candidates)
	slices.SortFunc(candidates, f.compare)
	out := plan{versions: candidates[:1:1]}
	for _, v := range candidates[1:] {
		stored := candidates[0]
		if !equivalent(stored, v) {
			v.published = publication{reason: v1alpha1.ReasonNotConvertible, message: fmt.Sprintf(
				"version %s is published, and objects cannot be read in both versions without losing fields: to publish this one instead, set spec.publish to true here and to false there before objects exist", stored.name)}
			continue
		}
		out.versions = append(out.versions, v)
	}
	return out
}

// freezeDiverging freezes versions that are published together unless they change in the same
// way: clusters may upgrade one of them before the other.
func freezeDiverging(candidates []*version) {
	var standing []*version
	for _, v := range candidates {
		if v.current.published {
			standing = append(standing, v)
		}
	}
	for i := range standing {
		if i == 0 || equivalent(standing[0], standing[i]) {
			continue
		}
		for _, v := range standing {
			v.freeze("the clusters have changed this version differently from the other published ones, and objects are read in all of them: change all versions in the same way")
		}
		return
	}
}

func notRequested(group string, explicit bool) string {
	if explicit {
		return "spec.publish is false: set it to true to have the control plane serve the type"
	}
	if group == "" {
		group = v1alpha1.CoreGroup
	}
	return fmt.Sprintf("not requested: set spec.publish to true, or name group %s in a TypePolicy that publishes Automatically", group)
}

// mustKeep reports whether objects may be stored in a version, so that the CRD must include it.
func (f *typeState) mustKeep(v *version) bool {
	return f.crd != nil && v.typ != nil && v.current.published && slices.Contains(f.crd.Status.StoredVersions, v.name)
}

// compare orders versions: the storage version, versions that a user requested, those that most
// clusters accept, and then as Kubernetes does, the most stable and newest first.
func (f *typeState) compare(a, b *version) int {
	rank := func(v *version) int {
		wanted, explicit := f.wants(v)
		switch {
		case f.isStorage(v):
			return 0
		case wanted && explicit:
			return 1
		}
		return 2
	}
	return cmp.Or(rank(a)-rank(b), b.compatible()-a.compatible(), kversion.CompareKubeAwareVersionStrings(b.name, a.name))
}

// isStorage reports whether a version is the CRD's storage version.
func (f *typeState) isStorage(v *version) bool {
	return f.crd != nil && slices.ContainsFunc(f.crd.Spec.Versions, func(c apiextensionsv1.CustomResourceDefinitionVersion) bool {
		return c.Name == v.name && c.Storage
	})
}

// withVersionOf returns a type with the version of another, so that everything else can be
// compared.
func withVersionOf(t, like *schema.Type) *schema.Type {
	out := *t
	out.Version = like.Version
	return &out
}

// crd returns the CRD to apply.
func (p plan) crd(f *typeState) (*unstructured.Unstructured, error) {
	var all []schema.Type
	var digests []string
	for _, v := range p.versions {
		s, err := newServed(v.typ, "")
		if err != nil {
			return nil, err
		}
		all = append(all, *v.typ)
		digests = append(digests, v.name+"="+s.digest)
	}
	crd, err := schema.CRD(all)
	if err != nil {
		return nil, err
	}
	crd.Annotations = map[string]string{v1alpha1.PublishedTypesAnnotation: strings.Join(digests, ",")}
	crd.Labels = map[string]string{v1alpha1.PublishedLabel: "true"}
	crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.NoneConverter}
	if approved := f.approval(); approved != "" {
		crd.Annotations[apiextensionsv1.KubeAPIApprovedAnnotation] = approved
	}
	data, err := json.Marshal(crd)
	u := &unstructured.Unstructured{}
	if err == nil {
		err = u.UnmarshalJSON(data)
	}
	if err != nil {
		return nil, fmt.Errorf("encode CustomResourceDefinition %s: %w", f.gr, err)
	}
	unstructured.RemoveNestedField(u.Object, "status")
	unstructured.RemoveNestedField(u.Object, "metadata", "creationTimestamp")
	return u, nil
}

// equivalent reports whether two versions accept the same objects, so that objects can be read
// in either.
func equivalent(a, b *version) bool {
	return len(check(a.typ, withVersionOf(b.typ, a.typ))) == 0 && len(check(withVersionOf(b.typ, a.typ), a.typ)) == 0
}

// approval returns the approval annotation of the members' CRDs, which the API server requires
// in groups of the Kubernetes community.
func (f *typeState) approval() string {
	var all []string
	for _, v := range f.versions {
		for _, i := range v.imports {
			if a := i.Annotations[apiextensionsv1.KubeAPIApprovedAnnotation]; a != "" {
				all = append(all, a)
			}
		}
	}
	if len(all) > 0 {
		return slices.Min(all)
	}
	if f.crd != nil {
		return f.crd.Annotations[apiextensionsv1.KubeAPIApprovedAnnotation]
	}
	return ""
}
