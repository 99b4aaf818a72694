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

// statusError is an error response with its reason.
type statusError struct{ status metav1.Status }

func (r *statusError) Error() string { return r.status.Message }

func newStatusError(reason metav1.StatusReason, format string, args ...any) *statusError {
	return &statusError{metav1.Status{
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

// statusOf converts any error to a response. A failure behind the view is not the syncer's
// fault, whatever the control plane's error type: in particular, a "not found" behind the view
// must not look as if the requested object did not exist.
func statusOf(err error) metav1.Status {
	var own *statusError
	switch {
	case errors.As(err, &own):
		return own.status
	case apierrors.IsConflict(err):
		return newStatusError(metav1.StatusReasonConflict, "%s", err).status
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsRequestEntityTooLargeError(err):
		return newStatusError(metav1.StatusReasonBadRequest, "%s", err).status
	}
	return newStatusError(metav1.StatusReasonServiceUnavailable, "%s", err).status
}

func writeError(w http.ResponseWriter, err error) {
	status := statusOf(err)
	if status.Code == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	writeJSON(w, int(status.Code), &status)
}

// writeJSON writes a document.
func writeJSON(w http.ResponseWriter, code int, document any) {
	body, err := json.Marshal(document)
	if err != nil {
		http.Error(w, "the response cannot be encoded as JSON", http.StatusInternalServerError)
		return
	}
	header := w.Header()
	header.Set("Content-Type", "application/json")
	header.Set("Content-Length", strconv.Itoa(len(body)))
	// The response may contain Secrets.
	header.Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_, _ = w.Write(body) // the client is gone if this fails
}

// authorizeSyncer returns why a syncer may not use its view, nil if it may.
func authorizeSyncer(c *v1alpha1.Cluster, exists bool, name string, groups []string) error {
	switch {
	case !exists:
		return newStatusError(metav1.StatusReasonForbidden, "Cluster %s does not exist: it has left the fleet or never joined; join it with `atoll join %s --mode pull`", name, name)
	case !c.InPullMode():
		return newStatusError(metav1.StatusReasonForbidden, "Cluster %s is in mode Push and is served by Atoll's own syncer; to change that, join it with `atoll join %s --mode pull`", name, name)
	case !hasCurrentCredential(c, groups):
		return newStatusError(metav1.StatusReasonForbidden, "this credential of cluster %s has been revoked: get another one with `atoll join %s --mode pull`", name, name)
	}
	return nil
}

// hasCurrentCredential reports whether groups contain the current credential of the Cluster.
func hasCurrentCredential(c *v1alpha1.Cluster, groups []string) bool {
	counts := c.Annotations[v1alpha1.CredentialAnnotation]
	return counts != "" && slices.Contains(groups, v1alpha1.CredentialGroupPrefix+counts)
}
