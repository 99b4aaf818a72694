package schema

// Gap is what a cluster lacks for an object of a built-in kind. Many clusters may share one, so it
// must not be changed.
type Gap struct {
	// Reason is TypeNotServed or UnknownFields.
	Reason string
	// Message explains the gap and the remedy. It continues "the cluster …".
	Message string
	// Fields are the paths that the cluster does not know.
	Fields []string
}

// Reasons of a Gap.
const (
	TypeNotServed = "TypeNotServed"
	UnknownFields = "UnknownFields"
)
