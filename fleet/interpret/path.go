package interpret

// ReplicasPath gives where a divided kind keeps its replica count, as field names
// from the root; nil if it has none.
func (k Kind) ReplicasPath() []string {
	if !k.Divided {
		return nil
	}
	return k.replicasPath()
}
