package workspaces

import (
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/apiserver"
)

func kind(group, resource, kind string, namespaced bool) apiserver.ServedKind {
	return apiserver.ServedKind{Resource: schema.GroupVersionResource{Group: group, Version: "v1", Resource: resource}, Kind: kind, Namespaced: namespaced}
}

type objectsByKind = map[apiserver.ServedKind][]runtime.Object

// TestProgress: the objects of a workspace decide whether something is left.
func TestProgress(t *testing.T) {
	var (
		spaces   = kind("", "namespaces", "Namespace", false)
		accounts = kind("", "serviceaccounts", "ServiceAccount", true)
		maps     = kind("", "configmaps", "ConfigMap", true)
		widgets  = kind("example.com", "widgets", "Widget", true)
		crds     = kind(customDefinitions.Group, customDefinitions.Resource, "CustomResourceDefinition", false)
		roles    = kind(rbacv1.GroupName, "clusterroles", "ClusterRole", false)
		policies = kind(apiserver.PoliciesResource.Group, apiserver.PoliciesResource.Resource, "ValidatingAdmissionPolicy", false)
		now      = metav1.Now()
	)
	meta := func(namespace, name string, edits ...func(*metav1.ObjectMeta)) runtime.Object {
		m := metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-of-" + name)}
		for _, edit := range edits {
			edit(&m)
		}
		return &metav1.PartialObjectMetadata{ObjectMeta: m}
	}
	deleted := func(finalizers ...string) func(*metav1.ObjectMeta) {
		return func(m *metav1.ObjectMeta) { m.DeletionTimestamp, m.Finalizers = &now, finalizers }
	}
	owner := func(apiVersion, kind, name string) func(*metav1.ObjectMeta) {
		return func(m *metav1.ObjectMeta) {
			m.OwnerReferences = append(m.OwnerReferences, metav1.OwnerReference{APIVersion: apiVersion, Kind: kind, Name: name, UID: types.UID("uid-of-" + name)})
		}
	}
	role := func(name string, labels map[string]string, rules []rbacv1.PolicyRule, selects map[string]string) runtime.Object {
		r := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Rules: rules}
		if selects != nil {
			r.AggregationRule = &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: selects}}}
		}
		return r
	}
	policy := func(generation, observed int64) runtime.Object {
		return &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "names", Generation: generation}, Status: admissionregistrationv1.ValidatingAdmissionPolicyStatus{ObservedGeneration: observed}}
	}
	rules := []rbacv1.PolicyRule{{Verbs: []string{"get"}, Resources: []string{"secrets"}, APIGroups: []string{""}}}
	published := func(pem string) []runtime.Object {
		return []runtime.Object{&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "kube-root-ca.crt"}, Data: map[string]string{"ca.crt": pem}}}
	}
	shop := objectsByKind{spaces: {meta("", "shop")}, accounts: {meta("shop", "default")}}
	with := func(extra objectsByKind) objectsByKind {
		out := objectsByKind{widgets: nil, maps: nil}
		for _, part := range []objectsByKind{shop, extra} {
			for k, objects := range part {
				out[k] = append(out[k], objects...)
			}
		}
		return out
	}
	for name, c := range map[string]struct {
		extra   objectsByKind
		rootCAs []runtime.Object
		want    string // "" if nothing is left
	}{
		"nothing":                               {nil, published("ca"), ""},
		"no account":                            {objectsByKind{spaces: {meta("", "bare")}}, published("ca"), "namespaces bare does not have the certificate authority of this server"},
		"another authority":                     {nil, published("old"), "namespaces shop does not have the certificate authority of this server"},
		"a deleted namespace":                   {objectsByKind{spaces: {meta("", "old", deleted())}}, published("ca"), "namespaces old is being deleted"},
		"a deleted definition":                  {objectsByKind{crds: {meta("", "widgets.example.com", deleted("cleanup"))}}, published("ca"), "customresourcedefinitions.apiextensions.k8s.io widgets.example.com is being deleted"},
		"a deletion that the collector ends":    {objectsByKind{maps: {meta("shop", "a", deleted(metav1.FinalizerDeleteDependents))}}, published("ca"), "configmaps shop/a is being deleted"},
		"one that a user ends":                  {objectsByKind{maps: {meta("shop", "a", deleted("example.com/held"))}}, published("ca"), ""},
		"an owner that exists":                  {objectsByKind{maps: {meta("shop", "a"), meta("shop", "b", owner("v1", "ConfigMap", "a"))}}, published("ca"), ""},
		"an owner without a namespace":          {objectsByKind{maps: {meta("shop", "b", owner("v1", "Namespace", "shop"))}}, published("ca"), ""},
		"an owner that does not exist":          {objectsByKind{maps: {meta("shop", "b", owner("v1", "ConfigMap", "a"))}}, published("ca"), "configmaps shop/b has an owner that does not exist"},
		"one of two owners":                     {objectsByKind{maps: {meta("shop", "a"), meta("shop", "b", owner("v1", "ConfigMap", "a"), owner("v1", "ConfigMap", "c"))}}, published("ca"), "configmaps shop/b has an owner that does not exist"},
		"an owner in another namespace":         {objectsByKind{maps: {meta("other", "a"), meta("shop", "b", owner("v1", "ConfigMap", "a"))}}, published("ca"), "configmaps shop/b has an owner that does not exist"},
		"an owner of another kind":              {objectsByKind{maps: {meta("shop", "a"), meta("shop", "b", owner("example.com/v1", "Widget", "a"))}}, published("ca"), "configmaps shop/b has an owner that does not exist"},
		"an owner of another version":           {objectsByKind{widgets: {meta("shop", "a")}, maps: {meta("shop", "b", owner("example.com/v1beta1", "Widget", "a"))}}, published("ca"), ""},
		"an owner of an unknown kind":           {objectsByKind{maps: {meta("shop", "b", owner("example.com/v1", "Gadget", "a"))}}, published("ca"), ""},
		"a cluster's object with such an owner": {objectsByKind{roles: {meta("", "b", owner("v1", "ConfigMap", "a"))}}, published("ca"), ""},
		"a policy whose types are not checked":  {objectsByKind{policies: {policy(2, 1)}}, published("ca"), "validatingadmissionpolicies.admissionregistration.k8s.io names has types that are not checked"},
		"a policy whose types are checked":      {objectsByKind{policies: {policy(2, 2)}}, published("ca"), ""},
		"an aggregated role":                    {objectsByKind{roles: {role("sum", nil, rules, map[string]string{"in": "sum"}), role("part", map[string]string{"in": "sum"}, rules, nil)}}, published("ca"), ""},
		"one that lacks rules":                  {objectsByKind{roles: {role("sum", nil, nil, map[string]string{"in": "sum"}), role("part", map[string]string{"in": "sum"}, rules, nil)}}, published("ca"), "clusterroles sum does not have the rules that it aggregates"},
		"one with rules of its own":             {objectsByKind{roles: {role("sum", nil, rules, map[string]string{"in": "sum"})}}, published("ca"), "clusterroles sum does not have the rules that it aggregates"},
	} {
		got := contents{objects: with(c.extra), rootCAs: c.rootCAs, rootCA: []byte("ca")}.progress()
		if got.First != c.want || got.Left > 0 != (c.want != "") || !got.Synced {
			t.Errorf("%s: %+v, want %q", name, got, c.want)
		}
	}
}
