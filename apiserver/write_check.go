package apiserver

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	"k8s.io/kubernetes/pkg/apis/autoscaling"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"
)

// WriteCheck is the server's own last check of objects of any kind. It runs after all other admission,
// so the API server stores nearly all objects that it admits.
type WriteCheck struct {
	// Concerns reports quickly whether Check may reject writes of a kind in a namespace.
	Concerns func(kind schema.GroupKind, namespace string) bool
	// Check returns an error for a write that must not be stored: one of the API, or the message of a 403.
	Check func(ctx context.Context, w *ObjectWrite) error
}

// ObjectWrite is a request to create or update an object, or to scale it.
type ObjectWrite struct {
	Kind            schema.GroupVersionKind
	Resource        string
	Namespace, Name string
	User            User
	// Old is nil on create. In a request to scale, Old and Object are nil.
	Old, Object *unstructured.Unstructured
	// Replicas that a request to scale sets.
	Replicas int32
	DryRun   bool
}

// checkWrites is the name of the admission plugin. It cannot be disabled: users could exceed quotas.
const checkWrites = "AtollFleetQuota"

type writeChecker struct {
	*admission.Handler
	WriteCheck
}

var _ admission.ValidationInterface = writeChecker{}

func withWriteCheck(o *kubeoptions.AdmissionOptions, check *WriteCheck) error {
	if check == nil {
		return nil
	}
	return addRequired(o, checkWrites, resourcequota.PluginName, writeChecker{admission.NewHandler(admission.Create, admission.Update), *check},
		"users could then exceed the quotas of the fleet")
}

// Validate implements admission.ValidationInterface.
func (c writeChecker) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	scales := a.GetSubresource() == "scale"
	if a.GetSubresource() != "" && !scales && a.GetSubresource() != "resize" {
		return nil
	}
	w := &ObjectWrite{Kind: a.GetKind(), Resource: a.GetResource().Resource, Namespace: a.GetNamespace(), Name: a.GetName(), DryRun: a.IsDryRun()}
	if scales {
		// The kind of the request is Scale.
		w.Kind = schema.GroupVersionKind{Group: a.GetResource().Group, Version: a.GetResource().Version}
	}
	if !c.Concerns(w.Kind.GroupKind(), w.Namespace) {
		return nil
	}
	if who := a.GetUserInfo(); who != nil {
		w.User = User{who.GetName(), who.GetGroups()}
	}
	var err error
	if scales {
		w.Replicas, err = scaledTo(a.GetObject())
	} else if w.Object, err = versionedOf(a.GetObject(), w.Kind); err == nil && a.GetOperation() == admission.Update {
		w.Old, err = versionedOf(a.GetOldObject(), w.Kind)
	}
	if err != nil {
		return admission.NewForbidden(a, fmt.Errorf("read the object: %w", err))
	}
	if w.Name == "" && w.Object != nil {
		w.Name = w.Object.GetName()
	}
	err = c.Check(ctx, w)
	if _, ofAPI := err.(apierrors.APIStatus); err == nil || ofAPI {
		return err
	}
	return admission.NewForbidden(a, err)
}

// versionedOf returns an object in the version of the request. Custom resources have it already.
func versionedOf(object runtime.Object, kind schema.GroupVersionKind) (*unstructured.Unstructured, error) {
	if u, is := object.(*unstructured.Unstructured); is {
		return u, nil
	}
	return versioned(object, kind)
}

// scaledTo returns the replicas of a request to scale.
func scaledTo(object runtime.Object) (int32, error) {
	if scale, is := object.(*autoscaling.Scale); is {
		return scale.Spec.Replicas, nil
	}
	u, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return 0, err
	}
	n, _, err := unstructured.NestedInt64(u, "spec", "replicas")
	return int32(n), err
}
