package apiserver

import (
	"fmt"
	"io"
	"slices"

	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"
)

// addPlugin adds an admission plugin that runs directly after another one.
func addPlugin(o *kubeoptions.AdmissionOptions, name, after string, plugin admission.Interface) {
	insertPlugin(o, name, slices.Index(o.GenericAdmission.RecommendedPluginOrder, after)+1, plugin)
}

// addFirst adds an admission plugin that runs directly before NamespaceLifecycle, which is the first one.
func addFirst(o *kubeoptions.AdmissionOptions, name string, plugin admission.Interface) {
	insertPlugin(o, name, slices.Index(o.GenericAdmission.RecommendedPluginOrder, lifecycle.PluginName), plugin)
}

// addRequired is addPlugin for a plugin that users must not disable. The reason completes "cannot be
// disabled, because".
func addRequired(o *kubeoptions.AdmissionOptions, name, after string, plugin admission.Interface, reason string) error {
	if slices.Contains(o.GenericAdmission.DisablePlugins, name) {
		return fmt.Errorf("admission plugin %s cannot be disabled, because %s: remove it from --disable-admission-plugins", name, reason)
	}
	addPlugin(o, name, after, plugin)
	return nil
}

func insertPlugin(o *kubeoptions.AdmissionOptions, name string, position int, plugin admission.Interface) {
	generic := o.GenericAdmission
	generic.Plugins.Register(name, func(io.Reader) (admission.Interface, error) { return plugin, nil })
	generic.RecommendedPluginOrder = slices.Insert(slices.Clone(generic.RecommendedPluginOrder), position, name)
}
