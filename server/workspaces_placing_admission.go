package server

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	tenancyv1alpha1 "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/apiserver"
	"github.com/atoll-dev/atoll/apiserver/workspaces"
	"github.com/atoll-dev/atoll/tenancy"
)

// checkPlacement refuses a placement that the user may not choose, or that the workspace cannot have. path is that of the workspace, and types are those of
// the API that has the Workspace.
func (t *tenants) checkPlacement(ctx context.Context, path string, r *apiserver.AdmissionRequest, types workspaceTypes) error {
	is, was := placementOf(r.Object), placementOf(r.Old)
	if is == nil || equality.Semantic.DeepEqual(is, was) {
		return nil
	}
	ofType, err := t.isPlacementOfType(ctx, r, is, types)
	if err != nil {
		return err
	}
	if !ofType {
		if err := t.mayPlace(ctx, r, tenancyv1alpha1.WorkspaceResource, types.allows); err != nil {
			return err
		}
	}
	if problems := checkNamespaceLabels(is); len(problems) > 0 {
		return invalid("Workspace", r.Name, problems...)
	}
	if r.Old != nil {
		return t.checkPlacementLater(ctx, path, r)
	}
	from := sourceOf(r, "moveFrom")
	if name := sourceOf(r, "name"); name != "" {
		from = below(tenancy.Parent(path), name)
	}
	if from == "" {
		return nil
	}
	return t.checkNoClusters(ctx, from, r)
}

// isPlacementOfType reports whether a new Workspace has the placement of its type, whose author had the permission.
func (t *tenants) isPlacementOfType(ctx context.Context, r *apiserver.AdmissionRequest, is map[string]any, types workspaceTypes) (bool, error) {
	name := tenancy.TypeOf(r.Object)
	if r.Old != nil || name == "" {
		return false, nil
	}
	of, err := types.find(ctx, r, name)
	if err != nil || of == nil || of.Spec.Placement == nil {
		return false, err
	}
	placement, err := runtime.DefaultUnstructuredConverter.ToUnstructured(of.Spec.Placement)
	return err == nil && equality.Semantic.DeepEqual(placement, is), err
}

// mayPlace refuses a placement in an object of a resource if its user lacks the permission to let workspaces use the clusters.
func (t *tenants) mayPlace(ctx context.Context, r *apiserver.AdmissionRequest, in schema.GroupVersionResource, allows allows) error {
	allowed, err := allows(ctx, tenancyv1alpha1.BindVerb, v1alpha1.ClusterResource, "")
	if err != nil {
		t.s.cfg.Log.Error("check the permission for a placement failed", "in", workspaces.PathOf(ctx), "resource", in.Resource, "name", r.Name, "error", err)
		return apierrors.NewServiceUnavailable("permissions cannot be checked now: retry")
	}
	if allowed {
		return nil
	}
	return apierrors.NewForbidden(in.GroupResource(), r.Name, fmt.Errorf(
		"spec.placement: user %q lacks the verb %s for %s, by which workspaces use the clusters here: ask an administrator for it, or leave spec.placement out",
		r.User.Name, tenancyv1alpha1.BindVerb, v1alpha1.ClusterResource.GroupResource()))
}

// checkTypePlacement refuses a WorkspaceType with a placement that its author may not choose.
func (t *tenants) checkTypePlacement(ctx context.Context, r *apiserver.AdmissionRequest) error {
	is := placementOf(r.Object)
	if is == nil || equality.Semantic.DeepEqual(is, placementOf(r.Old)) {
		return nil
	}
	if problems := checkNamespaceLabels(is); len(problems) > 0 {
		return invalid("WorkspaceType", r.Name, problems...)
	}
	decide := t.rootAllows
	if workspaces.PathOf(ctx) != "" {
		decide = t.served.Allows
	}
	return t.mayPlace(ctx, r, tenancyv1alpha1.WorkspaceTypeResource, decide)
}

// checkNamespaceLabels returns the problems of spec.placement.namespaceLabels.
func checkNamespaceLabels(placement map[string]any) field.ErrorList {
	labels, _, _ := unstructured.NestedStringMap(placement, "namespaceLabels")
	at := field.NewPath("spec", "placement", "namespaceLabels")
	problems := metav1validation.ValidateLabels(labels, at)
	for key := range labels {
		if strings.HasPrefix(key, tenancyv1alpha1.Group+"/") || key == corev1.LabelMetadataName {
			problems = append(problems, field.Forbidden(at.Key(key), "the server sets this label: leave it out"))
		}
	}
	return problems
}

