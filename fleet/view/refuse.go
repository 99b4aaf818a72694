package view

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// refused is an answer that says no, and why.
type refused struct{ status metav1.Status }

func (r *refused) Error() string { return r.status.Message }

func refusal(reason metav1.StatusReason, format string, args ...any) *refused {
	return &refused{metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure, Code: codeOf(reason), Reason: reason, Message: fmt.Sprintf(format, args...),
	}}
}

func codeOf(reason metav1.StatusReason) int32 {
	switch reason {
	case metav1.StatusReasonBadRequest:
		return http.StatusBadRequest
	case metav1.StatusReasonForbidden:
		return http.StatusForbidden
	case metav1.StatusReasonNotFound:
		return http.StatusNotFound
	case metav1.StatusReasonMethodNotAllowed:
		return http.StatusMethodNotAllowed
	case metav1.StatusReasonConflict:
		return http.StatusConflict
	case metav1.StatusReasonExpired:
		return http.StatusGone
	}
	return http.StatusServiceUnavailable
}

// statusOf gives any error as an answer. What went wrong behind the view is not the
// syncer's fault, whatever the control plane called it: that something behind it was
// not found, in particular, must not read as if what was asked for were not there.
func statusOf(err error) metav1.Status {
	var own *refused
	switch {
	case errors.As(err, &own):
		return own.status
	case apierrors.IsConflict(err):
		return refusal(metav1.StatusReasonConflict, "%s", err).status
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsRequestEntityTooLargeError(err):
		return refusal(metav1.StatusReasonBadRequest, "%s", err).status
	}
	return refusal(metav1.StatusReasonServiceUnavailable, "%s", err).status
}

func refuse(w http.ResponseWriter, err error) {
	status := statusOf(err)
	if status.Code == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	answer(w, int(status.Code), &status)
}

// answer writes a document.
func answer(w http.ResponseWriter, code int, document any) {
	body, err := json.Marshal(document)
	if err != nil {
		http.Error(w, "the answer cannot be written as JSON", http.StatusInternalServerError)
		return
	}
	header := w.Header()
	header.Set("Content-Type", "application/json")
	header.Set("Content-Length", strconv.Itoa(len(body)))
	// Secrets may be in it.
	header.Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_, _ = w.Write(body) // the client is gone if this fails
}

// admit tells why a syncer is not served its view, if it is not.
func admit(c *v1alpha1.Cluster, exists bool, name string, groups []string) error {
	switch {
	case !exists:
		return refusal(metav1.StatusReasonForbidden, "there is no Cluster %s: it has left the fleet, or never joined; join it with `atoll join %s --mode pull`", name, name)
	case !c.Pulls():
		return refusal(metav1.StatusReasonForbidden, "Cluster %s is in mode Push, so Atoll's own syncer serves it; to change that, join it with `atoll join %s --mode pull`", name, name)
	case !credited(c, groups):
		return refusal(metav1.StatusReasonForbidden, "this credential of cluster %s has been revoked: get another with `atoll join %s --mode pull`", name, name)
	}
	return nil
}

// credited tells whether the Cluster names the credential that groups speak of.
func credited(c *v1alpha1.Cluster, groups []string) bool {
	counts := c.Annotations[v1alpha1.CredentialAnnotation]
	return counts != "" && slices.Contains(groups, v1alpha1.CredentialGroupPrefix+counts)
}
