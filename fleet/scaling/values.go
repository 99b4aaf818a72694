package scaling

import (
	"fmt"
	"strings"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// fields returns pointers to the fields of v, in a fixed order.
func fields(v *v1alpha1.ScaleValues) [3]**int32 {
	return [3]**int32{&v.Replicas, &v.MinReplicas, &v.MaxReplicas}
}

// ValuesOf returns what a rule sets.
func ValuesOf(r *v1alpha1.ScaleRule) v1alpha1.ScaleValues {
	return v1alpha1.ScaleValues{Replicas: r.Replicas, MinReplicas: r.MinReplicas, MaxReplicas: r.MaxReplicas}
}

// String returns values as a user reads them, such as "minReplicas 2 and maxReplicas 10".
func String(v v1alpha1.ScaleValues) string {
	var out []string
	for i, name := range []string{"replicas", "minReplicas", "maxReplicas"} {
		if p := *fields(&v)[i]; p != nil {
			out = append(out, fmt.Sprintf("%s %d", name, *p))
		}
	}
	return strings.Join(out, " and ")
}

// Only returns the fields of v that set has, too.
func Only(v, set v1alpha1.ScaleValues) v1alpha1.ScaleValues {
	for i, p := range fields(&set) {
		if *p == nil {
			*fields(&v)[i] = nil
		}
	}
	return v
}

// Equal reports whether two values are the same, field by field.
func Equal(a, b v1alpha1.ScaleValues) bool {
	for i, p := range fields(&a) {
		q := *fields(&b)[i]
		if (*p == nil) != (q == nil) || q != nil && **p != *q {
			return false
		}
	}
	return true
}

// Step is what a run that has begun needs next.
type Step int

const (
	// Write means that the target still has its previous values.
	Write Step = iota
	// Done means that the target has the values of the run.
	Done
	// Overtaken means that another client has written the target since the run began. Its values stay.
	Overtaken
)

// Resume decides about a run whose outcome is unknown, by the current values of the target.
func Resume(run *v1alpha1.ScaleRun, set, current v1alpha1.ScaleValues) Step {
	current = Only(current, set)
	switch {
	case Equal(current, set):
		return Done
	case Equal(current, Only(run.Previous, set)):
		return Write
	}
	return Overtaken
}
