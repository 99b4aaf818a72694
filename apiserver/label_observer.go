package apiserver

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"
)

// LabelObserver calls Changing for each request that creates, changes or deletes an object with a label, before it is stored: also for requests to a
// subresource, such as the status. It refuses nothing.
type LabelObserver struct {
	Label string
	// Changing must not block. The object is as it was, or as it will be if it is created.
	Changing func(ctx context.Context, user User, object metav1.Object)
}

var _ admission.ValidationInterface = LabelObserver{}

// Handles implements admission.Interface.
func (o LabelObserver) Handles(op admission.Operation) bool {
	return o.Changing != nil && op != admission.Connect
}

// Validate implements admission.ValidationInterface.
func (o LabelObserver) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	object := o.labelled(a.GetOldObject())
	if object == nil {
		object = o.labelled(a.GetObject())
	}
	if who := a.GetUserInfo(); object != nil && who != nil && !a.IsDryRun() {
		o.Changing(ctx, User{who.GetName(), who.GetGroups()}, object)
	}
	return nil
}

// labelled returns an object if it has the label.
func (o LabelObserver) labelled(object runtime.Object) metav1.Object {
	if object == nil {
		return nil
	}
	as, err := meta.Accessor(object)
	if err != nil || as.GetLabels()[o.Label] == "" {
		return nil // a scale, for example, has no metadata
	}
	return as
}

const observeLabels = "AtollObserveLabels"

// withLabelObserver adds the plugin, if there is one.
func withLabelObserver(o *kubeoptions.AdmissionOptions, observer *LabelObserver) {
	if observer != nil {
		addPlugin(o, observeLabels, lifecycle.PluginName, *observer)
	}
}
