package apiserver

import (
	"context"
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle"
	"k8s.io/kubernetes/pkg/apis/core"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"
)

// DeletionProtection rejects the deletion of objects with a label, also by controllers. The namespaces and
// types of such objects cannot be deleted either.
type DeletionProtection struct {
	// Label protects an object if its value is "true".
	Label string
	// InNamespace returns a protected object of a namespace, such as "deployments.apps web", or "".
	InNamespace func(ctx context.Context, namespace string) (string, error)
	// OfType returns a protected object of a custom resource, or "".
	OfType func(ctx context.Context, resource schema.GroupVersionResource) (string, error)
}

// protectObjects is the name of the admission plugin. It cannot be disabled: users rely on the label, which
// would then have no effect.
const protectObjects = "AtollDeletionProtection"

type deletionProtector struct {
	*admission.Handler
	DeletionProtection
}

var _ admission.ValidationInterface = deletionProtector{}

func withDeletionProtection(o *kubeoptions.AdmissionOptions, p *DeletionProtection) error {
	if p == nil {
		return nil
	}
	return addRequired(o, protectObjects, lifecycle.PluginName, deletionProtector{admission.NewHandler(admission.Delete), *p},
		"protected objects could then be deleted")
}

// Validate implements admission.ValidationInterface.
func (p deletionProtector) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetSubresource() != "" || a.GetOldObject() == nil {
		return nil
	}
	object, err := meta.Accessor(a.GetOldObject())
	if err != nil || object.GetDeletionTimestamp() != nil {
		return nil // it is being deleted already
	}
	remedy := fmt.Sprintf("to delete it, remove the label %s first", p.Label)
	if object.GetLabels()[p.Label] == "true" {
		return admission.NewForbidden(a, fmt.Errorf("it is protected from deletion: %s", remedy))
	}
	protected, err := p.content(ctx, a)
	if err != nil {
		return admission.NewForbidden(a, fmt.Errorf("whether it contains protected objects is not known now; try again: %w", err))
	}
	if protected != "" {
		return admission.NewForbidden(a, fmt.Errorf("%s is protected from deletion and would be deleted with it: remove the label %s there first", protected, p.Label))
	}
	return nil
}

// content returns a protected object that would be deleted with the object of the request.
func (p deletionProtector) content(ctx context.Context, a admission.Attributes) (string, error) {
	switch object := a.GetOldObject().(type) {
	case *core.Namespace:
		return p.InNamespace(ctx, object.Name)
	case *apiextensions.CustomResourceDefinition:
		if resource, served := servedAs(object); served {
			return p.OfType(ctx, resource)
		}
	}
	return "", nil
}

// servedAs returns the resource that a CustomResourceDefinition defines, in a version that is served. It returns
// false if none is.
func servedAs(crd *apiextensions.CustomResourceDefinition) (schema.GroupVersionResource, bool) {
	for _, v := range crd.Spec.Versions {
		if v.Served {
			return schema.GroupVersionResource{Group: crd.Spec.Group, Version: v.Name, Resource: crd.Spec.Names.Plural}, true
		}
	}
	return schema.GroupVersionResource{}, false
}
