package server

import (
	"encoding/json"
	"testing"

	"github.com/atoll-dev/atoll/apiserver"
)

// TestRecordAuthor: the author of a schedule is the user who last changed its spec.
func TestRecordAuthor(t *testing.T) {
	ann := apiserver.User{Name: "ann", Groups: []string{"ops"}}
	const ofAnn = `{"groups":["ops"],"uid":"7","username":"ann"}`
	for _, tt := range []struct{ name, old, object, want string }{
		{"created", ``, `{"spec":{"timeZone":"UTC"}}`, `{"spec":{"author":` + ofAnn + `,"timeZone":"UTC"}}`},
		{"created for another user", ``, `{"spec":{"author":{"username":"bob"}}}`, `{"spec":{"author":` + ofAnn + `}}`},
		{"invalid value", ``, `{"spec":{"author":"bob"}}`, `{"spec":{"author":` + ofAnn + `}}`},
		{"no spec", ``, `{}`, `{}`},
		{"the spec changes", `{"spec":{"author":{"username":"bob"},"suspend":true}}`, `{"spec":{"author":{"username":"bob"},"suspend":false}}`, `{"spec":{"author":` + ofAnn + `,"suspend":false}}`},
		{"the labels change", `{"spec":{"author":{"username":"bob"},"suspend":true}}`, `{"metadata":{"labels":{"a":"b"}},"spec":{"suspend":true}}`, `{"metadata":{"labels":{"a":"b"}},"spec":{"author":{"username":"bob"},"suspend":true}}`},
		{"only the author would change", `{"spec":{"author":{"username":"bob"}}}`, `{"spec":{"author":{"username":"carl"}}}`, `{"spec":{"author":{"username":"bob"}}}`},
		{"it had no author", `{"spec":{"suspend":true}}`, `{"spec":{"author":{"username":"carl"},"suspend":true}}`, `{"spec":{"suspend":true}}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := &apiserver.AdmissionRequest{User: ann, UserUID: "7", Object: parsed(t, tt.object)}
			if tt.old != "" {
				r.Old = parsed(t, tt.old)
			}
			recordAuthor(r)
			recordAuthor(r) // it is called again after webhooks
			if got, err := json.Marshal(r.Object.Object); err != nil || string(got) != tt.want {
				t.Errorf("got %s, %v", got, err)
			}
		})
	}
}
