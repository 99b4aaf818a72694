package applier

import (
	"slices"
	"strconv"

	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/change"
)

// writtenBackPreconditions returns the preconditions that hold once the change's object was
// written: one generation later, created, or deleted.
func writtenBackPreconditions(c *change.Change) ([]string, error) {
	uid, generation, exists, err := infra.ObjectPrecondition(c)
	if err != nil {
		return nil, err
	}
	after := slices.Clone(c.Preconditions)
	switch {
	case !exists:
		after[0] = createdObject
	default:
		after[0] = "object " + uid + "@" + strconv.FormatInt(generation+1, 10)
		if string(c.RestoreSpec) == "null" {
			after[0] += " deleting"
		}
	}
	return after, nil
}

// createdObject is the precondition of an object that is created while the plan is applied: it has
// been written exactly once.
const createdObject = "object created"

// isJustCreated reports whether an object has not changed since its creation.
func isJustCreated(o *infra.Object) bool { return o != nil && o.Generation == 1 && !o.Deleting }
