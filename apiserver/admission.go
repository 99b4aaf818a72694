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

// disabledPlugins returns the admission plugins that are off by default.
//
// Enabled are the plugins that guard this API itself, and those that enforce objects
// which users create in it (quotas, limits, policies, webhooks, Pod Security labels).
// Disabled are the plugins that complete objects from a cluster's own facts: tokens
// mounted into Pods, default storage and ingress classes, tolerations, priorities,
// finalizers of volume protection. The member clusters do that, each from its own
// facts. Done here, one cluster's values would be copied to all. DESIGN.md lists the
// plugins one by one.
func disabledPlugins(workloads bool) sets.Set[string] {
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
