package interpret

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Choice names objects of a cluster-scoped kind by their properties, where an object needs all that match,
// whatever their names: an aggregated ClusterRole needs its parts.
type Choice struct {
	schema.GroupKind
	labels.Selector
}

// Chooses returns the choices of an object. They are needs: the chosen objects have to run where obj
// runs.
func (k KindInfo) Chooses(obj *unstructured.Unstructured) ([]Choice, error) {
	if k.chooses == nil {
		return nil, nil
	}
	out := &choices{}
	if err := k.chooses(obj, out); err != nil {
		return nil, fmt.Errorf("read the objects that %s %s needs: %w", k.Kind, obj.GetName(), err)
	}
	return out.list, nil
}

// Properties returns what choices select objects of this kind by; nil if no choice does.
func (k KindInfo) Properties(obj *unstructured.Unstructured) map[string]string {
	if k.properties == nil {
		return nil
	}
	return k.properties(obj)
}

// choices collects the choices of an object.
type choices struct{ list []Choice }

// Properties of a CustomResourceDefinition: its API group, its name, and whether its objects have a status.
const (
	groupProperty  = "group"
	nameProperty   = "name"
	statusProperty = "status"
)

func definitionProperties(obj *unstructured.Unstructured) map[string]string {
	status := slices.ContainsFunc(items(obj.Object, "spec", "versions"), func(version map[string]any) bool {
		return object(version, "subresources", "status") != nil
	})
	return map[string]string{groupProperty: text(obj.Object, "spec", "group"), nameProperty: obj.GetName(), statusProperty: strconv.FormatBool(status)}
}

// withoutStatus are the types whose objects have no status: no controller keeps one, so the objects are the
// configuration of the programs that read them.
func withoutStatus(of labels.Set) Choice {
	of[statusProperty] = "false"
	return Choice{schema.GroupKind{Group: crdGroup, Kind: "CustomResourceDefinition"}, labels.SelectorFromSet(of)}
}

func ownLabels(obj *unstructured.Unstructured) map[string]string {
	if own := obj.GetLabels(); len(own) > 0 {
		return own
	}
	return nil
}

// roleChooses: with "*", a rule names all types of a group. A rule that only reads chooses types without a
// status.
func roleChooses(obj *unstructured.Unstructured, out *choices) error {
	out.list = append(out.list, wholeGroups(obj, mayWrite)...)
	for _, rule := range items(obj.Object, "rules") {
		if mayWrite(rule) {
			continue
		}
		for _, group := range texts(rule, "apiGroups") {
			for _, resource := range texts(rule, "resources") {
				switch {
				case !isCustomGroup(group) || strings.Contains(resource, "/"):
				case resource == "*":
					out.list = append(out.list, withoutStatus(labels.Set{groupProperty: group}))
				default:
					out.list = append(out.list, withoutStatus(labels.Set{nameProperty: resource + "." + group}))
				}
			}
		}
	}
	return nil
}

func wholeGroups(role *unstructured.Unstructured, counts func(rule map[string]any) bool) (out []Choice) {
	for _, rule := range items(role.Object, "rules") {
		if !counts(rule) {
			continue
		}
		for _, group := range texts(rule, "apiGroups") {
			if isCustomGroup(group) && slices.Contains(texts(rule, "resources"), "*") {
				out = append(out, Choice{schema.GroupKind{Group: crdGroup, Kind: "CustomResourceDefinition"},
					labels.SelectorFromSet(labels.Set{groupProperty: group})})
			}
		}
	}
	return out
}

// clusterRoleChooses: an aggregated role is the sum of its parts, which are found by their labels.
func clusterRoleChooses(obj *unstructured.Unstructured, out *choices) error {
	for _, field := range items(obj.Object, "aggregationRule", "clusterRoleSelectors") {
		var s metav1.LabelSelector
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(field, &s); err != nil {
			return fmt.Errorf("aggregationRule: %w", err)
		}
		selector, err := metav1.LabelSelectorAsSelector(&s)
		if err != nil {
			return fmt.Errorf("aggregationRule: %w", err)
		}
		out.list = append(out.list, Choice{schema.GroupKind{Group: rbacGroup, Kind: "ClusterRole"}, selector})
	}
	if isDefaultPart(obj) {
		return nil
	}
	return roleChooses(obj, out)
}
