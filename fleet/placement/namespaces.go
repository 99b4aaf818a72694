package placement

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

func isNamespace(gk schema.GroupKind) bool { return gk == schema.GroupKind{Kind: "Namespace"} }

// NamesNamespaces reports whether a list of kinds names that of Namespaces.
func NamesNamespaces(kinds []string) bool {
	return len(kinds) > 0 && ofKinds(kinds, "", "Namespace")
}

// checkNamespaceOverrides returns an error if overrides change more of Namespaces than their labels and annotations.
// An override for other kinds, too, may have fields without effect on Namespaces, such as images.
func checkNamespaceOverrides(spec *v1alpha1.PlacementSpec) error {
	if !NamesNamespaces(spec.Selector.Kinds) {
		return nil
	}
	for i := range spec.Overrides {
		o := &spec.Overrides[i]
		if !ofKinds(o.Kinds, "", "Namespace") {
			continue
		}
		field := ""
		switch {
		case !onlyNamespaces(spec.Selector.Kinds) && !onlyNamespaces(o.Kinds):
		case o.Replicas != nil:
			field = "replicas"
		case len(o.Images) > 0:
			field = "images"
		case len(o.Env) > 0:
			field = "env"
		}
		for j := range o.Text {
			if field == "" && !isOfMarks(o.Text[j].Path) {
				field = fmt.Sprintf("text[%d].path", j)
			}
		}
		for j, op := range o.JSONPatch {
			if field == "" && !isOfMarks(op.Path) {
				field = fmt.Sprintf("jsonPatch[%d].path", j)
			}
			if field == "" && op.From != "" && !isOfMarks(op.From) {
				field = fmt.Sprintf("jsonPatch[%d].from", j)
			}
		}
		if field != "" {
			return fmt.Errorf("spec.overrides[%d].%s: overrides of a Namespace change labels and annotations only: use jsonPatch or text with paths below "+
				"/metadata/labels and /metadata/annotations, or limit this override to other kinds with spec.overrides[%d].kinds", i, field, i)
		}
	}
	return nil
}

func onlyNamespaces(kinds []string) bool {
	return len(kinds) > 0 && !slices.ContainsFunc(kinds, func(k string) bool { return !NamesNamespaces([]string{k}) })
}

// isOfMarks reports whether a JSON pointer leads into the labels or annotations of an object.
func isOfMarks(path string) bool {
	return strings.HasPrefix(path, "/metadata/labels/") || strings.HasPrefix(path, "/metadata/annotations/")
}
