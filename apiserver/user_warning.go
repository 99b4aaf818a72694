package apiserver

import (
	"context"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"
)

// Warning tells users something about objects that they write.
type Warning struct {
	// Concerns reports quickly whether About may return a warning for objects of a kind in a namespace.
	Concerns func(kind schema.GroupKind, namespace string) bool
	// About returns a warning, or "".
	About func(obj *unstructured.Unstructured) string
	// AboutLabels returns a warning about the labels of an object of any kind, or "".
	AboutLabels func(labels map[string]string) string
}

// warnUsers is the name of the admission plugin.
const warnUsers = "WarnUsers"

// userWarner gives the warnings. It rejects nothing.
type userWarner struct {
	*admission.Handler
	Warning
}

var _ admission.ValidationInterface = userWarner{}

func withUserWarning(o *kubeoptions.AdmissionOptions, w *Warning) {
	if w == nil {
		return
	}
	addPlugin(o, warnUsers, lifecycle.PluginName, userWarner{admission.NewHandler(admission.Create, admission.Update), *w})
}

// Validate implements admission.ValidationInterface.
func (w userWarner) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetSubresource() != "" || isController(a.GetUserInfo().GetName()) {
		return nil
	}
	if about, err := meta.Accessor(a.GetObject()); err == nil && w.AboutLabels != nil {
		if text := w.AboutLabels(about.GetLabels()); text != "" {
			warning.AddWarning(ctx, "", text)
		}
	}
	if !w.Concerns(a.GetKind().GroupKind(), a.GetNamespace()) {
		return nil
	}
	obj, err := versioned(a.GetObject(), a.GetKind())
	if err != nil {
		return nil // an object that cannot be encoded is rejected elsewhere
	}
	if text := w.About(obj); text != "" {
		warning.AddWarning(ctx, "", text)
	}
	return nil
}

// isController reports whether a user is a controller, which would only log the warning.
func isController(user string) bool {
	return strings.HasPrefix(user, "system:") || strings.HasPrefix(user, "atoll:")
}

func versioned(object runtime.Object, kind schema.GroupVersionKind) (*unstructured.Unstructured, error) {
	external, err := legacyscheme.Scheme.ConvertToVersion(object, kind.GroupVersion())
	if err != nil {
		return nil, err
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(external)
	if err != nil {
		return nil, err
	}
	out := &unstructured.Unstructured{Object: fields}
	out.SetGroupVersionKind(kind)
	return out, nil
}
