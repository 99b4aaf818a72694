package negotiation

// mutated gives the mutants that were compiled in: TestMutantsAreFound puts
// another file in the place of this one.
func mutated() map[string]comparer { return nil }
