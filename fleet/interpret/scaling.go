package interpret

import (
	"cmp"
	"maps"
	"math"
	"slices"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

func autoscalerFollows(obj *unstructured.Unstructured, out *attachments) error {
	gk := schema.FromAPIVersionAndKind(text(obj.Object, "spec", "scaleTargetRef", "apiVersion"), text(obj.Object, "spec", "scaleTargetRef", "kind")).GroupKind()
	out.here(gk.Group, gk.Kind, text(obj.Object, "spec", "scaleTargetRef", "name"))
	return nil
}

// AutoscalerKind is the kind that sets replica counts in clusters.
func AutoscalerKind() schema.GroupKind {
	return schema.GroupKind{Group: "autoscaling", Kind: "HorizontalPodAutoscaler"}
}

// ScaleBounds returns the minimum and maximum replica count of an autoscaler. When clusters share
// its target, the target's own count is divided, limited to these bounds.
func ScaleBounds(autoscaler *unstructured.Unstructured) (least, most int32) {
	low, found := number(autoscaler.Object, "spec", "minReplicas")
	if !found {
		low = 1
	}
	high, _ := number(autoscaler.Object, "spec", "maxReplicas")
	return int32(low), int32(max(low, high))
}

// shareAutoscaler divides the bounds as the decision divides the target, because each autoscaler
// sees only its own cluster. A cluster with a share keeps at least one replica, even if there are
// more clusters than the minimum has replicas.
func shareAutoscaler(obj map[string]any, share Share) {
	mine, weights := share.part()
	if mine < 0 {
		return
	}
	least, most := ScaleBounds(&unstructured.Unstructured{Object: obj})
	low, high := int32(1), int32(1)
	if weights[mine] > 0 {
		least, most = share.scaled(least, weights), share.scaled(most, weights)
		lows := apportion(least, weights, each(weights, min(1, least)))
		low, high = lows[mine], apportion(most, weights, lows)[mine]
	}
	setNested(obj, int64(low), "spec", "minReplicas")
	setNested(obj, int64(max(high, low, 1)), "spec", "maxReplicas")
}

// budgetFollows: a budget without a selector applies to no pods.
func budgetFollows(obj *unstructured.Unstructured, out *attachments) error {
	return out.selectedBy(object(obj.Object, "spec", "selector"))
}

// shareBudget divides absolute counts as the decision divides the pods; a percentage applies in
// each cluster. If the whole budget allows an unavailable pod, each cluster allows at least one.
// Otherwise nodes of the other clusters could never be drained.
func shareBudget(obj map[string]any, share Share) {
	mine, weights := share.part()
	if mine < 0 {
		return
	}
	if n, absolute := number(obj, "spec", "minAvailable"); absolute {
		setNested(obj, int64(apportion(share.scaled(int32(n), weights), weights, each(weights, 0))[mine]), "spec", "minAvailable")
	}
	if n, absolute := number(obj, "spec", "maxUnavailable"); absolute && n > 0 {
		setNested(obj, int64(max(1, apportion(share.scaled(int32(n), weights), weights, each(weights, 1))[mine])), "spec", "maxUnavailable")
	}
}

// part returns the weights of the clusters by the target's division, sorted by name, and the index
// of this share's cluster, or -1 if nothing is divided.
func (s Share) part() (mine int, weights []int32) {
	if _, ok := s.Target[s.Cluster]; !ok {
		return -1, nil
	}
	names := slices.Sorted(maps.Keys(s.Target))
	for _, name := range names {
		weights = append(weights, s.Target[name])
	}
	return slices.Index(names, s.Cluster), weights
}

// scaled returns a limit for the replicas that there are, in proportion to one for the wanted number.
func (s Share) scaled(n int32, weights []int32) int32 {
	total := int64(0)
	for _, w := range weights {
		total += int64(w)
	}
	if s.Wanted <= 0 || total <= int64(s.Wanted) {
		return n
	}
	return int32(min((int64(n)*total+int64(s.Wanted)-1)/int64(s.Wanted), math.MaxInt32))
}

// each returns a floor for every cluster that has a weight.
func each(weights []int32, floor int32) []int32 {
	out := make([]int32, len(weights))
	for i, w := range weights {
		if w > 0 {
			out[i] = floor
		}
	}
	return out
}

// apportion divides n by weights, by largest remainder and then by order. No part is below its
// floor. The difference is taken from the parts furthest above their floors, of equals from the one
// with the least weight. If no part is above its floor, the parts add up to more than n.
func apportion(n int32, weights, floors []int32) []int32 {
	out := make([]int32, len(weights))
	var total int64
	for _, w := range weights {
		total += int64(w)
	}
	if total > 0 {
		byRemainder(out, n, weights, total)
	}
	excess := int32(0)
	for i := range out {
		if out[i] < floors[i] {
			excess += floors[i] - out[i]
			out[i] = floors[i]
		}
	}
	for ; excess > 0; excess-- {
		richest := 0
		for i := range out {
			more := cmp.Compare(out[i]-floors[i], out[richest]-floors[richest])
			if more > 0 || more == 0 && weights[i] <= weights[richest] {
				richest = i
			}
		}
		if out[richest] <= floors[richest] {
			break
		}
		out[richest]--
	}
	return out
}

func byRemainder(out []int32, n int32, weights []int32, total int64) {
	left := n
	order := make([]int, len(weights))
	for i, w := range weights {
		out[i] = int32(int64(n) * int64(w) / total)
		left -= out[i]
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return int(int64(n)*int64(weights[b])%total - int64(n)*int64(weights[a])%total)
	})
	for _, i := range order[:left] {
		out[i]++
	}
}

