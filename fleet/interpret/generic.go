package interpret

import (
	"fmt"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// Scale says where a kind keeps its replica counts, as field names from the root:
// what the scale subresource of a CustomResourceDefinition declares.
type Scale struct {
	Replicas       []string `json:"replicas"`
	StatusReplicas []string `json:"statusReplicas,omitempty"`
}

// Generic is what can be said of a kind that nobody taught: a custom resource.
// scale is nil if the kind has no scale subresource.
//
// What has replicas is taken for something that runs, with an identity and data
// perhaps: it runs in one cluster unless a policy says otherwise. Anything else
// is taken for a declaration, which holds wherever its type is served.
func Generic(gvk schema.GroupVersionKind, resource string, clusterScoped bool, scale *Scale) Kind {
	k := Kind{GroupVersionKind: gvk, Resource: resource, ClusterScoped: clusterScoped, Placed: true, DefaultMode: Duplicated,
		Origin: OriginGeneric, health: conditionsHealth, aggregate: aggregateGeneric,
		Words: Words{Health: wordsConditions, Status: wordsGeneric}}
	if scale != nil && len(scale.Replicas) > 0 {
		k.DefaultMode, k.Divided, k.scale, k.health = Single, true, scale, scaleHealth(scale)
	}
	return k
}

// DefinedBy gives what can be said of the kind that a CustomResourceDefinition
// defines, in the version in which it is stored.
func DefinedBy(definition *unstructured.Unstructured) (Kind, error) {
	spec := object(definition.Object, "spec")
	for _, version := range items(spec, "versions") {
		if stored, _ := version["storage"].(bool); !stored {
			continue
		}
		gvk := kind(text(spec, "group"), text(version, "name"), text(spec, "names", "kind"))
		var scale *Scale
		if declared := object(version, "subresources", "scale"); declared != nil {
			replicas, err := parsePath(text(declared, "specReplicasPath"))
			if err != nil {
				return Kind{}, fmt.Errorf("CustomResourceDefinition %s: specReplicasPath: %w", definition.GetName(), err)
			}
			status, err := parsePath(text(declared, "statusReplicasPath"))
			if err != nil {
				return Kind{}, fmt.Errorf("CustomResourceDefinition %s: statusReplicasPath: %w", definition.GetName(), err)
			}
			scale = &Scale{Replicas: replicas, StatusReplicas: status}
		}
		return Generic(gvk, text(spec, "names", "plural"), text(spec, "scope") == "Cluster", scale), nil
	}
	return Kind{}, fmt.Errorf("CustomResourceDefinition %s has no version that is stored", definition.GetName())
}

// scaleHealth judges by conditions first; a kind whose status says no more than how
// many replicas there are is well when there are as many as it asks for.
func scaleHealth(scale *Scale) func(*unstructured.Unstructured) (v1alpha1.Health, string) {
	return func(obj *unstructured.Unstructured) (v1alpha1.Health, string) {
		if len(conditionsOf(object(obj.Object, "status"))) > 0 || len(scale.StatusReplicas) == 0 {
			return conditionsHealth(obj)
		}
		want, asked := number(obj.Object, scale.Replicas...)
		have, _ := number(obj.Object, scale.StatusReplicas...)
		if asked && have < want {
			return v1alpha1.Progressing, "fewer replicas than asked for"
		}
		return v1alpha1.Healthy, ""
	}
}

const wordsGeneric = "conditions merged, the worst wins; generation that all have acted on; other fields on which all clusters agree"

// aggregateGeneric summarises a status of which nothing is known but conventions.
// A field that is neither a condition nor a generation is told only as far as the
// clusters agree on it: of a single cluster, all of them.
func aggregateGeneric(k Kind, obj *unstructured.Unstructured, members []Member) (map[string]any, error) {
	out := agreed(members)
	delete(out, "conditions")
	delete(out, "observedGeneration")
	if conditions := mergeConditions(members, conditionsOf(object(obj.Object, "status"))); len(conditions) > 0 {
		out["conditions"] = conditions
	}
	for _, m := range members {
		if m.Status["observedGeneration"] != nil {
			out["observedGeneration"] = k.observed(obj, members)
			break
		}
	}
	if k.scale != nil && len(k.scale.StatusReplicas) > 1 && k.scale.StatusReplicas[0] == "status" {
		sumField(out, members, k.scale.StatusReplicas[1:])
	}
	return out, nil
}

// agreed gives the fields that all clusters that report anything report alike. A
// cluster that does not answer is believed: its last known word is one of many, or
// the only one, and conditions say that it is old.
func agreed(members []Member) map[string]any {
	out := map[string]any{}
	first := true
	for _, m := range members {
		if m.Status == nil {
			continue
		}
		if first {
			out, first = runtime.DeepCopyJSON(m.Status), false
			continue
		}
		for field, value := range out {
			if !reflect.DeepEqual(value, m.Status[field]) {
				delete(out, field)
			}
		}
	}
	return out
}

// sumField gives a count: where replicas are divided they add up; where each
// cluster runs the whole, the least counts.
func sumField(out map[string]any, members []Member, path []string) {
	var counts []int64
	for _, m := range members {
		if n, found := number(m.Status, path...); found {
			counts = append(counts, n)
		}
	}
	switch {
	case len(counts) == 0:
	case divided(members):
		var sum int64
		for _, n := range counts {
			sum += n
		}
		setNested(out, sum, path...)
	case len(counts) == len(members):
		setNested(out, slices.Min(counts), path...)
	default:
		setNested(out, int64(0), path...)
	}
}