// checkPlacementLater checks the placement of a workspace that exists. It marks the workspace, so that the objects that it has already are placed.
func (t *tenants) checkPlacementLater(ctx context.Context, path string, r *apiserver.AdmissionRequest) error {
	if err := t.checkNoClusters(ctx, path, r); err != nil {
		return err
	}
	if err := t.marker.Mark(ctx, tenancy.Placement, path, string(r.Old.GetUID())); err != nil {
		t.s.cfg.Log.Error("prepare the placement of a workspace failed", "workspace", path, "error", err)
		return apierrors.NewServiceUnavailable("the placement of the workspace cannot be changed now: retry")
	}
	return nil
}

// checkNoClusters refuses a placement for the objects of a workspace that has Clusters.
func (t *tenants) checkNoClusters(ctx context.Context, path string, r *apiserver.AdmissionRequest) error {
	clusters, err := t.countClusters(ctx, path)
	if err != nil {
		t.s.cfg.Log.Error("look for Clusters in a workspace failed", "workspace", path, "error", err)
		return apierrors.NewServiceUnavailable(fmt.Sprintf("it cannot be read now whether workspace %s has Clusters: retry", path))
	}
	if clusters > 0 {
		return forbidden(r, refusal(fmt.Sprintf("spec.placement: workspace %s has Clusters of its own, in which its objects run: delete these first, or leave spec.placement out", path)))
	}
	return nil
}

// placementOf returns spec.placement of a Workspace, which may be nil.
func placementOf(w *unstructured.Unstructured) map[string]any {
	if w == nil {
		return nil
	}
	placement, _, _ := unstructured.NestedMap(w.Object, "spec", "placement")
	return placement
}

// checkOwnClusters refuses a Cluster in a workspace whose parent places its objects.
func (t *tenants) checkOwnClusters(ctx context.Context, path string) error {
	w, _, release, err := t.withParent(ctx, path)
	if err != nil {
		t.s.cfg.Log.Error("read the placement of a workspace failed", "workspace", path, "error", err)
		return apierrors.NewServiceUnavailable("the placement of the workspace cannot be read now: retry")
	}
	defer release()
	if w.Spec.Placement != nil {
		return refusal("the objects of this workspace run in the clusters of the workspace above (spec.placement of its Workspace): create the Cluster there, or in another workspace")
	}
	return nil
}

// observeCopies observes the copies in a parent, except for what the users of the children write themselves.
func (s *Server) observeCopies() *apiserver.LabelObserver {
	return &apiserver.LabelObserver{Label: tenancyv1alpha1.ChildUIDLabel, Changing: func(ctx context.Context, user apiserver.User, object metav1.Object) {
		if user.Name != tenancyv1alpha1.PlacementUsers+object.GetLabels()[tenancyv1alpha1.ChildLabel] {
			s.tenants.copyChanging(ctx, object)
		}
	}}
}

// placementRole says which objects of workspaces their parent places, and what users of the workspaces reach of their pods there. Its administrators
// may change it.
func placementRole() rbacv1.ClusterRole {
	verbs := []string{"get", "list", "watch", "create", "update", "patch", "delete"}
	rule := func(group string, resources ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: verbs}
	}
	return rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: tenancyv1alpha1.PlacementRole}, Rules: []rbacv1.PolicyRule{
		rule("", "configmaps", "endpoints", "persistentvolumeclaims", "secrets", "serviceaccounts", "services"),
		rule("apps", "daemonsets", "deployments", "statefulsets"),
		rule("autoscaling", "horizontalpodautoscalers"),
		rule("batch", "cronjobs", "jobs"),
		rule("networking.k8s.io", "ingresses", "networkpolicies"),
		rule("policy", "poddisruptionbudgets"),
		rule(v1alpha1.Group, v1alpha1.PlacementResource.Resource),
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get", "list", "watch", "delete"}},
		{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"get", "list", "watch"}},
		{APIGroups: []string{""}, Resources: []string{"pods/log"}, Verbs: []string{"get"}},
		{APIGroups: []string{""}, Resources: []string{"pods/attach", "pods/exec", "pods/portforward"}, Verbs: []string{"get", "create"}},
		{APIGroups: []string{""}, Resources: []string{"pods/eviction"}, Verbs: []string{"create"}},
		{APIGroups: []string{""}, Resources: []string{"pods/proxy", "services/proxy"}, Verbs: []string{"get", "create", "update", "patch", "delete"}},
	}}
}
