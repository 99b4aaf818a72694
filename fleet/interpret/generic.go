package interpret

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// Scale names the replica count fields of a kind, as field names from the root. It is what the
// scale subresource of a CustomResourceDefinition declares.
type Scale struct {
	Replicas       []string `json:"replicas"`
	StatusReplicas []string `json:"statusReplicas,omitempty"`
}

// Generic returns the interpretation of a custom resource without a customization. scale is nil if
// the kind has no scale subresource.
//
// A well-known kind with components (see Components) runs in one cluster that has room for all of them.
//
// A kind with replicas is treated as a workload, possibly with an identity and data: it runs in one
// cluster unless a policy says otherwise. Any other kind is treated as configuration, which applies
// wherever its type is served.
func Generic(gvk schema.GroupVersionKind, resource string, clusterScoped bool, scale *Scale) KindInfo {
	k := KindInfo{GroupVersionKind: gvk, Resource: resource, ClusterScoped: clusterScoped, Placed: true, DefaultMode: Duplicated,
		Origin: OriginGeneric, health: conditionsHealth, aggregate: aggregateGeneric,
		Descriptions: Descriptions{Health: wordsConditions, Status: wordsGeneric}}
	if scale != nil && len(scale.Replicas) > 0 {
		k.DefaultMode, k.Divided, k.scale, k.health = Single, true, scale, scaleHealth(scale)
	}
	if k.components = componentsOf(gvk.GroupKind()); k.components != nil {
		k.DefaultMode, k.Divided, k.scale = Single, false, nil // its parts need each other
		k.Descriptions.Needs = wordsComponents
	}
	return k
}

// FromCRD returns the generic interpretation of a CustomResourceDefinition's kind, in its storage
// version.
func FromCRD(definition *unstructured.Unstructured) (KindInfo, error) {
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
				return KindInfo{}, fmt.Errorf("CustomResourceDefinition %s: specReplicasPath: %w", definition.GetName(), err)
			}
			status, err := parsePath(text(declared, "statusReplicasPath"))
			if err != nil {
				return KindInfo{}, fmt.Errorf("CustomResourceDefinition %s: statusReplicasPath: %w", definition.GetName(), err)
			}
			scale = &Scale{Replicas: replicas, StatusReplicas: status}
		}
		return Generic(gvk, text(spec, "names", "plural"), text(spec, "scope") == "Cluster", scale), nil
	}
	return KindInfo{}, fmt.Errorf("CustomResourceDefinition %s has no storage version", definition.GetName())
}

// scaleHealth uses conditions if there are any. A status with only a replica count is healthy when
// the count reaches the requested one.
func scaleHealth(scale *Scale) func(*unstructured.Unstructured) (v1alpha1.Health, string) {
	return func(obj *unstructured.Unstructured) (v1alpha1.Health, string) {
		if len(conditionsOf(object(obj.Object, "status"))) > 0 || len(scale.StatusReplicas) == 0 {
			return conditionsHealth(obj)
		}
		want, asked := number(obj.Object, scale.Replicas...)
		have, _ := number(obj.Object, scale.StatusReplicas...)
		if asked && have < want {
			return v1alpha1.Progressing, "fewer replicas than requested"
		}
		return v1alpha1.Healthy, ""
	}
}

const wordsGeneric = "conditions merged, the worst wins; the generation that all clusters have acted on; other fields if all clusters agree"

// aggregateGeneric aggregates a status by conventions alone. A field that is neither a condition
// nor a generation is copied if all clusters agree on it. With one cluster, all fields are copied.
func aggregateGeneric(k KindInfo, obj *unstructured.Unstructured, members []MemberStatus) (map[string]any, error) {
	out := agreed(members)
	delete(out, "conditions")
	if _, is := generation(out); is {
		delete(out, "observedGeneration")
	}
	if conditions := mergeConditions(members, conditionsOf(object(obj.Object, "status"))); len(conditions) > 0 {
		out["conditions"] = conditions
	}
	for _, m := range members {
		if _, found := generation(m.Status); !found {
			continue
		}
		out["observedGeneration"] = k.observed(obj, members)
		if _, is := m.Status["observedGeneration"].(string); is { // as in a Rollout of Argo
			out["observedGeneration"] = strconv.FormatInt(k.observed(obj, members), 10)
		}
		break
	}
	if k.scale == nil {
		return out, nil
	}
	for _, field := range countFields(members) {
		sumField(out, members, []string{field})
	}
	if len(k.scale.StatusReplicas) > 1 && k.scale.StatusReplicas[0] == "status" {
		sumField(out, members, k.scale.StatusReplicas[1:])
	}
	return out, nil
}

// countFields returns the fields of a status that count replicas, by their names: replicas,
// readyReplicas, updatedReplicas.
func countFields(members []MemberStatus) (fields []string) {
	for _, m := range members {
		for field, value := range m.Status {
			_, counts := value.(int64)
			if counts && (field == "replicas" || strings.HasSuffix(field, "Replicas")) && !slices.Contains(fields, field) {
				fields = append(fields, field)
			}
		}
	}
	return fields
}

// agreed returns the fields with the same value in all clusters that report a status. A stale
// report counts: it may be the only one, and the conditions show that it is stale.
func agreed(members []MemberStatus) map[string]any {
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

// sumField sets a count. Divided replicas add up. If each cluster runs the whole object, the lowest
// count is used, and of unavailable replicas the highest.
func sumField(out map[string]any, members []MemberStatus, path []string) {
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
	case strings.HasPrefix(path[len(path)-1], "unavailable"):
		setNested(out, slices.Max(counts), path...)
	case len(counts) == len(members):
		setNested(out, slices.Min(counts), path...)
	default:
		setNested(out, int64(0), path...)
	}
}
