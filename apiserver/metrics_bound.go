package apiserver

import (
	"errors"
	"maps"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-base/metrics"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// Kubernetes' metrics have labels with the names of kinds, webhooks and policies, and keep each name for as long as the process runs. In workspaces users choose
// these names, so metrics could take all memory. Upstream counts values that are not on a list as "unexpected", by lists of the process. So the names of built-in
// kinds are on lists, and those of Atoll. No list has the names of webhooks and policies.

// kindMetrics are the metrics with names of kinds that requests to workspaces change.
var kindMetrics = []string{
	"apiserver_request_total", "apiserver_longrunning_requests", "apiserver_request_duration_seconds", "apiserver_request_slo_duration_seconds",
	"apiserver_request_sli_duration_seconds", "apiserver_response_sizes", "apiserver_watch_events_total", "apiserver_watch_events_sizes",
	"apiserver_request_terminations_total", "apiserver_selfrequest_total", "apiserver_request_aborts_total", "apiserver_watch_list_duration_seconds",
	"etcd_request_duration_seconds", "etcd_requests_total", "etcd_request_errors_total", "etcd_bookmark_counts", "etcd_bookmark_total",
	"apiserver_storage_events_received_total", "apiserver_storage_list_total", "apiserver_storage_list_fetched_objects_total",
	"apiserver_storage_list_evaluated_objects_total", "apiserver_storage_list_returned_objects_total", "apiserver_storage_decode_errors_total",
}

// namedMetrics are the metrics with names of other objects, and the labels that have the names.
var namedMetrics = map[string][]string{
	"apiserver_admission_webhook_admission_duration_seconds":       {"name"},
	"apiserver_admission_webhook_rejection_count":                  {"name"},
	"apiserver_admission_webhook_fail_open_count":                  {"name"},
	"apiserver_admission_webhook_request_total":                    {"name"},
	"apiserver_admission_match_condition_evaluation_errors_total":  {"name"},
	"apiserver_admission_match_condition_exclusions_total":         {"name"},
	"apiserver_admission_match_condition_evaluation_seconds":       {"name"},
	"apiserver_validating_admission_policy_check_total":            {"policy", "policy_binding"},
	"apiserver_validating_admission_policy_check_duration_seconds": {"policy", "policy_binding"},
	"apiserver_mutating_admission_policy_check_total":              {"policy", "policy_binding"},
	"apiserver_mutating_admission_policy_check_duration_seconds":   {"policy", "policy_binding"},
	"apiserver_crd_conversion_webhook_duration_seconds":            {"crd_name", "from_version", "to_version"},
	"apiextensions_openapi_v2_regeneration_count":                  {"crd"},
	"apiextensions_openapi_v3_regeneration_count":                  {"group", "version", "crd"},
}

// subresourceNames are the subresources in metrics.
var subresourceNames = []string{"", "approval", "attach", "binding", "changes", "ephemeralcontainers", "eviction", "exec", "finalize", "log", "portforward", "proxy", "resize", "scale", "status", "token", "types"}

// BoundMetricLabels bounds the labels of the metrics of Kubernetes, which all servers of the process share: kinds that are neither built in nor own
// ones are counted together, as are webhooks and policies. Call it before the first server is created; another call changes nothing.
func BoundMetricLabels(own []schema.GroupVersionResource) error {
	const probe = "atoll_bounded"
	bounded := metrics.NewCounterVec(&metrics.CounterOpts{Name: probe, Help: "Whether labels are bounded."}, []string{"label"})
	if err := metrics.NewKubeRegistry().Register(bounded); err != nil {
		return err
	}
	if bounded.WithLabelValues("set"); bounded.LabelValueAllowLists != nil {
		return nil
	}
	lists := metricLists(own)
	lists[probe+",label"] = "set"
	metrics.SetLabelAllowList(lists)
	bounded.ResetLabelAllowLists()
	if bounded.WithLabelValues("set"); bounded.LabelValueAllowLists == nil {
		return errors.New("bound the labels of metrics: upstream does not apply the lists")
	}
	return nil
}

// metricLists returns the values of each metric's labels, in the form of upstream's flag --allow-metric-labels.
func metricLists(own []schema.GroupVersionResource) map[string]string {
	groups, versions, resources := sets.New(""), sets.New("", "v1"), sets.New("")
	add := func(r schema.GroupVersionResource) {
		groups.Insert(r.Group)
		versions.Insert(r.Version)
		resources.Insert(r.Resource)
	}
	for kind := range legacyscheme.Scheme.AllKnownTypes() {
		plural, _ := meta.UnsafeGuessKindToResource(kind)
		add(plural)
	}
	for _, r := range slices.Concat(own, []schema.GroupVersionResource{
		apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions"), apiregistrationv1.SchemeGroupVersion.WithResource("apiservices"),
		metricsv1beta1.SchemeGroupVersion.WithResource("pods"), metricsv1beta1.SchemeGroupVersion.WithResource("nodes"),
	}) {
		add(r)
	}
	list := func(values sets.Set[string]) string { return strings.Join(slices.Sorted(maps.Keys(values)), ",") }
	lists := map[string]string{}
	for _, name := range kindMetrics {
		lists[name+",group"], lists[name+",version"], lists[name+",resource"] = list(groups), list(versions), list(resources)
		lists[name+",subresource"] = strings.Join(subresourceNames, ",")
	}
	for name, labels := range namedMetrics {
		for _, label := range labels {
			lists[name+","+label] = ""
		}
	}
	return lists
}
