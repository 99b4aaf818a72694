package apiserver

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
	"k8s.io/kubernetes/pkg/apis/admissionregistration"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"
)

// warnOfServices is the name of the admission plugin.
const warnOfServices = "WarnOfServices"

// serviceWarner warns about objects for which an API server would call a Service. This
// one does not, and the warning names the consequences.
type serviceWarner struct{ *admission.Handler }

var _ admission.ValidationInterface = serviceWarner{}

func withServiceWarnings(o *kubeoptions.AdmissionOptions) {
	addPlugin(o, warnOfServices, lifecycle.PluginName, serviceWarner{admission.NewHandler(admission.Create, admission.Update)})
}

// Validate implements admission.ValidationInterface. It rejects nothing.
func (serviceWarner) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetSubresource() != "" {
		return nil
	}
	for _, text := range serviceWarnings(a.GetObject()) {
		warning.AddWarning(ctx, "", text)
	}
	return nil
}

func serviceWarnings(object runtime.Object) (out []string) {
	hook := func(name string, c admissionregistration.WebhookClientConfig) {
		if c.Service != nil {
			out = append(out, fmt.Sprintf("webhook %s uses service %s/%s, which runs in member clusters: Atoll does not call it; "+
				"members call it for objects placed on them; to have Atoll call it, set url instead of service",
				name, c.Service.Namespace, c.Service.Name))
		}
	}
	switch o := object.(type) {
	case *admissionregistration.MutatingWebhookConfiguration:
		for _, h := range o.Webhooks {
			hook(h.Name, h.ClientConfig)
		}
	case *admissionregistration.ValidatingWebhookConfiguration:
		for _, h := range o.Webhooks {
			hook(h.Name, h.ClientConfig)
		}
	case *apiextensions.CustomResourceDefinition:
		if text := conversionWarning(o); text != "" {
			out = append(out, text)
		}
	case *apiregistration.APIService:
		if s := o.Spec.Service; s != nil {
			out = append(out, fmt.Sprintf("service %s/%s runs in member clusters: Atoll cannot serve %s %s from there, but members can",
				s.Namespace, s.Name, o.Spec.Group, o.Spec.Version))
		}
	}
	return out
}

// conversionWarning returns which versions of a kind can be used here if a Service
// converts between them: only the storage version. Atoll does not serve the others by
// changing the version and keeping the fields: fields that the other version names
// differently would be lost.
func conversionWarning(crd *apiextensions.CustomResourceDefinition) string {
	c := crd.Spec.Conversion
	if c == nil || c.Strategy != apiextensions.WebhookConverter || c.WebhookClientConfig == nil || c.WebhookClientConfig.Service == nil {
		return ""
	}
	var stored string
	var others []string
	for _, v := range crd.Spec.Versions {
		switch {
		case v.Storage:
			stored = v.Name
		case v.Served:
			others = append(others, v.Name)
		}
	}
	if len(others) == 0 {
		return ""
	}
	return fmt.Sprintf("service %s/%s converts %s and runs in member clusters, where Atoll cannot call it: use the storage version %s, "+
		"not %s, or set url instead of service in the webhook",
		c.WebhookClientConfig.Service.Namespace, c.WebhookClientConfig.Service.Name, crd.Spec.Names.Plural,
		stored, strings.Join(others, ", "))
}
