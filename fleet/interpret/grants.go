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
