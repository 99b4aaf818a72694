package syncer

import (
	"encoding/json"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// formatContest returns the message about the managers that keep changing fields of a member's
// object, and the possible remedies.
func formatContest(fields string, owners []metav1.ManagedFieldsEntry) string {
	whose := ownersOf(fields, owners)
	if whose == "" {
		whose = "an unknown manager"
	}
	return whose + " in the cluster keeps reverting the object (" + fields + "), so it is corrected at growing intervals: stop that manager, remove the fields from the object here, " +
		"or let a policy only report drift (spec.drift: Report)"
}

// ownersOf returns the managers, other than the syncer, of any of the fields listed by
// differences.
func ownersOf(fields string, owners []metav1.ManagedFieldsEntry) string {
	var names []string
	for _, o := range owners {
		var owned map[string]any
		if o.Manager == FieldManager || o.FieldsV1 == nil || json.Unmarshal(o.FieldsV1.Raw, &owned) != nil {
			continue
		}
		for field := range strings.SplitSeq(fields, ", ") {
			if ownsField(owned, field) && !slices.Contains(names, o.Manager) {
				names = append(names, o.Manager)
			}
		}
	}
	return strings.Join(names, ", ")
}

// ownsField reports whether a manager's field set includes a path. It follows the path only
// through named fields: list items are not resolved.
func ownsField(owned map[string]any, path string) bool {
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
