package join

import (
	"context"
	"errors"
	"fmt"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/names"
)

// The users of cluster east are east:USER in Atoll. Rights that they got stay when the cluster leaves, and another cluster
// that joins as east would have them.

// RightsError reports that a cluster would get the rights of another one, which had its name before.
type RightsError struct {
	Cluster  string
	Bindings []string
}

func (e RightsError) Error() string {
	return fmt.Sprintf("another cluster had the name %s before, and its users still have rights in Atoll, which the users of this one would get: %s. "+
		"Delete these bindings, choose another name, or use --yes", e.Cluster, names.List(e.Bindings))
}

// RightsOf returns the bindings in Atoll of users and groups of a cluster, as KIND NAME (SUBJECT).
func RightsOf(ctx context.Context, atoll *rest.Config, cluster string) ([]string, error) {
	kube, err := kubernetes.NewForConfig(atoll)
	if err != nil {
		return nil, err
	}
	return rightsOf(ctx, kube, cluster)
}

func rightsOf(ctx context.Context, kube kubernetes.Interface, cluster string) (found []string, err error) {
	add := func(name string, subjects []rbacv1.Subject) {
		for _, s := range subjects {
			if s.Kind != rbacv1.ServiceAccountKind && strings.HasPrefix(s.Name, cluster+":") {
				found = append(found, fmt.Sprintf("%s (%s %s)", name, s.Kind, s.Name))
			}
		}
	}
	for o := (metav1.ListOptions{Limit: 500}); ; {
		page, err := kube.RbacV1().ClusterRoleBindings().List(ctx, o)
		if err != nil {
			return nil, fmt.Errorf("list the ClusterRoleBindings: %w", err)
		}
		for _, b := range page.Items {
			add("ClusterRoleBinding "+b.Name, b.Subjects)
		}
		if o.Continue = page.Continue; o.Continue == "" {
			break
		}
	}
	for o := (metav1.ListOptions{Limit: 500}); ; {
		page, err := kube.RbacV1().RoleBindings(metav1.NamespaceAll).List(ctx, o)
		if err != nil {
			return nil, fmt.Errorf("list the RoleBindings: %w", err)
		}
		for _, b := range page.Items {
			add("RoleBinding "+b.Namespace+"/"+b.Name, b.Subjects)
		}
		if o.Continue = page.Continue; o.Continue == "" {
			return found, nil
		}
	}
}

// checkRights returns a RightsError if another cluster left that had the name, and its users have rights. id is that of the
// cluster that joins, "" if it is not known. Without permission to read the bindings, nothing is checked.
func checkRights(ctx context.Context, kube kubernetes.Interface, cluster, id string) error {
	left, err := kube.CoreV1().ConfigMaps(v1alpha1.SystemNamespace).Get(ctx, v1alpha1.LeftClusters, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read which clusters left: %w", err)
	}
	if was, has := left.Data[cluster]; !has || was == id {
		return nil
	}
	bindings, err := rightsOf(ctx, kube, cluster)
	switch {
	case apierrors.IsForbidden(err):
		return nil
	case err != nil:
		return err
	case len(bindings) > 0:
		return RightsError{cluster, bindings}
	}
	return nil
}

// IsRights returns the error about the rights of another cluster that had the name, if err is one.
func IsRights(err error) (RightsError, bool) {
	var rights RightsError
	is := errors.As(err, &rights)
	return rights, is
}
