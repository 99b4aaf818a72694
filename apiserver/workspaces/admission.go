package workspaces

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/registry/rest"
	api "k8s.io/kubernetes/pkg/apis/core"
)

// lifecycle does what upstream's plugin NamespaceLifecycle does: nothing is created in a namespace that does not exist or is being
// deleted. Upstream's reads namespaces from a cache of one workspace; this one reads that of the request.
type lifecycle struct{ namespaces rest.Getter }

var _ admission.ValidationInterface = lifecycle{}

// permanent are the namespaces that cannot be deleted.
var permanent = []string{metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic}

func (lifecycle) Handles(op admission.Operation) bool {
	return op == admission.Create || op == admission.Delete
}

// Validate implements admission.ValidationInterface.
func (l lifecycle) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetKind().GroupKind() == (schema.GroupKind{Kind: "Namespace"}) {
		if a.GetOperation() == admission.Delete && slices.Contains(permanent, a.GetName()) {
			return apierrors.NewForbidden(a.GetResource().GroupResource(), a.GetName(), errors.New("this namespace may not be deleted"))
		}
		return nil
	}
	if a.GetOperation() != admission.Create || a.GetNamespace() == "" || isReview(a) {
		return nil
	}
	found, err := l.namespaces.Get(ctx, a.GetNamespace(), &metav1.GetOptions{})
	if err != nil {
		return err
	}
	if namespace, ok := found.(*api.Namespace); ok && (namespace.Status.Phase == api.NamespaceTerminating || namespace.DeletionTimestamp != nil) {
		err := admission.NewForbidden(a, fmt.Errorf("unable to create new content in namespace %s because it is being terminated", a.GetNamespace()))
		if status := (&apierrors.StatusError{}); errors.As(err, &status) {
			status.ErrStatus.Details.Causes = append(status.ErrStatus.Details.Causes, metav1.StatusCause{
				Type: "NamespaceTerminating", Message: fmt.Sprintf("namespace %s is being terminated", a.GetNamespace()), Field: "metadata.namespace",
			})
		}
		return err
	}
	return nil
}

// isReview reports whether a request asks about access. The answer must not reveal whether the namespace exists.
func isReview(a admission.Attributes) bool {
	return a.GetResource().GroupResource() == schema.GroupResource{Group: "authorization.k8s.io", Resource: "localsubjectaccessreviews"}
}

// boundGroups refuses definitions in groups that a workspace gets by a binding, or that kinds without definitions have. They would not be served, and when they were deleted,
// upstream would remove the objects of the bound resources, which have the same keys.
type boundGroups struct{ *chain }

var _ admission.ValidationInterface = boundGroups{}

func (boundGroups) Handles(op admission.Operation) bool { return op == admission.Create }

// Validate implements admission.ValidationInterface.
func (b boundGroups) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	crd, ok := a.GetObject().(*apiextensions.CustomResourceDefinition)
	if !ok {
		return nil
	}
	if b.isKindsGroup(crd.Spec.Group) {
		return admission.NewForbidden(a, fmt.Errorf("the groups below %s are those of Providers: use another group", b.kindsDomain))
	}
	bound, err := b.bindingOf(ctx, workspaceOf(ctx), crd.Spec.Group)
	if err != nil {
		return apierrors.NewServiceUnavailable("the bindings of the workspace cannot be read now: retry")
	}
	if bound == nil {
		return nil
	}
	if bound.Name == "" {
		return admission.NewForbidden(a, fmt.Errorf("this workspace gets the group %s from the server: use another group", crd.Spec.Group))
	}
	return admission.NewForbidden(a, fmt.Errorf("this workspace gets the group %s from another one: use another group, or delete the APIBinding first", crd.Spec.Group))
}
