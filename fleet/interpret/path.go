package interpret

// Scale says where a kind keeps its replica counts, if a CustomResourceDefinition or a
// ResourceInterpretation says so; nil if none does.
func (k Kind) Scale() *Scale { return k.scale }

// ReplicasPath gives where a divided kind keeps its replica count, as field names
// from the root; nil if it has none.
func (k Kind) ReplicasPath() []string {
	if !k.Divided {
		return nil
	}
	return k.replicasPath()
}
