package interpret

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// condition has the fields of a condition that most kinds use.
type condition struct {
	Type, Status, Reason, Message string
	raw                           map[string]any
}

// description returns the condition's message, or the best substitute.
func (c condition) description() string {
	return cmp.Or(c.Message, c.Reason, c.Type+" is "+c.Status)
}

// conditionsOf decodes the conditions of a status. Entries without a type are skipped.
func conditionsOf(status map[string]any) []condition {
	var out []condition
	for _, raw := range items(status, "conditions") {
		c := condition{Type: text(raw, "type"), Status: text(raw, "status"), Reason: text(raw, "reason"), Message: text(raw, "message"), raw: raw}
		if c.Type != "" {
			out = append(out, c)
		}
	}
	return out
}

// find returns the condition of a type.
func find(conditions []condition, t string) (condition, bool) {
	i := slices.IndexFunc(conditions, func(c condition) bool { return c.Type == t })
	if i < 0 {
		return condition{}, false
	}
	return conditions[i], true
}

// positiveConditions are those that are True if an object is well. The first one that an object has
// determines its health, because Ready summarizes the others.
func positiveConditions() []string {
	return []string{"Ready", "Available", "Healthy", "Programmed", "Accepted", "Established", "Succeeded", "Complete", "Completed", "Synced"}
}

// negativeConditions are those that are False if an object is well. So are those that end in one of
// failureSuffixes.
func negativeConditions() []string {
	return []string{"Stalled", "Reconciling", "Progressing", "Deleting", "Terminating", "Paused", "Suspended"}
}

func failureSuffixes() []string {
	return []string{"Degraded", "Failed", "Failing", "Failure", "Error", "Errored", "Pressure", "Unavailable", "Stalled", "Conflict", "Conflicted"}
}

// isNegative reports whether a condition is False if an object is well. The convention leaves that
// to each kind, but in practice the name shows it.
func isNegative(t string) bool {
	return slices.Contains(negativeConditions(), t) || isFailure(t)
}

func isFailure(t string) bool {
	return slices.ContainsFunc(failureSuffixes(), func(word string) bool { return strings.HasSuffix(t, word) })
}

const wordsConditions = "conditions: `Ready` or the like; `Stalled`, `…Failed`, `Degraded`; `Reconciling`"

// conditionsHealth derives the health from conditions, by convention. A failure condition means
// Degraded. An object that is not Ready, or is reconciling, is Progressing. An object without such
// conditions is Healthy once it exists. Ready=False is not a failure: it cannot distinguish "not
// yet" from "no more".
func conditionsHealth(obj *unstructured.Unstructured) (v1alpha1.Health, string) {
	conditions := conditionsOf(object(obj.Object, "status"))
	for _, c := range conditions {
		if isFailure(c.Type) && c.Status == string(corev1.ConditionTrue) {
			return v1alpha1.Degraded, c.description()
		}
	}
	if c, ok := find(conditions, "Reconciling"); ok && c.Status == string(corev1.ConditionTrue) {
		return v1alpha1.Progressing, c.description()
	}
	for _, t := range positiveConditions() {
		if c, ok := find(conditions, t); ok {
			if c.Status == string(corev1.ConditionTrue) {
				return v1alpha1.Healthy, ""
			}
			return v1alpha1.Progressing, c.description()
		}
	}
	return v1alpha1.Healthy, ""
}

// definitionHealth: a type is healthy when it is served.
func definitionHealth(obj *unstructured.Unstructured) (v1alpha1.Health, string) {
	conditions := conditionsOf(object(obj.Object, "status"))
	if c, ok := find(conditions, "NamesAccepted"); ok && c.Status == string(corev1.ConditionFalse) {
		return v1alpha1.Degraded, c.description()
	}
	if c, ok := find(conditions, "Established"); ok && c.Status == string(corev1.ConditionTrue) {
		return v1alpha1.Healthy, ""
	}
	return v1alpha1.Progressing, "not served yet"
}

