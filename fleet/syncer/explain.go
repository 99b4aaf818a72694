package syncer

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
)

// explain returns the cause of an error and, where known, the remedy. The same cause always
// yields the same text: each change is a write.
func explain(err error) string {
	var answer apierrors.APIStatus
	var conflict conflictError
	var unserved unservedError
	switch {
	case errors.As(err, &conflict), errors.As(err, &unserved), errors.Is(err, fleet.ErrTransform):
		return err.Error()
	case errors.As(err, &answer):
		return err.Error() + remedy(err, int(answer.Status().Code))
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("the cluster did not respond within %s; running workloads are not affected. If the Cluster is not Ready, see its conditions; "+
			"if it is, an admission webhook there is probably slow or unavailable: run `kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations` there", requestTimeout)
	}
	// The text of a network error differs each time.
	return "the cluster does not respond; running workloads are not affected. See the conditions of the Cluster"
}

// remedy returns the remedy for an API server's error. Several causes share a code, and only
// the message distinguishes them.
func remedy(err error, code int) string {
	text := err.Error()
	has := func(words string) bool { return strings.Contains(text, words) }
	switch {
	case apierrors.IsUnauthorized(err):
		return "; renew the credentials for the cluster: run `atoll join` again or, in mode Pull, renew those of its syncer"
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return "; it will be recreated once the namespace is gone there. If that takes long, run `kubectl describe namespace` there to see what blocks its deletion"
	case has("exceeded quota"), has("failed quota"):
		return "; raise the ResourceQuota there, request less, or place the object elsewhere"
	case has("failed calling webhook"):
		return "; repair the webhook in the cluster, or remove its configuration there"
	case has("denied the request"):
		return "; change the object, or the rule in the cluster that rejects it"
	case isStorageFull(text), code == http.StatusInsufficientStorage:
		return "; the cluster's datastore is full: free space (compact and defragment etcd, raise its quota, enlarge the disk). Running workloads are not affected"
	case lacksPermission(err):
		return "; grant that permission in the cluster to the identity that Atoll uses there. In mode Pull, " + permit(err)
	case apierrors.IsForbidden(err):
		return "; rejected by admission in the cluster: change the object, or the rule there"
	case apierrors.IsInvalid(err):
		return "; correct the object, or delete and recreate it if the field is immutable"
	case apierrors.IsRequestEntityTooLargeError(err):
		return "; make the object smaller: it exceeds the cluster's size limit"
	case apierrors.IsTooManyRequests(err):
		return "; the cluster's API server is overloaded; retrying"
	case code >= http.StatusInternalServerError:
		return "; the cluster's API server fails; retrying: see its log"
	}
	return ""
}

// lacksPermission reports whether RBAC in the member rejected a request, rather than admission or a quota. A role or binding
// with permissions that the identity lacks itself is rejected with words of its own.
func lacksPermission(err error) bool {
	if !apierrors.IsForbidden(err) {
		return false
	}
	text := err.Error()
	return strings.Contains(text, "User ") && strings.Contains(text, " cannot ") || grantsMore(text)
}

// grantsMore reports whether a role or binding was rejected because it has permissions that its writer lacks.
func grantsMore(text string) bool {
	return strings.Contains(text, "attempting to grant RBAC permissions")
}

// resourceName matches the name of a resource with its group. The member writes it, so nothing else is shown as part of a command.
var resourceName = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{0,252}$`)

// permit returns how a member's owner adds the missing permission to the role of its syncer.
func permit(err error) string {
	flag := "--allow RESOURCE.GROUP"
	var answer apierrors.APIStatus
	if errors.As(err, &answer) && answer.Status().Details != nil {
		details := answer.Status().Details
		name := schema.GroupResource{Group: details.Group, Resource: details.Kind}.String()
		switch {
		case details.Group == rbacv1.GroupName || grantsMore(err.Error()):
			flag = "--allow-rbac"
		case resourceName.MatchString(name):
			flag = "--allow " + name
		}
	}
	return "`atoll join NAME --mode pull --roles-only " + flag + "` prints a ClusterRole for that; or add a ClusterRole there with the label " +
		v1alpha1.AggregateToSyncerLabel + "=true"
}

// isStorageFull reports whether a message says that a datastore has no space, in the words of
// etcd, of the operating system, or of SQL databases behind an etcd API.
func isStorageFull(text string) bool {
	for _, words := range []string{"database space exceeded", "no space left on device", "disk is full", "disk full"} {
		if strings.Contains(text, words) {
			return true
		}
	}
	return false
}
