package expose

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// Service leads to the control plane's servers in a member. Their certificate is valid for
// Service.Namespace.svc, where the namespace is v1alpha1.SystemNamespace.
const Service = "atoll"

// groupPriority ranks the group among others with a resource of the same name: after Kubernetes'
// built-in groups, before CRDs (1000). A short name such as `kubectl get widgets` resolves to the
// shared group.
const groupPriority = 2000

// Group is an API group that a member should serve.
type Group struct {
	Name string
	// SharedAPI is the name of the SharedAPI that exposes it.
	SharedAPI string
	// Versions that the control plane serves, best first.
	Versions []string
	// Types identifies the current state of the group's types; see TypesOf.
	Types string
}

// Desired returns the objects that a member needs to serve the groups, in the order of creation.
// Referenced objects come first, so that no APIService exists before its endpoints. Without groups,
// it returns nothing.
//
// The result depends on nothing else. The order of groups and servers is irrelevant.
func Desired(groups []Group, servers []netip.AddrPort, ca []byte) []*unstructured.Unstructured {
	if len(groups) == 0 {
		return nil
	}
	out := []*unstructured.Unstructured{
		object("v1", "Namespace", "", v1alpha1.SystemNamespace, nil),
		object("v1", "Service", v1alpha1.SystemNamespace, Service, map[string]any{"spec": map[string]any{
			// No selector: the endpoints are not Pods of the member.
			"type":  "ClusterIP",
			"ports": []any{map[string]any{"name": "https", "port": int64(443), "protocol": "TCP"}},
		}}),
	}
	out = append(out, slicesOf(servers)...)
	groups = slices.SortedFunc(slices.Values(groups), func(a, b Group) int { return cmp.Compare(a.Name, b.Name) })
	for _, g := range groups {
		out = append(out, roles(g)...)
	}
	for _, g := range groups {
		for i, v := range g.Versions {
			// the best version has the highest number, which must be above zero
			out = append(out, apiService(g, v, len(g.Versions)-i, ca))
		}
	}
	return out
}