// mergeConditions merges the clusters' conditions into one list, in order of first appearance. The
// worst status wins, and its message names the clusters that report it. For a cluster with a stale
// report, every condition is Unknown. A positive condition that a cluster does not report yet is
// Unknown, too. before are the object's previous conditions, which provide the times of the last
// transition.
//
// The conditions of a single cluster are copied, except for their observedGeneration: the cluster
// counts generations differently from the control plane, and clients compare them.
func mergeConditions(members []MemberStatus, before []condition) []any {
	if len(members) == 1 && members[0].Stale == "" {
		return verbatim(members[0])
	}
	var types []string
	reports := make([][]condition, len(members))
	for i, m := range members {
		reports[i] = conditionsOf(m.Status)
		for _, c := range reports[i] {
			if !slices.Contains(types, c.Type) {
				types = append(types, c.Type)
			}
		}
	}
	out := make([]any, 0, len(types))
	for _, t := range types {
		votes := make([]condition, len(members))
		for i, m := range members {
			votes[i] = memberCondition(t, m, reports[i])
		}
		merged := worstCondition(members, votes)
		if c, ok := find(before, t); ok && c.Status == merged["status"] {
			keepField(merged, c.raw, "lastTransitionTime")
		}
		out = append(out, merged)
	}
	return out
}

func verbatim(m MemberStatus) []any {
	var out []any
	for _, c := range conditionsOf(m.Status) {
		raw := runtime.DeepCopyJSON(c.raw)
		delete(raw, "observedGeneration")
		out = append(out, raw)
	}
	return out
}

// memberCondition returns one cluster's state of a condition.
func memberCondition(t string, m MemberStatus, reported []condition) condition {
	c, ok := find(reported, t)
	switch {
	case m.Stale != "":
		c.Type, c.Status, c.Reason, c.Message = t, string(corev1.ConditionUnknown), "ClusterUnreachable", m.Stale
	case !ok && isNegative(t):
		c = condition{Type: t, Status: string(corev1.ConditionFalse)}
	case !ok:
		c = condition{Type: t, Status: string(corev1.ConditionUnknown), Reason: "NotReported", Message: "does not report yet"}
	}
	return c
}

// worstCondition returns the worst of the clusters' conditions. Times are those that members
// report, because a decision uses no clock.
func worstCondition(members []MemberStatus, votes []condition) map[string]any {
	worst := 0
	for i := range votes {
		worse := severity(votes[i]) - severity(votes[worst])
		// Of equals, prefer one that a cluster reported, because it has a reason.
		if worse > 0 || worse == 0 && votes[worst].raw == nil && votes[i].raw != nil {
			worst = i
		}
	}
	elected := votes[worst]
	out := map[string]any{}
	for _, v := range votes {
		// Times in this format sort as strings.
		for _, field := range []string{"lastTransitionTime", "lastUpdateTime", "lastHeartbeatTime", "lastProbeTime"} {
			if at := text(v.raw, field); at > text(out, field) {
				out[field] = at
			}
		}
	}
	out["type"], out["status"] = elected.Type, elected.Status
	if elected.Reason != "" {
		out["reason"] = elected.Reason
	}
	out["message"] = message(members, votes, elected) // the field is required, even if it is empty
	return out
}

// message joins the messages of the clusters with the resulting status. If all clusters have the
// same status and message, it names none.
func message(members []MemberStatus, votes []condition, elected condition) string {
	var said []string
	same := true
	for i, v := range votes {
		same = same && v.Status == elected.Status && v.Message == elected.Message
		if v.Status == elected.Status && v.Message != "" {
			said = append(said, members[i].Cluster+": "+v.Message)
		}
	}
	if same {
		return elected.Message
	}
	return joinLimited(said)
}

// joinLimited joins the clusters' messages, and stays readable with thousands of them.
func joinLimited(said []string) string {
	const most = 10
	if len(said) > most {
		said = append(said[:most:most], "and more")
	}
	return strings.Join(said, "; ")
}

// severity orders the statuses of a condition.
func severity(c condition) int {
	switch {
	case c.Status == string(corev1.ConditionUnknown):
		return 1
	case (c.Status == string(corev1.ConditionTrue)) == isNegative(c.Type):
		return 2
	}
	return 0
}

func keepField(to, from map[string]any, field string) {
	if value, ok := from[field]; ok {
		to[field] = value
	}
}