func autoscalerHealth(obj *unstructured.Unstructured) (v1alpha1.Health, string) {
	conditions := conditionsOf(object(obj.Object, "status"))
	if c, ok := find(conditions, "AbleToScale"); ok && c.Status == string(corev1.ConditionFalse) {
		return v1alpha1.Degraded, c.description()
	}
	c, ok := find(conditions, "ScalingActive")
	// Without replicas in the target, which is a valid share, the autoscaler is inactive.
	if ok && c.Status == string(corev1.ConditionFalse) && c.Reason != "ScalingDisabled" {
		return v1alpha1.Progressing, c.description()
	}
	return v1alpha1.Healthy, ""
}

// aggregateAutoscaler adds up the replicas of a divided target. If every cluster runs the whole
// target, its replicas are those of the cluster that has the fewest, as in the target's own status.
// Metrics are those of the cluster with the most replicas among the counted ones: no autoscaler acts
// on an average over clusters.
func aggregateAutoscaler(k KindInfo, obj *unstructured.Unstructured, members []MemberStatus) (map[string]any, error) {
	reports, err := decode[autoscalingv2.HorizontalPodAutoscalerStatus](members)
	if err != nil {
		return nil, err
	}
	observed := k.observed(obj, members)
	out := autoscalingv2.HorizontalPodAutoscalerStatus{ObservedGeneration: &observed}
	for _, r := range reports {
		if r.LastScaleTime != nil && (out.LastScaleTime == nil || out.LastScaleTime.Before(r.LastScaleTime)) {
			out.LastScaleTime = r.LastScaleTime
		}
	}
	same := func(MemberStatus, autoscalingv2.HorizontalPodAutoscalerStatus) int32 { return 0 }
	_, counts := counted(members, reports, same, func(_ MemberStatus, r autoscalingv2.HorizontalPodAutoscalerStatus) int32 { return r.DesiredReplicas })
	biggest := int32(-1)
	for _, r := range counts {
		out.CurrentReplicas += r.CurrentReplicas
		out.DesiredReplicas += r.DesiredReplicas
		if len(r.CurrentMetrics) > 0 && r.CurrentReplicas > biggest {
			out.CurrentMetrics, biggest = r.CurrentMetrics, r.CurrentReplicas
		}
	}
	return withConditions(&out, obj, members)
}

// ScaledCluster is what an autoscaler decided about a workload in one cluster.
type ScaledCluster struct {
	// Share is the workload's share by the decision; nil if the cluster runs the whole workload.
	Share *int32
	// Status is the autoscaler's last known status in the cluster; nil if it has reported none.
	Status map[string]any
}

