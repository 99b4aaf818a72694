package interpret

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Scale says where a kind keeps its replica counts, as field names from the root:
// what the scale subresource of a CustomResourceDefinition declares.
type Scale struct {
	Replicas, StatusReplicas []string
}

// Generic is what can be said of a kind that nobody taught: a custom resource.
// scale is nil if the kind has no scale subresource.
//
// What has replicas is taken for something that runs, with an identity and data
// perhaps: it runs in one cluster unless a policy says otherwise. Anything else
// is taken for a declaration, which holds wherever its type is served.
func Generic(gvk schema.GroupVersionKind, resource string, clusterScoped bool, scale *Scale) Kind {
	k := Kind{GroupVersionKind: gvk, Resource: resource, ClusterScoped: clusterScoped, Placed: true, DefaultMode: Duplicated}
	if scale != nil && len(scale.Replicas) > 0 {
		k.DefaultMode, k.Divided, k.scale = Single, true, scale
	}
	return k
}