// slicesOf returns the EndpointSlices of the Service. All endpoints of a slice share ports and
// address family, so there is one slice for each combination.
func slicesOf(servers []netip.AddrPort) []*unstructured.Unstructured {
	type way struct {
		family string
		port   uint16
	}
	family := map[bool]string{true: "IPv4", false: "IPv6"}
	ways := map[way][]any{}
	for _, s := range slices.SortedFunc(slices.Values(servers), netip.AddrPort.Compare) {
		w := way{family[s.Addr().Is4()], s.Port()}
		endpoint := map[string]any{"addresses": []any{s.Addr().String()}, "conditions": map[string]any{"ready": true}}
		ways[w] = append(ways[w], endpoint)
	}
	var out []*unstructured.Unstructured
	for w, endpoints := range ways {
		prefix := map[string]string{"IPv4": "v4", "IPv6": "v6"}[w.family]
		slice := object("discovery.k8s.io/v1", "EndpointSlice", v1alpha1.SystemNamespace, fmt.Sprintf("%s-%s-%d", Service, prefix, w.port), map[string]any{
			"addressType": w.family,
			"endpoints":   endpoints,
			"ports":       []any{map[string]any{"name": "https", "port": int64(w.port), "protocol": "TCP"}},
		})
		label(slice, "kubernetes.io/service-name", Service)
		// Kubernetes' own controllers ignore slices with another manager.
		label(slice, "endpointslice.kubernetes.io/managed-by", v1alpha1.Group)
		out = append(out, slice)
	}
	slices.SortFunc(out, func(a, b *unstructured.Unstructured) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return out
}

// roles let users with view or edit permissions in the member use the group. The member checks its
// own RBAC first, and then the control plane checks its RBAC. So the roles grant nothing that the
// control plane does not grant.
func roles(g Group) []*unstructured.Unstructured {
	role := func(name string, verbs ...any) *unstructured.Unstructured {
		r := object("rbac.authorization.k8s.io/v1", "ClusterRole", "", "atoll:"+name+":"+g.Name, map[string]any{
			"rules": []any{map[string]any{"apiGroups": []any{g.Name}, "resources": []any{"*"}, "verbs": verbs}},
		})
		return forShared(r, g)
	}
	view := role("view", "get", "list", "watch")
	label(view, "rbac.authorization.k8s.io/aggregate-to-view", "true")
	edit := role("edit", "create", "update", "patch", "delete", "deletecollection")
	label(edit, "rbac.authorization.k8s.io/aggregate-to-edit", "true")
	label(edit, "rbac.authorization.k8s.io/aggregate-to-admin", "true")
	return []*unstructured.Unstructured{view, edit}
}

func apiService(g Group, v string, priority int, ca []byte) *unstructured.Unstructured {
	u := forShared(object("apiregistration.k8s.io/v1", "APIService", "", v+"."+g.Name, map[string]any{"spec": map[string]any{
		"group":                g.Name,
		"version":              v,
		"groupPriorityMinimum": int64(groupPriority),
		"versionPriority":      int64(priority),
		"caBundle":             base64.StdEncoding.EncodeToString(ca),
		"service":              map[string]any{"namespace": v1alpha1.SystemNamespace, "name": Service, "port": int64(443)},
	}}), g)
	if g.Types != "" {
		annotations := u.GetAnnotations()
		annotations[v1alpha1.TypesAnnotation] = g.Types
		u.SetAnnotations(annotations)
	}
	return u
}

// versionOf returns the group and version of an APIService.
func versionOf(apiService *unstructured.Unstructured) schema.GroupVersion {
	group, _, _ := unstructured.NestedString(apiService.Object, "spec", "group")
	version, _, _ := unstructured.NestedString(apiService.Object, "spec", "version")
	return schema.GroupVersion{Group: group, Version: version}
}

func object(apiVersion, kind, namespace, name string, fields map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": kind}}
	for field, value := range fields {
		u.Object[field] = value
	}
	u.SetName(name)
	if namespace != "" {
		u.SetNamespace(namespace)
	}
	label(u, v1alpha1.ManagedByLabel, v1alpha1.ManagedByAtoll)
	return u
}

func label(u *unstructured.Unstructured, key, value string) {
	labels := u.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	labels[key] = value
	u.SetLabels(labels)
}

func forShared(u *unstructured.Unstructured, g Group) *unstructured.Unstructured {
	u.SetAnnotations(map[string]string{v1alpha1.SharedAPIAnnotation: g.SharedAPI})
	return u
}

// ServedVersions returns the versions of each served CRD group: best first, in the order of
// Kubernetes (v2, v1, v1beta1).
func ServedVersions(crds []*unstructured.Unstructured) map[string][]string {
	out := map[string][]string{}
	for _, crd := range crds {
		if !established(crd) || crd.GetDeletionTimestamp() != nil {
			continue
		}
		group, _, _ := unstructured.NestedString(crd.Object, "spec", "group")
		versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
		for _, v := range versions {
			fields, ok := v.(map[string]any)
			if !ok || fields["served"] != true {
				continue
			}
			if name, ok := fields["name"].(string); ok && !slices.Contains(out[group], name) {
				out[group] = append(out[group], name)
			}
		}
	}
	for _, versions := range out {
		slices.SortFunc(versions, func(a, b string) int { return version.CompareKubeAwareVersionStrings(b, a) })
	}
	return out
}

// TypesOf returns, for each served CRD group, a digest that changes when a type is added, changed
// or deleted.
func TypesOf(crds []*unstructured.Unstructured) map[string]string {
	types := map[string][]string{}
	for _, crd := range crds {
		if !established(crd) {
			continue
		}
		group, _, _ := unstructured.NestedString(crd.Object, "spec", "group")
		// A type that is being deleted is in discovery, without some verbs, until it is gone.
		going := crd.GetDeletionTimestamp() != nil
		types[group] = append(types[group], fmt.Sprintf("%s %s %d %t", crd.GetName(), crd.GetUID(), crd.GetGeneration(), going))
	}
	out := map[string]string{}
	for group, all := range types {
		slices.Sort(all)
		sum := sha256.Sum256([]byte(strings.Join(all, "\n")))
		out[group] = hex.EncodeToString(sum[:8])
	}
	return out
}

func established(crd *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(crd.Object, "status", "conditions")
	for _, c := range conditions {
		if fields, ok := c.(map[string]any); ok && fields["type"] == "Established" {
			return fields["status"] == "True"
		}
	}
	return false
}

// covers reports whether live contains everything in desired. It ignores additional fields, which
// the member defaults or others add. Lists must have the same length.
func covers(live, desired any) bool {
	switch want := desired.(type) {
	case map[string]any:
		have, ok := live.(map[string]any)
		if !ok {
			return false
		}
		for field, value := range want {
			if !covers(have[field], value) {
				return false
			}
		}
		return true
	case []any:
		have, ok := live.([]any)
		return ok && slices.EqualFunc(have, want, covers)
	}
	return live == desired
}

// kinds returns the kinds of Desired, in its order, with their resources.
func kinds() []kind {
	return []kind{
		{schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}, "Namespace"},
		{schema.GroupVersionResource{Version: "v1", Resource: "services"}, "Service"},
		{schema.GroupVersionResource{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"}, "EndpointSlice"},
		{schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"}, "ClusterRole"},
		{schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}, apiServiceKind},
	}
}

const apiServiceKind = "APIService"

type kind struct {
	gvr  schema.GroupVersionResource
	name string
}
