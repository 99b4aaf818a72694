package server

import (
	"encoding/json"
	"maps"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/apiserver"
	"github.com/atoll-dev/atoll/apiserver/kinds"
	"github.com/atoll-dev/atoll/infra"
)

// recordAuthors records in an object of a provider's kind who last changed its spec, and who last changed
// anything that plans depend on. Values are read with the rights of the first. Neither counts as an approver
// where a policy wants another person than the author.
func recordAuthors(r *apiserver.AdmissionRequest) {
	now := personJSON(apiserver.User{Name: r.User.Name, Groups: r.User.Groups}, r.UserUID)
	author, changedBy := now, now
	if r.Old != nil {
		old := r.Old.GetAnnotations()
		if reflect.DeepEqual(r.Old.Object["spec"], r.Object.Object["spec"]) {
			author = old[infra.AuthorAnnotation]
		}
		// Whoever changes an object after its deletion has not deleted it.
		if samePlan(r.Old, r.Object) || r.Old.GetDeletionTimestamp() != nil {
			changedBy = old[infra.ChangedByAnnotation]
		}
	}
	setAnnotation(r.Object, infra.AuthorAnnotation, author)
	setAnnotation(r.Object, infra.ChangedByAnnotation, changedBy)
}

// recordDeletion records who deleted an object of a provider's kind.
func recordDeletion(by kinds.User, object *unstructured.Unstructured) {
	setAnnotation(object, infra.ChangedByAnnotation, personJSON(apiserver.User{Name: by.Name, Groups: by.Groups}, by.UID))
}

// samePlan reports whether two versions of an object are equal in all that plans and their policies depend on.
func samePlan(a, b *unstructured.Unstructured) bool {
	return reflect.DeepEqual(a.Object["spec"], b.Object["spec"]) && maps.Equal(a.GetLabels(), b.GetLabels()) &&
		maps.Equal(planAnnotations(a), planAnnotations(b))
}

// planAnnotations returns the annotations by which users control plans.
func planAnnotations(u *unstructured.Unstructured) map[string]string {
	out := map[string]string{}
	for key, value := range u.GetAnnotations() {
		if strings.HasPrefix(key, v1alpha1.Group+"/") && key != infra.AuthorAnnotation && key != infra.ChangedByAnnotation {
			out[key] = value
		}
	}
	return out
}

// setAnnotation sets an annotation, or removes it if the value is empty.
func setAnnotation(u *unstructured.Unstructured, key, value string) {
	annotations := u.GetAnnotations()
	if annotations[key] == value && value != "" {
		return
	}
	if value == "" {
		delete(annotations, key)
	} else {
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[key] = value
	}
	if len(annotations) == 0 {
		annotations = nil
	}
	u.SetAnnotations(annotations)
}

// personJSON returns a user as a v1alpha1.Person in JSON.
func personJSON(user apiserver.User, uid string) string {
	text, err := json.Marshal(person(&apiserver.AdmissionRequest{User: user, UserUID: uid}))
	if err != nil {
		return "" // it consists of strings
	}
	return string(text)
}
