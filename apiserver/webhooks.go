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

// A webhook that names a Service belongs to an application and runs where that runs: in
// members. A workspace runs no Services, so calling it can never work. With the failure
// policy Fail, none of the objects it matches could be written any more, the
// application's own objects first. So such webhooks are not called here. The members
// call theirs when an object reaches them. A warning tells the author of such a
// configuration (services_warning.go). Webhooks with a URL are called.

// noServices replaces upstream's resolver of Service addresses.
type noServices struct{}

func (noServices) ResolveEndpoint(namespace, name string, _ int32) (*url.URL, error) {
	return nil, fmt.Errorf("service %s/%s runs in member clusters, and Atoll cannot call it: "+
		"set url, with a URL that Atoll can reach, instead of service", namespace, name)
}

// reachableHooks gives the two plugins that call webhooks only those that can be
// called. It runs after upstream's initializer, which has given them all.
type reachableHooks struct {
	informers informers.SharedInformerFactory
}

var _ admission.PluginInitializer = reachableHooks{}

// ReachableHooks returns the initializer of plugins that call webhooks, after upstream's: they call only those that do not name a Service.
func ReachableHooks(watched informers.SharedInformerFactory) admission.PluginInitializer {
	return reachableHooks{watched}
}

func (r reachableHooks) Initialize(plugin admission.Interface) {
	reachable := reachableFactory{r.informers}
	switch p := plugin.(type) {
	case *mutatingwebhook.Plugin:
		p.SetExternalKubeInformerFactory(reachable)
	case *validatingwebhook.Plugin:
		p.SetExternalKubeInformerFactory(reachable)
	}
}

// These types wrap the informer factory down to the two listers. The informers
// themselves stay, so nothing is watched twice.
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
		c := *c // do not change the cached object
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
		c := *c // do not change the cached object
		c.Webhooks = reachable(c.Webhooks, func(h admissionregistrationv1.ValidatingWebhook) admissionregistrationv1.WebhookClientConfig {
			return h.ClientConfig
		})
		out[i] = &c
	}
	return out, err
}

// reachable returns the webhooks that do not name a Service, in their order.
func reachable[H any](hooks []H, config func(H) admissionregistrationv1.WebhookClientConfig) []H {
	return slices.DeleteFunc(slices.Clone(hooks), func(h H) bool { return config(h).Service != nil })
}
