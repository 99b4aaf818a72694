package syncer

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"

	"github.com/atoll-dev/atoll/fleet"
)

// unlistedError says which groups of the member could not be listed. Usually the program behind an
// aggregated API is down. Whether a namespace has objects of such a group is not known, so the
// namespace stays; that concerns no other object.
type unlistedError struct {
	namespace string
	groups    []string
}

func (e *unlistedError) Error() string {
	return fmt.Sprintf("namespace %s stays in the cluster until it is known to be empty: the cluster cannot list the objects of %s (see kubectl get apiservices there)",
		e.namespace, strings.Join(e.groups, ", "))
}

// contentOf returns the first object of a namespace that a user created, as KIND NAME; "" if it has only the objects
// that every namespace has, and those that have a controller and are deleted with it. If some
// groups cannot be listed and the others have no such object, it returns an unlistedError.
func (c *memberClient) contentOf(ctx context.Context, namespace string) (string, error) {
	unlisted := map[string]bool{}
	lists, err := c.discovery.ServerPreferredNamespacedResources()
	if failed, partly := discovery.GroupDiscoveryFailedErrorGroups(err); partly {
		for gv := range failed {
			unlisted[gv.String()] = true
		}
	} else if err != nil {
		return "", fmt.Errorf("discover the resources of namespace %s: %w", namespace, err)
	}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return "", err
		}
		for _, r := range list.APIResources {
			if !canList(r) || r.Kind == "Event" {
				continue
			}
			found := ""
			err := fleet.EachPage(ctx, metav1.ListOptions{}, c.meta.Resource(gv.WithResource(r.Name)).Namespace(namespace).List, func(page *metav1.PartialObjectMetadataList) (more bool, err error) {
				for i := range page.Items {
					if found == "" && !incidental(r.Kind, &page.Items[i].ObjectMeta) {
						found = r.Kind + " " + page.Items[i].Name
					}
				}
				return found == "", nil
			})
			if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
				continue
			}
			if apierrors.IsServiceUnavailable(err) {
				unlisted[gv.String()] = true
				break
			}
			if err != nil {
				return "", fmt.Errorf("list %s in namespace %s: %w", r.Name, namespace, err)
			}
			if found != "" {
				return found, nil
			}
		}
	}
	if len(unlisted) > 0 {
		return "", &unlistedError{namespace, slices.Sorted(maps.Keys(unlisted))}
	}
	return "", nil
}

func canList(r metav1.APIResource) bool {
	for _, verb := range r.Verbs {
		if verb == "list" {
			return true
		}
	}
	return false
}

func incidental(kind string, o *metav1.ObjectMeta) bool {
	switch {
	case kind == "ServiceAccount" && o.Name == "default", kind == "ConfigMap" && o.Name == "kube-root-ca.crt":
		return true
	case kind == "Endpoints":
		return true // created for Services, which are counted themselves
	}
	return metav1.GetControllerOf(o) != nil
}
