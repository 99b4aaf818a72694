package server

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/klog/v2"

	"github.com/atoll-dev/atoll/aggregate"
	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/apiserver"
	"github.com/atoll-dev/atoll/coordination"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// maxProvidedNamespaces is how many namespaces the users of one member may have Atoll create.
const maxProvidedNamespaces = 1000

// onMissingNamespace returns the decision of the SharedAPI through which a member
// creates an object.
func (s *Server) onMissingNamespace(r apiserver.NamespaceRequest) (none apiserver.MissingNamespace) {
	cluster, ok := aggregate.ClusterOf(r.UserGroups)
	if !ok {
		return none
	}
	terms, _ := s.sharedAPI(cluster, r.APIGroup)
	switch terms.Namespaces {
	case v1alpha1.NamespacesProvide:
		return apiserver.MissingNamespace{
			Provide: true, Annotations: map[string]string{v1alpha1.ProvidedForAnnotation: cluster}, Most: maxProvidedNamespaces,
			Remedy: fmt.Sprintf("ask an Atoll administrator to run `kubectl create namespace %s`, or to delete namespaces with the annotation %s=%s that are not needed",
				r.Namespace, v1alpha1.ProvidedForAnnotation, cluster),
		}
	case v1alpha1.NamespacesRequire:
		return apiserver.MissingNamespace{Remedy: fmt.Sprintf(
			"the SharedAPI of %s has spec.namespaces: Require; ask an Atoll administrator to run `kubectl create namespace %s`",
			r.APIGroup, r.Namespace)}
	}
	return none
}

// onNamespacedWrite gives a member the namespace of an object that is written through
// it, so that the member can keep events about the object. The write does not depend on
// it.
func (s *Server) onNamespacedWrite(ctx context.Context, w apiserver.NamespacedWrite) {
	cluster, ok := aggregate.ClusterOf(w.UserGroups)
	if !ok || aggregate.IsControlPlaneUser(cluster, w.UserName) {
		return
	}
	if terms, _ := s.sharedAPI(cluster, w.APIGroup); terms.Namespaces != v1alpha1.NamespacesProvide {
		return
	}
	if err := s.memberNamespaces.Provide(ctx, cluster, w.Namespace); err != nil {
		klog.ErrorS(err, "the member cluster rejects events about a shared object, because it lacks the namespace", "cluster", cluster, "namespace", w.Namespace)
	}
}

// workspaceNamespaces returns the server's own client for namespaces of the workspace.
func (s *Server) workspaceNamespaces() (corev1client.NamespaceInterface, error) {
	client, err := corev1client.NewForConfig(s.api.ClientConfig(serverUser))
	if err != nil {
		return nil, err
	}
	return client.Namespaces(), nil
}

// namespaceMetadata returns what a member needs of a namespace's labels and annotations.
func namespaceMetadata(ns *corev1.Namespace) (labels, annotations map[string]string) {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	u.SetLabels(ns.Labels)
	u.SetAnnotations(ns.Annotations)
	return interpret.NamespaceMetadata(u)
}

// memberRoles are for users of members. They are bound to no one: only an administrator
// can decide whom to trust with the leases of all clusters. For discovery and OpenAPI,
// members' users have Kubernetes' own roles: they are authenticated.
func memberRoles() []rbacv1.ClusterRole {
	return []rbacv1.ClusterRole{{
		ObjectMeta: metav1.ObjectMeta{Name: "atoll:member-coordination"},
		Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{coordination.LeaseResource.Group},
			Resources: []string{coordination.LeaseResource.Resource},
			Verbs:     []string{"get", "list", "watch", "create", "update", "patch"},
		}},
	}}
}
