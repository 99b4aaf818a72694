package apiserver

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// commandHeader is the header in which kubectl names its command: "kubectl logs".
const commandHeader = "Kubectl-Command"

// RefusePodWatch answers kubectl commands for a pod of a workload at once. If a workload has no pods, kubectl
// waits 20 s for one, and then says only that it timed out. Pods of workloads exist in members alone, and why is the reason why none is reached here. Requests
// that have pods elsewhere (WithElsewhere) pass.
func RefusePodWatch(next http.Handler, c *genericapiserver.Config, why string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, known := request.RequestInfoFrom(r.Context())
		command := lastWord(r.Header.Get(commandHeader))
		if !known || reaches(r.Context(), OfRequest{}) || info.Verb != "watch" || info.APIGroup != "" || info.Resource != "pods" || info.Name != "" ||
			!slices.Contains([]string{"logs", "exec", "attach", "port-forward"}, command) {
			next.ServeHTTP(w, r)
			return
		}
		responsewriters.ErrorNegotiated(notReached(command, info.Namespace, why), c.Serializer, schema.GroupVersion{Version: info.APIVersion}, w, r)
	})
}

func lastWord(of string) string {
	words := strings.Fields(of)
	if len(words) == 0 {
		return ""
	}
	return words[len(words)-1]
}

func notReached(command, namespace, why string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusNotImplemented,
		Reason:  "NotImplemented",
		Message: fmt.Sprintf("%s in namespace %s: %s", command, namespace, why),
	}}
}
