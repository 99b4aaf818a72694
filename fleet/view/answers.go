package view

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// answerResource is the subresource of a bound object for questions to the webhook of its kind.
const answerResource = "answer"

// QuestionRequest is a question of a syncer about its cluster's object. The server asks the webhook, so that
// members need not reach it.
type QuestionRequest struct {
	Operation v1alpha1.InterpretationOperation `json:"operation"`
	Object    json.RawMessage                  `json:"object"`
	Observed  json.RawMessage                  `json:"observed,omitempty"`
}

// QuestionResponse is the response to a QuestionRequest: one of its fields is set. Failed and Refused are why
// there is no answer; the webhook does not respond, or its response has none.
type QuestionResponse struct {
	Answer  json.RawMessage `json:"answer,omitempty"`
	Failed  string          `json:"failed,omitempty"`
	Refused string          `json:"refused,omitempty"`
}

// answer handles a question of a syncer about a bound object.
func (h *Host) answer(w http.ResponseWriter, r *request, what objectKey) {
	var in QuestionRequest
	if err := r.read(w, &in); err != nil {
		writeError(w, err)
		return
	}
	q, err := r.question(what, in)
	if err != nil {
		writeError(w, err)
		return
	}
	if h.cfg.Ask == nil {
		writeError(w, newStatusError(metav1.StatusReasonServiceUnavailable, "this server does not ask webhooks"))
		return
	}
	var out QuestionResponse
	a, err := h.cfg.Ask(r.Context(), q)
	var refused *interpret.RefusedError
	switch {
	case errors.As(err, &refused):
		out.Refused = truncate(err.Error())
	case err != nil:
		out.Failed = truncate(err.Error())
	default:
		if out.Answer, err = json.Marshal(a); err != nil {
			writeError(w, err)
			return
		}
	}
	writeJSON(w, http.StatusOK, out)
}

// question returns the question, if it is about the bound object.
func (r *request) question(what objectKey, in QuestionRequest) (interpret.Question, error) {
	b, ok := r.view.binding(types.NamespacedName{Namespace: what.Namespace, Name: what.Name})
	if !ok {
		return interpret.Question{}, notInView(what, r.cluster)
	}
	k, known := r.view.view.KindOf(b)
	if !known {
		return interpret.Question{}, notInView(what, r.cluster)
	}
	q, err := k.QuestionOf(in.Operation, in.Object, in.Observed)
	if err != nil {
		return q, newStatusError(metav1.StatusReasonBadRequest, "%s", err)
	}
	if q.Kind.GroupKind() != k.GroupKind() || q.Namespace != b.Namespace || q.Name != b.Spec.Resource.Name || !isAbout(in.Observed, q) {
		return q, newStatusError(metav1.StatusReasonForbidden, "the question is not about %s %s: a syncer may ask only about the bound object", b.Spec.Resource.Kind, b.Spec.Resource.Name)
	}
	return q, nil
}

// isAbout reports whether an observed object, if there is one, is that of the question.
func isAbout(observed json.RawMessage, q interpret.Question) bool {
	if len(observed) == 0 {
		return true
	}
	var u unstructured.Unstructured
	err := json.Unmarshal(observed, &u.Object)
	return err == nil && u.GroupVersionKind().GroupKind() == q.Kind.GroupKind() && u.GetNamespace() == q.Namespace && u.GetName() == q.Name
}

// ask sends a question to the server of the view.
func (v *Remote) ask(ctx context.Context, q interpret.Question) (interpret.Answer, error) {
	path := ownPath(q.Namespace, boundObjects, v1alpha1.BindingName(q.Kind.GroupKind(), q.Name)) + "/" + answerResource
	var out QuestionResponse
	err := v.client.do(ctx, http.MethodPost, path, QuestionRequest{Operation: q.Operation, Object: q.Object, Observed: q.Observed}, &out)
	switch {
	case err != nil:
		return interpret.Answer{}, err
	case out.Refused != "":
		return interpret.Answer{}, &interpret.RefusedError{Cause: errors.New(out.Refused)}
	case out.Failed != "":
		return interpret.Answer{}, errors.New(out.Failed)
	}
	a, err := interpret.DecodeAnswer(out.Answer)
	if err == nil {
		err = q.Check(a)
	}
	return a, err
}

// answered notifies the subscribers of the binding of the object that a question is about.
func (v *Remote) answered(q interpret.Question) {
	v.mu.Lock()
	tell := make([]func(types.NamespacedName), 0, len(v.subscribers))
	for _, notify := range v.subscribers {
		tell = append(tell, notify)
	}
	v.mu.Unlock()
	for _, notify := range tell {
		notify(types.NamespacedName{Namespace: q.Namespace, Name: v1alpha1.BindingName(q.Kind.GroupKind(), q.Name)})
	}
}
