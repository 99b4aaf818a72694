package infra

import "slices"

// IsStale reports whether an object and its state differ from the preconditions that a change was
// computed from. The state is nil if there is none.
func IsStale(o *Object, s *State, planned []string) bool {
	return len(planned) > 0 && !slices.Equal(Preconditions(o, s), planned)
}
