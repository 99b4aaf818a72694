package infra

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/atoll-dev/atoll/infra/change"
)

// none stands for a missing object or state in a precondition.
const none = "none"

// Preconditions describe the object and state that a change was computed from. They must be the
// same when the change is applied.
func Preconditions(o *Object, s *State) []string {
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

// ObjectPrecondition returns the UID and generation of the change's object at planning time, or
// exists == false if there was no object.
func ObjectPrecondition(c *change.Change) (uid string, generation int64, exists bool, err error) {
	if len(c.Preconditions) == 0 {
		return "", 0, false, fmt.Errorf("%s: the change has no object precondition", c.Address)
	}
	text := strings.TrimSuffix(strings.TrimPrefix(c.Preconditions[0], "object "), " deleting")
	if text == none {
		return "", 0, false, nil
	}
	uid, number, _ := strings.Cut(text, "@")
	if generation, err = strconv.ParseInt(number, 10, 64); err != nil {
		return "", 0, false, fmt.Errorf("%s: invalid object precondition %q", c.Address, c.Preconditions[0])
	}
	return uid, generation, true, nil
}
