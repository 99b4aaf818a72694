package apiserver

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"
)

// keepNamespaces is the name of the admission plugin that rejects the deletion of a
// namespace for which Config.KeepNamespace has a reason. It cannot be disabled: the
// controller that empties a namespace would delete what the reason is about.
const keepNamespaces = "AtollNamespaces"

type namespaceKeeper struct {
	*admission.Handler
	reason func(ctx context.Context, namespace string) (string, error)
}

var _ admission.ValidationInterface = namespaceKeeper{}

func withNamespaceKeeper(o *kubeoptions.AdmissionOptions, reason func(context.Context, string) (string, error)) error {
	if reason == nil {
		return nil
	}
	return addRequired(o, keepNamespaces, lifecycle.PluginName, NewNamespaceKeeper(reason),
		"the records of existing infrastructure would be lost with their namespace")
}

// NewNamespaceKeeper returns a plugin that rejects the deletion of a namespace for which there is a reason.
func NewNamespaceKeeper(reason func(ctx context.Context, namespace string) (string, error)) admission.Interface {
	return namespaceKeeper{admission.NewHandler(admission.Delete), reason}
}

// Validate implements admission.ValidationInterface.
func (p namespaceKeeper) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != corev1.Resource("namespaces") || a.GetSubresource() != "" || a.GetName() == "" {
		return nil
	}
	why, err := p.reason(ctx, a.GetName())
	if err != nil {
		// Without an answer the namespace stays.
		return admission.NewForbidden(a, fmt.Errorf("whether the namespace may be deleted is not known now; try again: %w", err))
	}
	if why != "" {
		return admission.NewForbidden(a, errors.New(why))
	}
	return nil
}
