package infra

import "slices"

// Moved tells whether an object and its state, nil if there is none, are no longer what a change was
// computed from, as its preconditions name it.
func Moved(o *Object, s *State, were []string) bool {
	return len(were) > 0 && !slices.Equal(preconditions(o, s), were)
}
