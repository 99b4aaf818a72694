package placement

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// TestPoliciesOfNamespaces: only a ClusterPlacement that names the kind selects a Namespace.
func TestPoliciesOfNamespaces(t *testing.T) {
	labelled := &metav1.LabelSelector{MatchLabels: map[string]string{"team": "a"}}
	for name, tt := range map[string]struct {
		selector   v1alpha1.ObjectSelector
		namespaces *metav1.LabelSelector
		selects    bool
	}{
		"everything":                {v1alpha1.ObjectSelector{}, nil, false},
		"its name":                  {v1alpha1.ObjectSelector{Names: []string{"shop"}}, nil, false},
		"its labels":                {v1alpha1.ObjectSelector{LabelSelector: labelled}, nil, false},
		"its objects":               {v1alpha1.ObjectSelector{}, labelled, false},
		"other kinds":               {v1alpha1.ObjectSelector{Kinds: []string{"Deployment"}}, nil, false},
		"a kind of its name":        {v1alpha1.ObjectSelector{Kinds: []string{"Namespace.example.com"}}, nil, false},
		"its kind":                  {v1alpha1.ObjectSelector{Kinds: []string{"Namespace"}}, nil, true},
		"its kind, another name":    {v1alpha1.ObjectSelector{Kinds: []string{"Namespace"}, Names: []string{"other"}}, nil, false},
		"its kind and labels":       {v1alpha1.ObjectSelector{Kinds: []string{"Namespace"}, LabelSelector: labelled}, nil, true},
		"its kind, as a namespace":  {v1alpha1.ObjectSelector{Kinds: []string{"Namespace"}}, labelled, true},
		"its kind, another's label": {v1alpha1.ObjectSelector{Kinds: []string{"Namespace"}}, &metav1.LabelSelector{MatchLabels: map[string]string{"team": "b"}}, false},
	} {
		for _, policy := range []string{"p", v1alpha1.DefaultPlacementName} {
			p := &v1alpha1.ClusterPlacement{ObjectMeta: metav1.ObjectMeta{Name: policy, UID: types.UID(policy)}}
			p.Spec.Selector, p.Spec.NamespaceSelector, p.Spec.Mode = tt.selector, tt.namespaces, v1alpha1.ModeDuplicated
			choice := NewPolicies(nil, []*v1alpha1.ClusterPlacement{p}, nil).For(PolicyTarget{GroupKind: schema.GroupKind{Kind: "Namespace"}, Name: "shop", Labels: map[string]string{"team": "a"}})
			if selects := choice.Reference.Kind == "ClusterPlacement"; selects != tt.selects {
				t.Errorf("%s, policy %s: selects it: %v", name, policy, selects)
			}
		}
	}
}

// TestOverridesOfNamespaces: overrides change labels and annotations of Namespaces alone, and the error names the field.
func TestOverridesOfNamespaces(t *testing.T) {
	patch := func(op, path, from string) v1alpha1.Override {
		return v1alpha1.Override{JSONPatch: []v1alpha1.PatchOperation{{Op: op, Path: path, From: from}}}
	}
	one := int32(1)
	for name, tt := range map[string]struct {
		selected []string
		override v1alpha1.OverridePolicy
		want     string
	}{
		"a label":                     {[]string{"Namespace"}, v1alpha1.OverridePolicy{Override: patch("add", "/metadata/labels/a", "")}, ""},
		"an annotation":               {[]string{"Namespace"}, v1alpha1.OverridePolicy{Override: patch("remove", "/metadata/annotations/a", "")}, ""},
		"all labels":                  {[]string{"Namespace"}, v1alpha1.OverridePolicy{Override: patch("remove", "/metadata/labels", "")}, "jsonPatch[0].path"},
		"the spec":                    {[]string{"Namespace"}, v1alpha1.OverridePolicy{Override: patch("remove", "/spec/finalizers", "")}, "jsonPatch[0].path"},
		"from the name":               {[]string{"Namespace"}, v1alpha1.OverridePolicy{Override: patch("copy", "/metadata/labels/a", "/metadata/name")}, "jsonPatch[0].from"},
		"replicas":                    {[]string{"Namespace"}, v1alpha1.OverridePolicy{Replicas: &one}, "replicas"},
		"variables":                   {[]string{"Deployment", "Namespace"}, v1alpha1.OverridePolicy{Kinds: []string{"Namespace"}, Override: v1alpha1.Override{Env: []v1alpha1.EnvOverride{{Name: "A"}}}}, "env"},
		"variables of Deployments":    {[]string{"Deployment", "Namespace"}, v1alpha1.OverridePolicy{Override: v1alpha1.Override{Env: []v1alpha1.EnvOverride{{Name: "A"}}}}, ""},
		"a text":                      {[]string{"ConfigMap", "Namespace"}, v1alpha1.OverridePolicy{Override: v1alpha1.Override{Text: []v1alpha1.TextOverride{{Path: "/data/a"}}}}, "text[0].path"},
		"a text of an annotation":     {[]string{"Namespace"}, v1alpha1.OverridePolicy{Override: v1alpha1.Override{Text: []v1alpha1.TextOverride{{Path: "/metadata/annotations/a"}}}}, ""},
		"a text of ConfigMaps":        {[]string{"ConfigMap", "Namespace"}, v1alpha1.OverridePolicy{Kinds: []string{"ConfigMap"}, Override: v1alpha1.Override{Text: []v1alpha1.TextOverride{{Path: "/data/a"}}}}, ""},
		"the spec, of Deployments":    {[]string{"Deployment"}, v1alpha1.OverridePolicy{Override: patch("remove", "/spec/a", "")}, ""},
		"the spec, of all workloads":  {nil, v1alpha1.OverridePolicy{Override: patch("remove", "/spec/a", "")}, ""},
		"the spec, of a similar kind": {[]string{"Namespace.example.com"}, v1alpha1.OverridePolicy{Override: patch("remove", "/spec/a", "")}, ""},
	} {
		spec := &v1alpha1.PlacementSpec{Selector: v1alpha1.ObjectSelector{Kinds: tt.selected}, Overrides: []v1alpha1.OverridePolicy{tt.override}}
		err := checkNamespaceOverrides(spec)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.HasPrefix(err.Error(), "spec.overrides[0]."+tt.want+":")) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
