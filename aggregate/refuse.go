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
	return status(http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "authenticating a member cluster's front proxy: "+why.Error())
}

func unavailable(message string) *apierrors.StatusError {
	err := status(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, message)
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
	return err
}

// refuse answers in JSON whatever the client prefers: every client of
// Kubernetes reads the answer by its own content type.
func refuse(w http.ResponseWriter, err *apierrors.StatusError) {
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

// guarded is what a member's controller hears when it may not do what it does.
func guarded(controller string, info *request.RequestInfo) *apierrors.StatusError {
	return forbidden(fmt.Sprintf("%s of %s/%s %q by a member cluster's %s is refused: the object is shared by all clusters and kept by Atoll; "+
		"do it as a user, or in Atoll itself", info.Verb, info.APIGroup, info.Resource, info.Name, controller))
}

// broken is for answers of the workspace that could not be understood.
func broken(doing string, err error) *apierrors.StatusError {
	klog.ErrorS(err, "Answering a member cluster", "doing", doing)
	return status(http.StatusInternalServerError, metav1.StatusReasonInternalError, doing+": "+err.Error())
}

func notAcceptable(message string) *apierrors.StatusError {
	return status(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable, message)
}
