package providercontroller

import (
	"context"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

// Labels of ClusterRoles that are aggregated into the viewer and editor roles of infrastructure. A rule cannot
// match all groups below a domain, so each Provider has two ClusterRoles.
const (
	AggregateToViewer = v1alpha1.Group + "/aggregate-to-viewer"
	AggregateToEditor = v1alpha1.Group + "/aggregate-to-editor"
)

// objectRoles returns the roles for objects of a group. The Provider owns them.
func objectRoles(g *Group, of *v1alpha1.Provider) []*rbacv1.ClusterRole {
	read := []string{"get", "list", "watch"}
	role := func(name, label string, rule rbacv1.PolicyRule) *rbacv1.ClusterRole {
		rule.APIGroups = []string{g.Name}
		return &rbacv1.ClusterRole{
			TypeMeta: metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRole"},
			ObjectMeta: metav1.ObjectMeta{
				Name: "atoll:infra-" + name + ":" + g.Provider, Labels: map[string]string{label: "true"},
				OwnerReferences: []metav1.OwnerReference{{
					APIVersion: v1alpha1.Group + "/" + v1alpha1.Version, Kind: "Provider", Name: of.Name, UID: of.UID,
				}},
			},
			Rules: []rbacv1.PolicyRule{rule},
		}
	}
	// List the resources, because * would include status, which users must not write.
	plurals := make([]string, len(g.Kinds))
	for i, n := range g.Kinds {
		plurals[i] = n.Plural
	}
	return []*rbacv1.ClusterRole{
		role("viewer", AggregateToViewer, rbacv1.PolicyRule{Resources: []string{"*"}, Verbs: read}),
		role("editor", AggregateToEditor, rbacv1.PolicyRule{Resources: plurals, Verbs: append(read, "create", "update", "patch", "delete", "deletecollection")}),
	}
}

// ensureRoles creates or updates the roles of a Provider's types.
func (t *electedSession) ensureRoles(ctx context.Context, p *v1alpha1.Provider) error {
	for _, g := range t.Groups() {
		if g.Provider != p.Name {
			continue
		}
		for _, role := range objectRoles(&g, p) {
			if err := t.putRole(ctx, role); err != nil {
				return fmt.Errorf("apply ClusterRole %s: %w", role.Name, err)
			}
		}
	}
	return nil
}

func (t *electedSession) putRole(ctx context.Context, role *rbacv1.ClusterRole) error {
	client := t.clients.Dynamic.Resource(rbacv1.SchemeGroupVersion.WithResource("clusterroles"))
	live, err := client.Get(ctx, role.Name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	is := &rbacv1.ClusterRole{}
	if live != nil {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(live.Object, is); err != nil {
			return err
		}
		role.ResourceVersion = is.ResourceVersion
		if apiequality.Semantic.DeepEqual(is.Rules, role.Rules) && apiequality.Semantic.DeepEqual(is.Labels, role.Labels) &&
			apiequality.Semantic.DeepEqual(is.OwnerReferences, role.OwnerReferences) {
			return nil
		}
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(role)
	if err != nil {
		return err
	}
	if live == nil {
		_, err = client.Create(ctx, &unstructured.Unstructured{Object: content}, metav1.CreateOptions{})
	} else {
		_, err = client.Update(ctx, &unstructured.Unstructured{Object: content}, metav1.UpdateOptions{})
	}
	return err
}
