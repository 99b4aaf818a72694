package syncer

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/atoll-dev/atoll/fleet"
)

// explain says what stands in the way and, where that is known, what helps. It says the
// same for the same trouble: each change is a write.
func explain(err error) string {
	var answer apierrors.APIStatus
	var conflict conflictError
	var unserved unservedError
	switch {
	case errors.As(err, &conflict), errors.As(err, &unserved), errors.Is(err, fleet.ErrImpossible):
		return err.Error()
	case errors.As(err, &answer):
		return err.Error() + remedy(err, int(answer.Status().Code))
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("the cluster did not answer within %s; what runs there runs on. If the Cluster is not Ready, see its conditions; "+
			"if it is, an admission webhook there is slow or gone, as a rule: see `kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations` there", requestTimeout)
	}
	// What the network says differs each time.
	return "the cluster does not answer; what runs there runs on. See the conditions of the Cluster"
}

// remedy gives what helps against the answer of an API server. Several troubles share a
// code, and only the words tell them apart.
func remedy(err error, code int) string {
	said := err.Error()
	has := func(words string) bool { return strings.Contains(said, words) }
	switch {
	case apierrors.IsUnauthorized(err):
		return "; renew the credentials by which the cluster is reached: with `atoll join` or, in mode Pull, those of its syncer"
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return "; it is made again once the namespace is gone there. If that takes long, see what holds it: `kubectl describe namespace` there"
	case has("exceeded quota"), has("failed quota"):
		return "; raise the ResourceQuota there, ask for less, or place it elsewhere"
	case has("failed calling webhook"):
		return "; mend the webhook in the cluster, or take its configuration away there"
	case has("denied the request"):
		return "; change the object, or the rule in the cluster by which it is refused"
	case full(said), code == http.StatusInsufficientStorage:
		return "; the cluster's datastore is full: make room (compact and defragment etcd, raise its quota, enlarge the disk). What runs there runs on"
	case apierrors.IsForbidden(err) && has("User ") && has(" cannot "):
		return "; grant that in the cluster to the identity by which it is reached: that of its kubeconfig or, in mode Pull, its syncer's"
	case apierrors.IsForbidden(err):
		return "; admission in the cluster forbids it: change the object, or the rule there"
	case apierrors.IsInvalid(err):
		return "; correct the object, or delete and create it anew if the field cannot change"
	case apierrors.IsRequestEntityTooLargeError(err):
		return "; make the object smaller: the cluster takes no larger ones"
	case apierrors.IsTooManyRequests(err):
		return "; the cluster is busy, and is asked again"
	case code >= http.StatusInternalServerError:
		return "; the cluster's API server fails, and is asked again: see its log"
	}
	return ""
}

// full tells whether a datastore says that it has no room, in the words of etcd, of the
// system, and of SQL databases behind an etcd API.
func full(said string) bool {
	for _, words := range []string{"database space exceeded", "no space left on device", "disk is full", "disk full"} {
		if strings.Contains(said, words) {
			return true
		}
	}
	return false
}