// Rescaled returns the replica count that autoscalers in the clusters decided about an object, and
// whether the object has another one. The decisions of clusters that share the object add up. If
// each cluster runs the whole object, the lowest counts, as in the object's status. A cluster whose
// autoscaler has decided nothing yet counts with its share. If none has, nothing is known, except that a
// count outside of the bounds was divided within them.
//
// A cluster cannot report more than the maximum of the whole autoscaler. An object with 0 replicas keeps
// them: that switches its autoscalers off.
func (k KindInfo) Rescaled(obj, autoscaler *unstructured.Unstructured, clusters []ScaledCluster) (int32, bool) {
	is, divisible := k.Replicas(obj)
	if !divisible || is == 0 || k.replicas != nil { // the last ones count something else than autoscalers do
		return 0, false
	}
	low, most := ScaleBounds(autoscaler)
	sum, active, least := int64(0), int64(0), int32(0)
	decided := len(clusters) > 0 && (is < low || is > most) // then the shares were divided within the bounds
	for _, c := range clusters {
		if c.Share != nil && *c.Share == 0 {
			continue
		}
		active++
		n := min(decidedReplicas(c.Status), most)
		decided = decided || n > 0
		if n == 0 && c.Share != nil {
			n = *c.Share
		}
		sum += int64(n)
		if n > 0 && (least == 0 || n < least) {
			least = n
		}
	}
	if slices.ContainsFunc(clusters, func(c ScaledCluster) bool { return c.Share == nil }) {
		sum = int64(least)
	}
	sum = min(sum, max(int64(most), active)) // each cluster with a share has at least one
	return int32(sum), decided && sum > 0 && int32(sum) != is
}

// decidedReplicas returns the count that an autoscaler decided. One that never had metrics leaves the
// count as it is. It returns 0 if that is not known.
func decidedReplicas(status map[string]any) int32 {
	for _, field := range []string{"desiredReplicas", "currentReplicas"} {
		if n, found := number(status, field); found && n > 0 {
			return int32(min(n, math.MaxInt32))
		}
	}
	return 0
}

func budgetHealth(obj *unstructured.Unstructured) (v1alpha1.Health, string) {
	healthy, _ := number(obj.Object, "status", "currentHealthy")
	desired, _ := number(obj.Object, "status", "desiredHealthy")
	if healthy < desired {
		return v1alpha1.Progressing, "fewer healthy pods than the budget requires"
	}
	return v1alpha1.Healthy, ""
}

// aggregateBudget adds up the pods of divided workloads. Where every cluster runs the whole
// workload, the budget applies in each, and the counts are those of the cluster where the fewest
// pods may be disrupted.
func aggregateBudget(k KindInfo, obj *unstructured.Unstructured, members []MemberStatus) (map[string]any, error) {
	reports, err := decode[policyv1.PodDisruptionBudgetStatus](members)
	if err != nil {
		return nil, err
	}
	out := policyv1.PodDisruptionBudgetStatus{ObservedGeneration: k.observed(obj, members)}
	counting, counts := counted(members, reports, func(m MemberStatus, r policyv1.PodDisruptionBudgetStatus) int32 {
		return -fresh(m, r.DisruptionsAllowed)
	}, func(m MemberStatus, r policyv1.PodDisruptionBudgetStatus) int32 { return fresh(m, r.CurrentHealthy) })
	for i, r := range counts {
		out.CurrentHealthy += fresh(counting[i], r.CurrentHealthy)
		out.DisruptionsAllowed += fresh(counting[i], r.DisruptionsAllowed)
		out.DesiredHealthy += r.DesiredHealthy
		out.ExpectedPods += r.ExpectedPods
	}
	return withConditions(&out, obj, members)
}

// withConditions encodes a status with conditions that are merged by convention.
func withConditions(status any, obj *unstructured.Unstructured, members []MemberStatus) (map[string]any, error) {
	out, err := encode(status)
	if err != nil {
		return nil, err
	}
	if conditions := mergeConditions(members, conditionsOf(object(obj.Object, "status"))); len(conditions) > 0 {
		out["conditions"] = conditions
	}
	return out, nil
}
