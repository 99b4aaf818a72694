package interpret

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GrantKind is Gateway API's ReferenceGrant, by which a namespace permits objects of another one to refer to its own.
func GrantKind() schema.GroupKind {
	return schema.GroupKind{Group: gatewayGroup, Kind: "ReferenceGrant"}
}

// NeedsGrant reports whether an object may refer to one of another namespace only with a ReferenceGrant there. Routes
// refer to Gateways without one: the Gateway says itself which routes it accepts.
func NeedsGrant(from, to Reference) bool {
	return from.Namespace != "" && to.Namespace != "" && from.Namespace != to.Namespace &&
		to.GroupKind != schema.GroupKind{Group: gatewayGroup, Kind: "Gateway"}
}

// Permits reports whether a ReferenceGrant permits a reference.
func Permits(grant *unstructured.Unstructured, from, to Reference) bool {
	if grant.GetNamespace() != to.Namespace || grant.GetDeletionTimestamp() != nil {
		return false
	}
	permitted := false
	for _, f := range items(grant.Object, "spec", "from") {
		permitted = permitted || text(f, "group") == from.Group && text(f, "kind") == from.Kind && text(f, "namespace") == from.Namespace
	}
	if !permitted {
		return false
	}
	for _, t := range items(grant.Object, "spec", "to") {
		if name := text(t, "name"); text(t, "group") == to.Group && text(t, "kind") == to.Kind && (name == "" || name == to.Name) {
			return true
		}
	}
	return false
}

// grantFollows: a grant goes with the workloads of its namespace, and with the objects that it names, which may be in a
// cluster for objects of another namespace only.
func grantFollows(obj *unstructured.Unstructured, out *attachments) error {
	for _, t := range items(obj.Object, "spec", "to") {
		if name := text(t, "name"); name != "" {
			out.add(refer(text(t, "group"), text(t, "kind"), obj.GetNamespace(), name))
		}
	}
	return everyWorkload(obj, out)
}
