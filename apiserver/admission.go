package apiserver

import (
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle"
	mutatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	validatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	mutatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	validatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"
	certapproval "k8s.io/kubernetes/plugin/pkg/admission/certificates/approval"
	"k8s.io/kubernetes/plugin/pkg/admission/certificates/ctbattest"
	certsigning "k8s.io/kubernetes/plugin/pkg/admission/certificates/signing"
	certsubjectrestriction "k8s.io/kubernetes/plugin/pkg/admission/certificates/subjectrestriction"
	"k8s.io/kubernetes/plugin/pkg/admission/limitranger"
	"k8s.io/kubernetes/plugin/pkg/admission/security/podsecurity"
)

// pluginsOff names the admission plugins that are off by default.
//
// On is what guards this API itself, and what enforces objects that users put
// into it (quotas, limits, policies, webhooks, Pod Security labels). Off is
// everything by which a cluster completes objects from its own facts: tokens
// mounted into Pods, default storage and ingress classes, tolerations,
// priorities, finalizers of volume protection. The members that run an object do
// that, each by its own facts; done here, one cluster's answer would be copied to
// all. DESIGN.md goes through them one by one.
func pluginsOff(workloads bool) sets.Set[string] {
	on := sets.New(
		lifecycle.PluginName,
		certapproval.PluginName,
		certsigning.PluginName,
		ctbattest.PluginName,
		certsubjectrestriction.PluginName,
		mutatingpolicy.PluginName,
		mutatingwebhook.PluginName,
		validatingpolicy.PluginName,
		validatingwebhook.PluginName,
		resourcequota.PluginName,
	)
	if workloads {
		// These two watch kinds that exist only with the workload APIs.
		on.Insert(limitranger.PluginName, podsecurity.PluginName)
	}
	return sets.New(kubeoptions.AllOrderedPlugins...).Difference(on)
}
