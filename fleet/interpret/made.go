package interpret

import (
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Reads returns the Secrets and ConfigMaps without which the pods of obj do not start.
func (k KindInfo) Reads(obj *unstructured.Unstructured) []Reference {
	out := &refs{namespace: obj.GetNamespace()}
	if k.templateNeeds(obj, out) != nil || k.componentNeeds(obj, out) != nil {
		return nil // Needs reports the error
	}
	return out.content
}

// Makes reports whether the controller of a custom resource is likely to make an object of a name: the
// resource names it, as in spec.secretName or status.binding.name, or the name is built with its own, as in
// orders-credentials of the Database orders.
func Makes(custom *unstructured.Unstructured, name string) bool {
	own := custom.GetName()
	if own == "" {
		return false
	}
	rest, begins := strings.CutPrefix(name, own)
	if begins && (rest == "" || rest[0] == '-' || rest[0] == '.') || strings.HasSuffix(name, "-"+own) || strings.Contains(name, "."+own+".") {
		return true
	}
	return mentions(custom.Object["spec"], name) || mentions(custom.Object["status"], name)
}

// mentions reports whether a field, or one within it, has a value.
func mentions(field any, value string) bool {
	switch f := field.(type) {
	case string:
		return f == value
	case map[string]any:
		for _, in := range f {
			if mentions(in, value) {
				return true
			}
		}
	case []any:
		for _, in := range f {
			if mentions(in, value) {
				return true
			}
		}
	}
	return false
}
