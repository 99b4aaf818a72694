package terminal

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

// explained says what can be done about an answer of the API to who wanted to do something with an object,
// or with one that has no name yet.
func (s *Session) explained(ctx context.Context, doing string, n noun, name string, err error) error {
	var status apierrors.APIStatus
	var unreachable *url.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &unreachable) && ctx.Err() == nil:
		return fmt.Errorf("%s: %w: make sure that Atoll runs, and that the kubeconfig leads to it", doing, err)
	case !errors.As(err, &status):
		return fmt.Errorf("%s: %w", doing, err)
	case apierrors.IsNotFound(err) && notServed(status.Status()):
		return fmt.Errorf("%s: this server knows no infrastructure: it serves no %s. The kubeconfig may lead to another Kubernetes (see `kubectl config current-context`), "+
			"or the Atoll is older than this command: see `kubectl api-resources --api-group=%s`", doing, n.resource.GroupResource(), v1alpha1.Group)
	case apierrors.IsNotFound(err) && details(status.Status()).Kind == "namespaces":
		return fmt.Errorf("%s: there is no namespace %s: make it with `kubectl create namespace %s`, or name another with -n", doing, s.Namespace, s.Namespace)
	case apierrors.IsNotFound(err) && name != "":
		return s.noSuch(ctx, n, name)
	// Authorization words it so; what admission refuses has words of its own.
	case apierrors.IsForbidden(err) && strings.Contains(err.Error(), `" cannot `):
		return fmt.Errorf("%s: you may not: %w: ask whoever gives out rights, %s", doing, err, rightFor(n))
	case apierrors.IsAlreadyExists(err):
		return fmt.Errorf("%s: %w, and does not change: choose another name, or none", doing, err)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("%s: Atoll does not know you: %w: check the credentials of the kubeconfig", doing, err)
	case apierrors.IsRequestEntityTooLargeError(err):
		return fmt.Errorf("%s: it is too large: %w: give fewer files, or `kubectl apply` them (nothing is changed by that alone) and plan then", doing, err)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// rightFor says who has the right in general.
func rightFor(n noun) string {
	switch n.kind {
	case "Approval":
		return "or somebody who may approve (as the ClusterRole atoll:infra-approver may) to do it"
	}
	return "for that of the ClusterRole atoll:infra-editor, say"
}

func details(status metav1.Status) metav1.StatusDetails {
	if status.Details == nil {
		return metav1.StatusDetails{}
	}
	return *status.Details
}

// notServed tells an API that is not there from an object that is not: the client words it, where the server only says 404.
func notServed(status metav1.Status) bool {
	return strings.Contains(status.Message, "could not find the requested resource")
}

// noSuch says which objects there are instead.
func (s *Session) noSuch(ctx context.Context, n noun, name string) error {
	// What cannot be listed makes the answer shorter, and no other.
	there, err := s.Dynamic.Resource(n.resource).Namespace(s.Namespace).List(ctx, metav1.ListOptions{Limit: 500})
	if err != nil || len(there.Items) == 0 {
		return fmt.Errorf("there is no %s %s in namespace %s: name another namespace with -n", n.one, name, s.Namespace)
	}
	items := there.Items
	slices.SortStableFunc(items, func(a, b unstructured.Unstructured) int {
		return b.GetCreationTimestamp().Compare(a.GetCreationTimestamp().Time)
	})
	var latest []string
	for i := range items[:min(len(items), 5)] {
		latest = append(latest, items[i].GetName())
	}
	return fmt.Errorf("there is no %s %s in namespace %s: the latest of %d there are %s; another namespace is named with -n",
		n.one, name, s.Namespace, len(items), strings.Join(latest, ", "))
}

// transient tells whether the same may succeed a little later, with another server perhaps.
func transient(err error) bool {
	var unreachable *url.Error
	return errors.As(err, &unreachable) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) || apierrors.IsTooManyRequests(err) ||
		apierrors.IsServiceUnavailable(err) || apierrors.IsInternalError(err)
}
