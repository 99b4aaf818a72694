package interpret

import (
	"fmt"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// IgnoredLabel returns a warning about a label of an object that has no effect because its value is unknown, or
// "".
func IgnoredLabel(labels map[string]string) string {
	for _, known := range []struct{ label, one, other string }{
		{v1alpha1.HomeLabel, string(v1alpha1.HomeAbove), string(v1alpha1.HomeMembers)},
		{v1alpha1.DeletionProtectedLabel, "true", "false"},
		{v1alpha1.ConfigurationLabel, string(v1alpha1.WithNamespace), string(v1alpha1.WhereNeeded)},
	} {
		if value, has := labels[known.label]; has && value != known.one && value != known.other {
			return fmt.Sprintf("metadata.labels[%s]: %q has no effect: use %s or %s", known.label, value, known.one, known.other)
		}
	}
	return ""
}
