package interpret

import "github.com/atoll-dev/atoll/api/fleet/v1alpha1"

// Scale returns the replica count fields that a CustomResourceDefinition or a
// ResourceInterpretation declares, or nil.
func (k KindInfo) Scale() *Scale { return k.scale }

// ReplicasPath returns the replica count field of a divided kind, as field names from the root, or
// nil if it has none.
func (k KindInfo) ReplicasPath() []string {
	if !k.Divided || k.answers(v1alpha1.InterpretReplica) && k.scale == nil {
		return nil // only the webhook knows the field
	}
	return k.replicasPath()
}
