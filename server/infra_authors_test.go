package server

import (
	"context"
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/apiserver"
	"github.com/atoll-dev/atoll/apiserver/kinds"
	"github.com/atoll-dev/atoll/infra"
)

// TestRecordAuthors: the author of an object is the user who last changed its spec, and changed-by the one who last
// changed anything that plans depend on.
func TestRecordAuthors(t *testing.T) {
	const ann, bob = `{"groups":["ops"],"uid":"7","username":"ann"}`, `{"username":"bob"}`
	quote := func(person string) string { return strings.ReplaceAll(person, `"`, `\"`) }
	recorded := func(more string) string {
		return `{"metadata":{"labels":{"a":"b"},"annotations":{"infra.atoll.dev/author":"` + quote(bob) + `","infra.atoll.dev/changed-by":"` + quote(bob) + `"}},` + more + `}`
	}
	for _, tt := range []struct{ name, old, object, author, changedBy string }{
		{"created", ``, `{"spec":{"x":1}}`, ann, ann},
		{"created for another user", ``, recorded(`"spec":{}`), ann, ann},
		{"the spec changes", recorded(`"spec":{"x":1}`), recorded(`"spec":{"x":2}`), ann, ann},
		{"the status changes", recorded(`"spec":{"x":1},"status":{}`), recorded(`"spec":{"x":1},"status":{"a":1}`), bob, bob},
		{"a label changes", recorded(`"spec":{"x":1}`), strings.Replace(recorded(`"spec":{"x":1}`), `"a":"b"`, `"a":"c"`, 1), bob, ann},
		{"an annotation for plans changes", recorded(`"spec":{"x":1}`), `{"metadata":{"labels":{"a":"b"},"annotations":{"infra.atoll.dev/deletion-policy":"Forget"}},"spec":{"x":1}}`, bob, ann},
		{"another annotation changes", recorded(`"spec":{"x":1}`), `{"metadata":{"labels":{"a":"b"},"annotations":{"x":"y"}},"spec":{"x":1}}`, bob, bob},
		{"the records are forged", recorded(`"spec":{"x":1}`), strings.ReplaceAll(recorded(`"spec":{"x":1}`), "bob", "carl"), bob, bob},
		{"the records are removed", recorded(`"spec":{"x":1}`), `{"metadata":{"labels":{"a":"b"}},"spec":{"x":1}}`, bob, bob},
		{"written by an earlier version", `{"spec":{"x":1}}`, `{"spec":{"x":1}}`, "", ""},
		{"forged after an earlier version", `{"metadata":{"labels":{"a":"b"}},"spec":{"x":1}}`, recorded(`"spec":{"x":1}`), "", ""},
		{"deleted before", strings.Replace(recorded(`"spec":{"x":1}`), `"labels"`, `"deletionTimestamp":"2026-01-01T00:00:00Z","labels"`, 1), `{"metadata":{"annotations":{"infra.atoll.dev/moved-to":"x"}},"spec":{"x":1}}`, bob, bob},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := &apiserver.AdmissionRequest{User: apiserver.User{Name: "ann", Groups: []string{"ops"}}, UserUID: "7", Object: parsed(t, tt.object)}
			if tt.old != "" {
				r.Old = parsed(t, tt.old)
			}
			recordAuthors(r)
			once := r.Object.DeepCopy()
			recordAuthors(r) // it is called again after webhooks
			got := r.Object.GetAnnotations()
			if got[infra.AuthorAnnotation] != tt.author || got[infra.ChangedByAnnotation] != tt.changedBy || len(once.GetAnnotations()) != len(got) {
				t.Errorf("got %v", got)
			}
		})
	}
	o := parsed(t, recorded(`"spec":{}`))
	recordDeletion(kinds.User{Name: "ann", UID: "7", Groups: []string{"ops"}}, o)
	if got := o.GetAnnotations(); got[infra.AuthorAnnotation] != bob || got[infra.ChangedByAnnotation] != ann {
		t.Errorf("deleted: %v", got)
	}
}

// TestHistoryIsKept: only administrators and the control plane delete plans and applies that were carried out.
func TestHistoryIsKept(t *testing.T) {
	editor, admin := apiserver.User{Name: "ed"}, apiserver.User{Name: "root", Groups: []string{mastersGroup}}
	begun := func(_ context.Context, namespace, plan string) (bool, error) {
		if plan == "broken" {
			return false, errors.New("no answer")
		}
		return namespace == "shop" && plan == "used", nil
	}
	for _, tt := range []struct {
		kind, name, object string
		user               apiserver.User
		says               string // "" if it may be deleted
	}{
		{"plan", "new", `{"status":{"phase":"Planned"}}`, editor, ""},
		{"plan", "new", `{}`, editor, ""},
		{"plan", "new", `{"status":{"phase":"Applied"}}`, editor, "ask an administrator"},
		{"plan", "used", `{"status":{"phase":"Planned"}}`, editor, "the plan was carried out"},
		{"plan", "broken", `{"status":{"phase":"Planned"}}`, editor, "no answer"},
		{"plan", "used", `{"status":{"phase":"Applied"}}`, admin, ""},
		{"apply", "a", `{"status":{"phase":"Pending"}}`, editor, ""},
		{"apply", "a", `{"status":{"phase":"Running","startTime":"2026-01-01T00:00:00Z"}}`, editor, "atoll cancel a -n shop"},
		{"apply", "a", `{"status":{"phase":"Failed","startTime":"2026-01-01T00:00:00Z","completionTime":"2026-01-01T00:00:01Z"}}`, editor, "ask an administrator"},
		{"apply", "a", `{"status":{"phase":"Failed","startTime":"2026-01-01T00:00:00Z","completionTime":"2026-01-01T00:00:01Z"}}`, admin, ""},
	} {
		r := &apiserver.AdmissionRequest{Namespace: "shop", Name: tt.name, User: tt.user, Old: &unstructured.Unstructured{Object: parsed(t, tt.object).Object}}
		err := keepsBegunApplies(t.Context(), r)
		if tt.kind == "plan" {
			err = keepsCarriedOutPlans(begun)(t.Context(), r)
		}
		if tt.says == "" && err != nil || tt.says != "" && (err == nil || !strings.Contains(err.Error(), tt.says)) || strings.Contains(tt.says, "admin") && !apierrors.IsForbidden(err) {
			t.Errorf("%s %s %s by %s: %v", tt.kind, tt.name, tt.object, tt.user.Name, err)
		}
	}
}
