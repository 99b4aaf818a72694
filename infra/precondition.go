package infra

import "strconv"

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
