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

// condition is what most kinds mean by one.
type condition struct {
	Type, Status, Reason, Message string
	raw                           map[string]any
}

// says gives the condition in words.
func (c condition) says() string {
	return cmp.Or(c.Message, c.Reason, c.Type+" is "+c.Status)
}

// conditionsOf reads the conditions of a status. Entries without a type are left
// out.
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

// find gives the condition of a type.
func find(conditions []condition, t string) (condition, bool) {
	i := slices.IndexFunc(conditions, func(c condition) bool { return c.Type == t })
	if i < 0 {
		return condition{}, false
	}
	return conditions[i], true
}

// goodSigns are conditions that say of an object that it is as it should be. The
// first that an object has decides: Ready sums up the others where it is there.
func goodSigns() []string {
	return []string{"Ready", "Available", "Healthy", "Programmed", "Accepted", "Established", "Succeeded", "Complete", "Completed", "Synced"}
}

// badSigns are conditions that are well when they are False. Others end in one of
// the words of troubles.
func badSigns() []string {
	return []string{"Stalled", "Reconciling", "Progressing", "Deleting", "Terminating", "Paused", "Suspended"}
}

func troubles() []string {
	return []string{"Degraded", "Failed", "Failing", "Failure", "Error", "Errored", "Pressure", "Unavailable", "Stalled", "Conflict", "Conflicted"}
}

// isBad tells whether a condition is well when it is False. The convention leaves
// that to each kind; names tell in practice.
func isBad(t string) bool {
	return slices.Contains(badSigns(), t) || isTrouble(t)
}

func isTrouble(t string) bool {
	return slices.ContainsFunc(troubles(), func(word string) bool { return strings.HasSuffix(t, word) })
}

const wordsConditions = "conditions: `Ready` or the like; `Stalled`, `…Failed`, `Degraded`; `Reconciling`"

// conditionsHealth judges by conditions, as they are by convention: something that
// says that it failed, is Degraded; something that is not Ready, or still at work,
// is on its way; and something without such conditions is well once it exists.
// Ready=False is no failure: there is no telling "not yet" from "no more".
func conditionsHealth(obj *unstructured.Unstructured) (v1alpha1.Health, string) {
	conditions := conditionsOf(object(obj.Object, "status"))
	for _, c := range conditions {
		if isTrouble(c.Type) && c.Status == string(corev1.ConditionTrue) {
			return v1alpha1.Degraded, c.says()
		}
	}
	if c, ok := find(conditions, "Reconciling"); ok && c.Status == string(corev1.ConditionTrue) {
		return v1alpha1.Progressing, c.says()
	}
	for _, t := range goodSigns() {
		if c, ok := find(conditions, t); ok {
			if c.Status == string(corev1.ConditionTrue) {
				return v1alpha1.Healthy, ""
			}
			return v1alpha1.Progressing, c.says()
		}
	}
	return v1alpha1.Healthy, ""
}

// definitionHealth: a type is well when it is served.
func definitionHealth(obj *unstructured.Unstructured) (v1alpha1.Health, string) {
	conditions := conditionsOf(object(obj.Object, "status"))
	if c, ok := find(conditions, "NamesAccepted"); ok && c.Status == string(corev1.ConditionFalse) {
		return v1alpha1.Degraded, c.says()
	}
	if c, ok := find(conditions, "Established"); ok && c.Status == string(corev1.ConditionTrue) {
		return v1alpha1.Healthy, ""
	}
	return v1alpha1.Progressing, "not served yet"
}

// mergeConditions makes one list of conditions of those that the clusters report,
// in the order in which they first appear. The worst wins, and its message names
// the clusters that say so. Of a cluster whose report is stale nothing is known,
// and one that does not report a good sign yet has not given it. before is what
// was said already, for the time of the last change.
//
// Of a single cluster they are what it says, but for the generation that they are
// about: its counts are not those of the control plane, and clients compare them.
func mergeConditions(members []Member, before []condition) []any {
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
			votes[i] = vote(t, m, reports[i])
		}
		merged := elect(members, votes)
		if c, ok := find(before, t); ok && c.Status == merged["status"] {
			keepField(merged, c.raw, "lastTransitionTime")
		}
		out = append(out, merged)
	}
	return out
}

func verbatim(m Member) []any {
	var out []any
	for _, c := range conditionsOf(m.Status) {
		raw := runtime.DeepCopyJSON(c.raw)
		delete(raw, "observedGeneration")
		out = append(out, raw)
	}
	return out
}

// vote is what one cluster says of a condition.
func vote(t string, m Member, reported []condition) condition {
	c, ok := find(reported, t)
	switch {
	case m.Stale != "":
		c.Type, c.Status, c.Reason, c.Message = t, string(corev1.ConditionUnknown), "ClusterUnreachable", m.Stale
	case !ok && isBad(t):
		c = condition{Type: t, Status: string(corev1.ConditionFalse)}
	case !ok:
		c = condition{Type: t, Status: string(corev1.ConditionUnknown), Reason: "NotReported", Message: "does not report yet"}
	}
	return c
}

// elect takes the worst of the votes. Times are those that members report: deciding
// takes no clock.
func elect(members []Member, votes []condition) map[string]any {
	worst := 0
	for i := range votes {
		worse := badness(votes[i]) - badness(votes[worst])
		// Of equals, one that a cluster gave: it has a reason.
		if worse > 0 || worse == 0 && votes[worst].raw == nil && votes[i].raw != nil {
			worst = i
		}
	}
	elected := votes[worst]
	out := map[string]any{}
	for _, v := range votes {
		// Times in this format are in order of their texts.
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
	out["message"] = message(members, votes, elected) // types require it, be it empty
	return out
}

// message joins what the clusters say that voted for the outcome. Where all agree
// and say the same, no cluster needs to be named.
func message(members []Member, votes []condition, elected condition) string {
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
	return several(said)
}

// several joins what clusters say, and keeps what thousands of them say readable.
func several(said []string) string {
	const most = 10
	if len(said) > most {
		said = append(said[:most:most], "and more")
	}
	return strings.Join(said, "; ")
}

// badness orders statuses of a condition.
func badness(c condition) int {
	switch {
	case c.Status == string(corev1.ConditionUnknown):
		return 1
	case (c.Status == string(corev1.ConditionTrue)) == isBad(c.Type):
		return 2
	}
	return 0
}

func keepField(to, from map[string]any, field string) {
	if value, ok := from[field]; ok {
		to[field] = value
	}
}
