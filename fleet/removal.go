package fleet

import "github.com/atoll-dev/atoll/api/fleet/v1alpha1"

// Removal says whether an object is to leave a cluster.
type Removal struct {
	// Binding is the current binding of the object; nil if the object is to stay.
	Binding *v1alpha1.ResourceBinding
	// Decided reports that no one requested the removal: a decision changed, or a type vanished with its
	// objects.
	Decided bool
	// Waits is what the removal waits for: until then the object must stay. It is "" if it may go.
	Waits string
}
