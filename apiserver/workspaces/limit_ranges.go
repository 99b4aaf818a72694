package workspaces

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/registry/rest"
	api "k8s.io/kubernetes/pkg/apis/core"
	apiv1 "k8s.io/kubernetes/pkg/apis/core/v1"
	"k8s.io/kubernetes/plugin/pkg/admission/limitranger"
)

// limitRanges does what upstream's plugin LimitRanger does: it sets defaults of pods and checks pods and claims. Upstream's reads a
// cache of one workspace; this one reads the LimitRanges of the request's namespace.
type limitRanges struct {
	quotas  *quotas // has the storage of the core group
	actions limitranger.DefaultLimitRangerActions
}

var (
	_ admission.MutationInterface   = &limitRanges{}
	_ admission.ValidationInterface = &limitRanges{}
)

// Handles implements admission.Interface.
func (*limitRanges) Handles(op admission.Operation) bool {
	return op == admission.Create || op == admission.Update
}

// Admit implements admission.MutationInterface.
func (l *limitRanges) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	return l.each(ctx, a, l.actions.MutateLimit)
}

// Validate implements admission.ValidationInterface.
func (l *limitRanges) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	return l.each(ctx, a, l.actions.ValidateLimit)
}

// each calls apply for each LimitRange of the request's namespace.
func (l *limitRanges) each(ctx context.Context, a admission.Attributes, apply func(of *corev1.LimitRange, resource string, object runtime.Object) error) error {
	lister, served := l.quotas.opened["limitranges"].(rest.Lister)
	if !served || !l.actions.SupportsAttributes(a) {
		return nil
	}
	if old := accessor(a.GetOldObject()); old != nil && old.GetDeletionTimestamp() != nil {
		return nil
	}
	found, err := lister.List(asServer(ctx, a.GetNamespace()), &internalversion.ListOptions{})
	if err != nil {
		return err
	}
	list, ok := found.(*api.LimitRangeList)
	if !ok {
		return fmt.Errorf("the storage of limit ranges returned a %T: this is a bug, please report it", found)
	}
	for i := range list.Items {
		of := &corev1.LimitRange{}
		if err := apiv1.Convert_core_LimitRange_To_v1_LimitRange(&list.Items[i], of, nil); err != nil {
			return err
		}
		if !l.actions.SupportsLimit(of) {
			continue
		}
		if err := apply(of, a.GetResource().Resource, a.GetObject()); err != nil {
			return admission.NewForbidden(a, err)
		}
	}
	return nil
}
