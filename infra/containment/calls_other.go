//go:build !linux || (!amd64 && !arm64)

package containment

// FiltersCalls is set if this package knows the system calls of this program's processor.
const FiltersCalls = false

// ThisArchitecture returns nothing: see FiltersCalls.
func ThisArchitecture() Architecture { return Architecture{} }

// Denied returns nothing: see FiltersCalls.
func Denied(Profile) []DeniedCall { return nil }
