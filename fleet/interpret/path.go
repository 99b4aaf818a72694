package interpret

// Scale returns the replica count fields that a CustomResourceDefinition or a
// ResourceInterpretation declares, or nil.
func (k KindInfo) Scale() *Scale { return k.scale }

// ReplicasPath returns the replica count field of a divided kind, as field names from the root, or
// nil if it has none.
func (k KindInfo) ReplicasPath() []string {
	if !k.Divided {
		return nil
	}
	return k.replicasPath()
}
