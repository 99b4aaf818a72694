package interpret

import (
	"cmp"
	"encoding/json"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

func gatewayClassNeeds(obj *unstructured.Unstructured, out *refs) error {
	p := object(obj.Object, "spec", "parametersRef")
	out.add(refer(text(p, "group"), text(p, "kind"), text(p, "namespace"), text(p, "name")))
	return nil
}

func gatewayNeeds(obj *unstructured.Unstructured, out *refs) error {
	out.global(gatewayGroup, "GatewayClass", text(obj.Object, "spec", "gatewayClassName"))
	for _, listener := range items(obj.Object, "spec", "listeners") {
		for _, ref := range items(listener, "tls", "certificateRefs") {
			out.add(referred(ref, obj.GetNamespace(), "", "Secret"))
		}
	}
	p := object(obj.Object, "spec", "infrastructure", "parametersRef")
	out.here(text(p, "group"), text(p, "kind"), text(p, "name"))
	return nil
}

// referred reads a Gateway API reference, whose group, kind and namespace have defaults. An
// explicit group may be empty, for the core group.
func referred(ref map[string]any, namespace, group, kind string) Reference {
	if given, ok := ref["group"].(string); ok {
		group = given
	}
	return refer(group, cmp.Or(text(ref, "kind"), kind), cmp.Or(text(ref, "namespace"), namespace), text(ref, "name"))
}

func routeNeeds(obj *unstructured.Unstructured, out *refs) error {
	for _, ref := range items(obj.Object, "spec", "parentRefs") {
		if parent := referred(ref, obj.GetNamespace(), gatewayGroup, "Gateway"); parent.Kind != "Service" {
			out.add(parent)
		}
	}
	return nil
}

// routeFollows: a route runs where its backend Services run. In a mesh, its parent is also a
// Service: the one whose traffic it directs.
func routeFollows(obj *unstructured.Unstructured, out *attachments) error {
	for _, ref := range items(obj.Object, "spec", "parentRefs") {
		if parent := referred(ref, obj.GetNamespace(), gatewayGroup, "Gateway"); parent.Kind == "Service" {
			out.add(parent)
		}
	}
	for _, rule := range items(obj.Object, "spec", "rules") {
		for _, backend := range items(rule, "backendRefs") {
			out.add(referred(backend, obj.GetNamespace(), "", "Service"))
			mirrors(backend, obj.GetNamespace(), out)
		}
		mirrors(rule, obj.GetNamespace(), out)
	}
	return nil
}

// mirrors adds the Services that receive mirrored requests.
func mirrors(at map[string]any, namespace string, out *attachments) {
	for _, filter := range items(at, "filters") {
		if backend := object(filter, "requestMirror", "backendRef"); backend != nil {
			out.add(referred(backend, namespace, "", "Service"))
		}
	}
}

// routeHealth: each parent reports whether it accepted the route.
func routeHealth(obj *unstructured.Unstructured) (v1alpha1.Health, string) {
	parents := items(obj.Object, "status", "parents")
	if len(parents) == 0 {
		return v1alpha1.Progressing, "no Gateway has accepted the route yet"
	}
	for _, parent := range parents {
		for _, c := range conditionsOf(parent) {
			if (c.Type == "Accepted" || c.Type == "ResolvedRefs") && c.Status != "True" {
				return v1alpha1.Degraded, text(parent, "parentRef", "name") + ": " + c.description()
			}
		}
	}
	return v1alpha1.Healthy, ""
}

// aggregateRoute has an entry for each parent that a cluster reports.
func aggregateRoute(_ KindInfo, obj *unstructured.Unstructured, members []MemberStatus) (map[string]any, error) {
	return map[string]any{"parents": mergeByKey(members, statusList(obj, "parents"), "parents", func(parent map[string]any) string {
		key, _ := json.Marshal([]any{parent["parentRef"], parent["controllerName"]})
		return string(key)
	})}, nil
}

// aggregateGateway: every cluster has addresses of its own, and all of them lead to the
// application.
func aggregateGateway(k KindInfo, obj *unstructured.Unstructured, members []MemberStatus) (map[string]any, error) {
	out, err := aggregateGeneric(k, obj, members)
	if err != nil {
		return nil, err
	}
	var addresses []any
	for _, m := range members {
		if m.Stale != "" {
			continue
		}
		for _, address := range items(m.Status, "addresses") {
			addresses = append(addresses, runtime.DeepCopyJSON(address))
		}
	}
	delete(out, "addresses")
	if len(addresses) > 0 {
		out["addresses"] = addresses
	}
	if listeners := mergeByKey(members, statusList(obj, "listeners"), "listeners", func(l map[string]any) string { return text(l, "name") }); len(listeners) > 0 {
		out["listeners"] = listeners
	}
	return out, nil
}

// mergeByKey merges lists whose entries have conditions. Other fields of an entry are those of the
// first cluster that reports it.
func mergeByKey(members []MemberStatus, before []map[string]any, field string, key func(map[string]any) string) []any {
	var order []string
	reports := map[string][]MemberStatus{}
	first := map[string]map[string]any{}
	for _, m := range members {
		for _, entry := range items(m.Status, field) {
			id := key(entry)
			if first[id] == nil {
				order, first[id] = append(order, id), entry
			}
			reports[id] = append(reports[id], MemberStatus{Cluster: m.Cluster, Stale: m.Stale, Status: entry})
		}
	}
	out := make([]any, 0, len(order))
	for _, id := range order {
		var old map[string]any
		for _, entry := range before {
			if key(entry) == id {
				old = entry
			}
		}
		merged := runtime.DeepCopyJSON(first[id])
		if conditions := mergeConditions(reports[id], conditionsOf(old)); len(conditions) > 0 {
			merged["conditions"] = conditions
		}
		out = append(out, merged)
	}
	return out
}

// statusList returns a list of the object's own status.
func statusList(obj *unstructured.Unstructured, field string) []map[string]any {
	return items(obj.Object, "status", field)
}
