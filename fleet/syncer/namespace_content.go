package syncer

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/names"
)

// unlistedError says which groups of the member could not be listed, and which resources must not be. Usually the
// program behind an aggregated API is down, or the syncer's role lacks a type. Whether a namespace has such objects is
// not known, so the namespace stays; that concerns no other object.
type unlistedError struct {
	namespace         string
	groups, forbidden []string
}

func (e *unlistedError) Error() string {
	var why []string
	if len(e.groups) > 0 {
		why = append(why, "the cluster cannot list the objects of "+strings.Join(e.groups, ", ")+" (see kubectl get apiservices there)")
	}
	if len(e.forbidden) > 0 {
		why = append(why, "Atoll may not list "+names.List(e.forbidden)+" there: grant list to the identity that it uses in the cluster. In mode Pull, add a ClusterRole there with the label "+
			v1alpha1.AggregateToSyncerLabel+"=true")
	}
	return fmt.Sprintf("namespace %s stays in the cluster until it is known to be empty: %s", e.namespace, strings.Join(why, "; "))
}

// or returns an error that says what could not be listed, nil if everything was.
func (e *unlistedError) or() error {
	if len(e.groups) == 0 && len(e.forbidden) == 0 {
		return nil
	}
	slices.Sort(e.groups)
	slices.Sort(e.forbidden)
	return e
}

// contentOf returns the first object of a namespace that a user created, as KIND NAME; "" if it has only the objects
// that every namespace has, and those that have a controller and are deleted with it. If some
// groups or resources cannot be listed and the others have no such object, it returns an unlistedError.
func (c *memberClient) contentOf(ctx context.Context, namespace string) (string, error) {
	unlisted := &unlistedError{namespace: namespace}
	lists, err := c.discovery.ServerPreferredNamespacedResources()
	if failed, partly := discovery.GroupDiscoveryFailedErrorGroups(err); partly {
		for gv := range failed {
			unlisted.groups = append(unlisted.groups, gv.String())
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
				unlisted.groups = append(unlisted.groups, gv.String())
				break
			}
			if apierrors.IsForbidden(err) {
				unlisted.forbidden = append(unlisted.forbidden, gv.WithResource(r.Name).GroupResource().String())
				continue
			}
			if err != nil {
				return "", fmt.Errorf("list %s in namespace %s: %w", r.Name, namespace, err)
			}
			if found != "" {
				return found, nil
			}
		}
	}
	return "", unlisted.or()
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
