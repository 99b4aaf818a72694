package multicluster

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// Facts describe an exported Service.
type Facts struct {
	Source Source
	// Service is the Service of Atoll; nil if it does not exist.
	Service *corev1.ServiceSpec
	// Clusters have a copy of it.
	Clusters []Copy
	// Taken names an object that has the name of one that would be made, and that someone else made; "" if none has.
	Taken string
	// Refused is why the API server refused an object that was to be made; "" if it did not.
	Refused string
}

// Copy is an exported Service in one cluster.
type Copy struct {
	Export
	// Reported: the cluster has reported its endpoints.
	Reported bool
	// Truncated: it has more than it reports.
	Truncated bool
}

// Invalid returns why the Service cannot be exported, "" if it can.
func (f Facts) Invalid() (mcsv1beta1.ServiceExportConditionReason, string) {
	switch {
	case f.Service == nil:
		return mcsv1beta1.ServiceExportReasonNoService, fmt.Sprintf("Service %s does not exist in Atoll: create it, or delete the ServiceExport", f.Source)
	case f.Service.Type == corev1.ServiceTypeExternalName:
		return mcsv1beta1.ServiceExportReasonInvalidServiceType, fmt.Sprintf("Service %s has type ExternalName, which has no endpoints: use its external name, or delete the ServiceExport", f.Source)
	}
	return "", ""
}

// Import returns what clusters import of a valid export. Until a cluster has a copy, it is what Atoll has.
func (f Facts) Import() Import {
	exports := make([]Export, 0, len(f.Clusters))
	for _, c := range f.Clusters {
		exports = append(exports, c.Export)
	}
	if len(exports) == 0 {
		exports = []Export{{Service: *f.Service}}
	}
	return Merge(exports)
}

// Conditions returns those of the ServiceExport, without times.
func (f Facts) Conditions() []metav1.Condition {
	if reason, message := f.Invalid(); reason != "" {
		return []metav1.Condition{
			exportCondition(mcsv1beta1.ServiceExportConditionValid, metav1.ConditionFalse, reason, message),
			exportCondition(mcsv1beta1.ServiceExportConditionReady, metav1.ConditionFalse, mcsv1beta1.ServiceExportReasonFailed, message),
		}
	}
	return []metav1.Condition{
		exportCondition(mcsv1beta1.ServiceExportConditionValid, metav1.ConditionTrue, mcsv1beta1.ServiceExportReasonValid, "the Service exists and can be exported"),
		f.ready(), f.conflict(),
	}
}

func exportCondition(of mcsv1beta1.ServiceExportConditionType, status metav1.ConditionStatus, reason mcsv1beta1.ServiceExportConditionReason, message string) metav1.Condition {
	return metav1.Condition{Type: string(of), Status: status, Reason: string(reason), Message: message}
}

func (f Facts) ready() metav1.Condition {
	condition := func(status metav1.ConditionStatus, reason mcsv1beta1.ServiceExportConditionReason, message string) metav1.Condition {
		return exportCondition(mcsv1beta1.ServiceExportConditionReady, status, reason, message)
	}
	var exported, silent, truncated []string
	for _, c := range f.Clusters {
		if !c.Reported {
			silent = append(silent, c.Cluster)
			continue
		}
		exported = append(exported, c.Cluster)
		if c.Truncated {
			truncated = append(truncated, c.Cluster)
		}
	}
	waits := ""
	if len(silent) > 0 {
		waits = fmt.Sprintf("the endpoints of %s are not known yet: the cluster cannot be reached, or its syncer is of an older version or may not watch EndpointSlices there", list(silent))
	}
	switch {
	case f.Taken != "":
		return condition(metav1.ConditionFalse, mcsv1beta1.ServiceExportReasonFailed, fmt.Sprintf("%s exists already, and was not made for this ServiceExport: delete or rename it", f.Taken))
	case f.Refused != "":
		return condition(metav1.ConditionFalse, mcsv1beta1.ServiceExportReasonFailed, "Atoll refuses an object that the export needs: "+f.Refused)
	case len(f.Clusters) == 0:
		return condition(metav1.ConditionFalse, mcsv1beta1.ServiceExportReasonPending, "no cluster has the Service yet: it goes where the workloads run whose pods it selects")
	case len(exported) == 0:
		return condition(metav1.ConditionFalse, mcsv1beta1.ServiceExportReasonPending, waits)
	}
	message := "exported from " + list(exported)
	if waits != "" {
		message += "; " + waits
	}
	if len(truncated) > 0 {
		message += fmt.Sprintf("; %s has more endpoints than the others may know, and exports a part of them", list(truncated))
	}
	return condition(metav1.ConditionTrue, mcsv1beta1.ServiceExportReasonExported, message)
}

// conflict returns the condition Conflict. If several properties differ, it has the reasons of all.
func (f Facts) conflict() metav1.Condition {
	conflicts := f.Import().Conflicts
	if len(conflicts) == 0 {
		return exportCondition(mcsv1beta1.ServiceExportConditionConflict, metav1.ConditionFalse, mcsv1beta1.ServiceExportReasonNoConflicts, "the Service is the same in all clusters")
	}
	var reasons, messages []string
	for _, c := range conflicts {
		reasons, messages = append(reasons, string(c.Reason)), append(messages, c.Message)
	}
	return exportCondition(mcsv1beta1.ServiceExportConditionConflict, metav1.ConditionTrue,
		mcsv1beta1.ServiceExportConditionReason(strings.Join(reasons, ",")), strings.Join(messages, "; "))
}

// ImportStatus returns the status of the ServiceImport, without times.
func (f Facts) ImportStatus() mcsv1beta1.ServiceImportStatus {
	out := mcsv1beta1.ServiceImportStatus{EndpointSliceObjects: mcsv1beta1.EndpointSliceObjectsAbsent}
	for _, c := range f.Clusters {
		if c.Reported {
			out.EndpointSliceObjects = mcsv1beta1.EndpointSliceObjectsPresent
			out.Clusters = append(out.Clusters, mcsv1beta1.ClusterStatus{Cluster: c.Cluster})
		}
	}
	slices.SortFunc(out.Clusters, func(a, b mcsv1beta1.ClusterStatus) int { return strings.Compare(a.Cluster, b.Cluster) })
	ready := metav1.Condition{Type: string(mcsv1beta1.ServiceImportConditionReady), Status: metav1.ConditionTrue, Reason: string(mcsv1beta1.ServiceImportReasonReady),
		Message: "clusters with workloads of the namespace import the Service"}
	if len(out.Clusters) == 0 {
		ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, string(mcsv1beta1.ServiceImportReasonPending), "no cluster exports endpoints yet: see the conditions of the ServiceExport"
	}
	out.Conditions = []metav1.Condition{ready}
	return out
}
