package schema

// Gap is what a cluster lacks for an object of a kind that Kubernetes itself defines.
// One may be shared by many clusters, so nobody changes it.
type Gap struct {
	// Reason is TypeNotServed or UnknownFields.
	Reason string
	// Message says what, and what to do: it continues "the cluster …".
	Message string
	// Fields are the paths that the cluster does not know.
	Fields []string
}

// Reasons of a Gap.
const (
	TypeNotServed = "TypeNotServed"
	UnknownFields = "UnknownFields"
)
