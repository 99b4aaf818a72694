package syncer

import (
	"encoding/json"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// contest says who keeps changing which fields of an object of the member, and what
// helps.
func contest(fields string, owners []metav1.ManagedFieldsEntry) string {
	whose := ownersOf(fields, owners)
	if whose == "" {
		whose = "somebody"
	}
	return whose + " in the cluster keeps changing it back (" + fields + "), and is met ever more slowly: have that stop; leave the fields out of the object here; " +
		"or have a policy only report it (spec.drift: Report)"
}

// ownersOf names the managers, other than the syncer, of some of the fields as
// differences gives them.
func ownersOf(fields string, owners []metav1.ManagedFieldsEntry) string {
	var names []string
	for _, o := range owners {
		var owned map[string]any
		if o.Manager == FieldManager || o.FieldsV1 == nil || json.Unmarshal(o.FieldsV1.Raw, &owned) != nil {
			continue
		}
		for field := range strings.SplitSeq(fields, ", ") {
			if owns(owned, field) && !slices.Contains(names, o.Manager) {
				names = append(names, o.Manager)
			}
		}
	}
	return strings.Join(names, ", ")
}

// owns follows the path of a field through what a manager owns, as far as it names
// fields: items of lists have no place there.
func owns(owned map[string]any, path string) bool {
	path = strings.NewReplacer("metadata.labels[", "metadata.labels.[", "metadata.annotations[", "metadata.annotations.[").Replace(path)
	for path != "" {
		var step string
		if inner, key := strings.CutPrefix(path, "["); key {
			step, path = strings.TrimSuffix(inner, "]"), "" // keys of labels have dots
		} else {
			step, path, _ = strings.Cut(path, ".")
		}
		step, _, item := strings.Cut(step, "[")
		below, ok := owned["f:"+step].(map[string]any)
		if !ok {
			return false
		}
		if item {
			return true
		}
		owned = below
	}
	return true
}
