package apiserver

import (
	"fmt"
	"net/url"
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/admission"
	mutatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	validatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
	"k8s.io/client-go/informers"
	informersof "k8s.io/client-go/informers/admissionregistration"
	informersv1 "k8s.io/client-go/informers/admissionregistration/v1"
	listersv1 "k8s.io/client-go/listers/admissionregistration/v1"
)

// A webhook that names a Service belongs to an application, and runs where that
// runs: in members. A workspace runs no Services, so calling it can never work,
// and with the failure policy Fail nothing that it looks at could be written any
// more, the application's own objects first. So such webhooks are not called here.
// The members call theirs, when the object reaches them. Whoever makes such a
// configuration is told (services_warning.go). Webhooks with a URL are called.

// noServices stands where upstream looks for the address of a Service.
type noServices struct{}

func (noServices) ResolveEndpoint(namespace, name string, _ int32) (*url.URL, error) {
	return nil, fmt.Errorf("service %s/%s runs in member clusters, and Atoll cannot call it: "+
		"give Atoll a URL that it can reach (url in place of service)", namespace, name)
}

// reachableHooks gives the two plugins that call webhooks only those that can be
// called, after upstream's initializer has given them all.
type reachableHooks struct {
	informers informers.SharedInformerFactory
}

var _ admission.PluginInitializer = reachableHooks{}

func (r reachableHooks) Initialize(plugin admission.Interface) {
	reachable := reachableFactory{r.informers}
	switch p := plugin.(type) {
	case *mutatingwebhook.Plugin:
		p.SetExternalKubeInformerFactory(reachable)
	case *validatingwebhook.Plugin:
		p.SetExternalKubeInformerFactory(reachable)
	}
}

// These lead from a factory of informers to two listers. The informers themselves
// stay, so nothing is watched twice.
type (
	reachableFactory struct {
		informers.SharedInformerFactory
	}
	reachableGroup    struct{ informersof.Interface }
	reachableV1       struct{ informersv1.Interface }
	reachableMutating struct {
		informersv1.MutatingWebhookConfigurationInformer
	}
	reachableValidating struct {
		informersv1.ValidatingWebhookConfigurationInformer
	}
	mutatingLister struct {
		listersv1.MutatingWebhookConfigurationLister
	}
	validatingLister struct {
		listersv1.ValidatingWebhookConfigurationLister
	}
)

func (f reachableFactory) Admissionregistration() informersof.Interface {
	return reachableGroup{f.SharedInformerFactory.Admissionregistration()}
}

func (g reachableGroup) V1() informersv1.Interface { return reachableV1{g.Interface.V1()} }

func (v reachableV1) MutatingWebhookConfigurations() informersv1.MutatingWebhookConfigurationInformer {
	return reachableMutating{v.Interface.MutatingWebhookConfigurations()}
}

func (v reachableV1) ValidatingWebhookConfigurations() informersv1.ValidatingWebhookConfigurationInformer {
	return reachableValidating{v.Interface.ValidatingWebhookConfigurations()}
}

func (i reachableMutating) Lister() listersv1.MutatingWebhookConfigurationLister {
	return mutatingLister{i.MutatingWebhookConfigurationInformer.Lister()}
}

func (i reachableValidating) Lister() listersv1.ValidatingWebhookConfigurationLister {
	return validatingLister{i.ValidatingWebhookConfigurationInformer.Lister()}
}

func (l mutatingLister) List(selector labels.Selector) ([]*admissionregistrationv1.MutatingWebhookConfiguration, error) {
	all, err := l.MutatingWebhookConfigurationLister.List(selector)
	out := slices.Clone(all)
	for i, c := range out {
		c := *c // the cache's own stays whole
		c.Webhooks = reachable(c.Webhooks, func(h admissionregistrationv1.MutatingWebhook) admissionregistrationv1.WebhookClientConfig {
			return h.ClientConfig
		})
		out[i] = &c
	}
	return out, err
}

func (l validatingLister) List(selector labels.Selector) ([]*admissionregistrationv1.ValidatingWebhookConfiguration, error) {
	all, err := l.ValidatingWebhookConfigurationLister.List(selector)
	out := slices.Clone(all)
	for i, c := range out {
		c := *c // the cache's own stays whole
		c.Webhooks = reachable(c.Webhooks, func(h admissionregistrationv1.ValidatingWebhook) admissionregistrationv1.WebhookClientConfig {
			return h.ClientConfig
		})
		out[i] = &c
	}
	return out, err
}

// reachable gives the webhooks without those that name a Service, in their order.
func reachable[H any](hooks []H, config func(H) admissionregistrationv1.WebhookClientConfig) []H {
	return slices.DeleteFunc(slices.Clone(hooks), func(h H) bool { return config(h).Service != nil })
}
