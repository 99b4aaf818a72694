package infra

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/atoll-dev/atoll/infra/plan"
)

// none stands in a precondition for what is not there.
const none = "none"

// preconditions are what a change was computed from: they have to be the same when it is
// carried out.
func preconditions(o *Object, s *State) []string {
	object, state := none, none
	if o != nil {
		object = o.UID + "@" + strconv.FormatInt(o.Generation, 10)
		if o.Deleting {
			object += " deleting"
		}
	}
	if s != nil && s.ResourceVersion != "" {
		state = s.UID + "@" + s.ResourceVersion
	}
	return []string{"object " + object, "state " + state}
}

// WrittenFrom is what the object of a change was when it was planned: its UID and generation, or that there was none.
func WrittenFrom(c *plan.Change) (uid string, generation int64, there bool, err error) {
	if len(c.Preconditions) == 0 {
		return "", 0, false, fmt.Errorf("%s: the change says nothing of its object", c.Address)
	}
	text := strings.TrimSuffix(strings.TrimPrefix(c.Preconditions[0], "object "), " deleting")
	if text == none {
		return "", 0, false, nil
	}
	uid, number, _ := strings.Cut(text, "@")
	if generation, err = strconv.ParseInt(number, 10, 64); err != nil {
		return "", 0, false, fmt.Errorf("%s: %q says nothing of an object", c.Address, c.Preconditions[0])
	}
	return uid, generation, true, nil
}

// writtenBack are preconditions as they have to be once the object was written: one generation later, as of what was made, or
// deleted.
func writtenBack(c *plan.Change) ([]string, error) {
	uid, generation, there, err := WrittenFrom(c)
	if err != nil {
		return nil, err
	}
	after := slices.Clone(c.Preconditions)
	switch {
	case !there:
		after[0] = anew
	default:
		after[0] = "object " + uid + "@" + strconv.FormatInt(generation+1, 10)
		if string(c.Writes) == "null" {
			after[0] += " deleting"
		}
	}
	return after, nil
}

// anew is of an object that is made when a plan is carried out: it has been written once.
const anew = "object anew"

// isAnew tells whether an object is as it was made.
func isAnew(o *Object) bool { return o != nil && o.Generation == 1 && !o.Deleting }
