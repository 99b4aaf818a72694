package infra

import (
	"encoding/json"
	"errors"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

// ChangeAuthors returns the names of the users who last changed an object: its spec, its labels, or an
// annotation that plans depend on. For a deleted object, they include the user who deleted it. known is
// false if the server has not recorded all of that.
func ChangeAuthors(o *Object) (names []string, known bool) {
	known = true
	for _, text := range []string{o.Author, o.ChangedBy} {
		person, err := decodePerson(text)
		switch {
		case err != nil || person == nil:
			known = false
		case len(names) == 0 || names[0] != person.Username:
			names = append(names, person.Username)
		}
	}
	return names, known
}

// decodePerson decodes the value of AuthorAnnotation or ChangedByAnnotation.
func decodePerson(text string) (*v1alpha1.Person, error) {
	if text == "" {
		return nil, nil
	}
	person := &v1alpha1.Person{}
	if err := json.Unmarshal([]byte(text), person); err != nil || person.Username == "" {
		return nil, errors.New("the recorded author is invalid: change the spec, so that the server records its author again")
	}
	return person, nil
}
