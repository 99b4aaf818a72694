package cliview

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

// explained adds a remedy to an error of the API. name is empty for a new object.
func (s *Session) explain(ctx context.Context, doing string, n objectKind, name string, err error) error {
	var status apierrors.APIStatus
	var unreachable *url.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &unreachable) && ctx.Err() == nil:
		return fmt.Errorf("%s: %w: check that Atoll is running and that the kubeconfig points to it", doing, err)
	case !errors.As(err, &status):
		return fmt.Errorf("%s: %w", doing, err)
	case apierrors.IsNotFound(err) && notServed(status.Status()):
		return fmt.Errorf("%s: this server does not serve %s. The kubeconfig may point to another Kubernetes cluster (see `kubectl config current-context`), "+
			"or Atoll is older than this command: check `kubectl api-resources --api-group=%s`", doing, n.resource.GroupResource(), v1alpha1.Group)
	case apierrors.IsNotFound(err) && details(status.Status()).Kind == "namespaces":
		return fmt.Errorf("%s: namespace %s not found: create it with `kubectl create namespace %s`, or choose another with -n", doing, s.Namespace, s.Namespace)
	case apierrors.IsNotFound(err) && name != "":
		return s.notFound(ctx, n, name)
	// Authorization uses these words; admission has its own.
	case apierrors.IsForbidden(err) && strings.Contains(err.Error(), `" cannot `):
		return fmt.Errorf("%s: permission denied: %w: ask an administrator %s", doing, err, rightFor(n))
	case apierrors.IsAlreadyExists(err):
		return fmt.Errorf("%s: %w and is immutable: choose another name, or none", doing, err)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("%s: authentication failed: %w: check the credentials of the kubeconfig", doing, err)
	case apierrors.IsRequestEntityTooLargeError(err):
		return fmt.Errorf("%s: the request is too large: %w: pass fewer files, or `kubectl apply` them (which changes no resources by itself) and plan then", doing, err)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// rightFor names the role that has the right.
func rightFor(n objectKind) string {
	switch n.kind {
	case "Approval":
		return "for the ClusterRole atoll:infra-approver, or ask an approver"
	}
	return "for a role such as the ClusterRole atoll:infra-editor"
}

func details(status metav1.Status) metav1.StatusDetails {
	if status.Details == nil {
		return metav1.StatusDetails{}
	}
	return *status.Details
}

// notServed reports whether the API itself is missing, and not an object. Only the client's message shows
// that; the server answers 404 to both.
func notServed(status metav1.Status) bool {
	return strings.Contains(status.Message, "could not find the requested resource")
}

// notFound returns an error that lists the latest objects.
func (s *Session) notFound(ctx context.Context, n objectKind, name string) error {
	// If objects cannot be listed, the message is only shorter.
	there, err := s.Dynamic.Resource(n.resource).Namespace(s.Namespace).List(ctx, metav1.ListOptions{Limit: 500})
	if err != nil || len(there.Items) == 0 {
		return fmt.Errorf("%s %s not found in namespace %s: choose another namespace with -n", n.one, name, s.Namespace)
	}
	items := there.Items
	slices.SortStableFunc(items, func(a, b unstructured.Unstructured) int {
		return b.GetCreationTimestamp().Compare(a.GetCreationTimestamp().Time)
	})
	var latest []string
	for i := range items[:min(len(items), 5)] {
		latest = append(latest, items[i].GetName())
	}
	return fmt.Errorf("%s %s not found in namespace %s: the latest of %d are %s; choose another namespace with -n",
		n.one, name, s.Namespace, len(items), strings.Join(latest, ", "))
}

// transient reports whether a retry may succeed, perhaps with another server.
func transient(err error) bool {
	var unreachable *url.Error
	return errors.As(err, &unreachable) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) || apierrors.IsTooManyRequests(err) ||
		apierrors.IsServiceUnavailable(err) || apierrors.IsInternalError(err)
}
