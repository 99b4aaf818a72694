package aggregate

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"
)

func status(code int32, reason metav1.StatusReason, message string) *apierrors.StatusError {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    code,
		Reason:  reason,
		Message: message,
	}}
}

func forbidden(message string) *apierrors.StatusError {
	return status(http.StatusForbidden, metav1.StatusReasonForbidden, message)
}

func unauthorized(why error) *apierrors.StatusError {
	return status(http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "cannot authenticate a member cluster's front proxy: "+why.Error())
}

func unavailable(message string) *apierrors.StatusError {
	err := status(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, message)
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
	return err
}

// writeError writes JSON whatever the client prefers: every Kubernetes client decodes
// an error by its content type.
func writeError(w http.ResponseWriter, err *apierrors.StatusError) {
	if d := err.ErrStatus.Details; d != nil && d.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(d.RetryAfterSeconds)))
	}
	writeStatus(w, err.ErrStatus)
}

func writeStatus(w http.ResponseWriter, s metav1.Status) {
	s.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	body, err := json.Marshal(s)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(int(s.Code))
	_, _ = w.Write(body) // the client is gone if this fails
}

// guardForbidden is the error for a member's controller whose request a guard rejects.
func guardForbidden(controller string, info *request.RequestInfo) *apierrors.StatusError {
	return forbidden(fmt.Sprintf("%s of %s/%s %q by a member cluster's %s is refused: the object is shared by all clusters and managed by Atoll; "+
		"change it as a user, or in Atoll directly", info.Verb, info.APIGroup, info.Resource, info.Name, controller))
}

// internalError logs and returns an error for a response of the workspace that cannot
// be processed.
func internalError(doing string, err error) *apierrors.StatusError {
	klog.ErrorS(err, "cannot answer a member cluster", "operation", doing)
	return status(http.StatusInternalServerError, metav1.StatusReasonInternalError, doing+": "+err.Error())
}

func notAcceptable(message string) *apierrors.StatusError {
	return status(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable, message)
}
