package interpret

import (
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

func jobHealth(obj *unstructured.Unstructured) (v1alpha1.Health, string) {
	return typed(obj, func(j *batchv1.Job) (v1alpha1.Health, string) {
		for _, c := range j.Status.Conditions {
			if c.Status != corev1.ConditionTrue {
				continue
			}
			switch c.Type {
			case batchv1.JobComplete, batchv1.JobSuspended:
				return v1alpha1.Healthy, ""
			case batchv1.JobFailed, batchv1.JobFailureTarget:
				return v1alpha1.Degraded, c.Message
			}
		}
		return v1alpha1.Progressing, fmt.Sprintf("%d running, %d succeeded, %d failed",
			j.Status.Active, j.Status.Succeeded, j.Status.Failed)
	})
}

func jobFinished(obj *unstructured.Unstructured) bool {
	for _, c := range conditionsOf(object(obj.Object, "status")) {
		over := c.Type == string(batchv1.JobComplete) || c.Type == string(batchv1.JobFailed)
		if over && c.Status == string(corev1.ConditionTrue) {
			return true
		}
	}
	return false
}

// jobIndivisible: a pod of an Indexed Job determines its part of the work by its index, and every
// Job controller counts from 0. No field sets another start (StatefulSets have one), so two
// clusters would do the same parts. See DESIGN.md.
func jobIndivisible(obj *unstructured.Unstructured) string {
	if text(obj.Object, "spec", "completionMode") == string(batchv1.IndexedCompletion) {
		return "the indexes of an Indexed Job begin at 0 in every cluster, so two clusters would do the same work twice: use mode Single, or create one Job for each cluster"
	}
	return ""
}

// jobReplicas returns the amount of work to divide, or, if the Job does not declare one, the number
// of workers.
func jobReplicas(obj *unstructured.Unstructured) (int32, bool) {
	for _, field := range []string{"completions", "parallelism"} {
		if n, found := number(obj.Object, "spec", field); found {
			return int32(n), true
		}
	}
	return 1, true
}

// shareJob sets a cluster's part of the work, and the workers in proportion.
func shareJob(obj map[string]any, share Share) {
	if share.Replicas == nil {
		return
	}
	part := int64(*share.Replicas)
	all, counted := number(obj, "spec", "completions")
	if !counted {
		setNested(obj, part, "spec", "parallelism")
		return
	}
	setNested(obj, part, "spec", "completions")
	if workers, found := number(obj, "spec", "parallelism"); found && all > 0 {
		setNested(obj, (workers*part+all-1)/all, "spec", "parallelism")
	}
}

// aggregateJob: a Job is complete when every cluster's Job is, and failed when one is. Until then
// no condition is set, because a finished Job never becomes unfinished.
func aggregateJob(_ KindInfo, obj *unstructured.Unstructured, members []MemberStatus) (map[string]any, error) {
	if jobFinished(obj) {
		status, _, err := unstructured.NestedMap(obj.Object, "status")
		return status, err
	}
	reports, err := decode[batchv1.JobStatus](members)
	if err != nil {
		return nil, err
	}
	was, err := current[batchv1.JobStatus](obj)
	if err != nil {
		return nil, err
	}
	out := countJobs(was, members, reports)
	failed, complete := outcomes(members, reports)
	switch {
	// It may report a failure only when the others have stopped too.
	case failed != nil && out.Active == 0:
		target := *failed
		target.Type = batchv1.JobFailureTarget
		out.Conditions, out.CompletionTime = []batchv1.JobCondition{target, *failed}, nil
	case len(complete) == len(reports) && out.CompletionTime != nil:
		for _, t := range []batchv1.JobConditionType{batchv1.JobSuccessCriteriaMet, batchv1.JobComplete} {
			out.Conditions = append(out.Conditions, batchv1.JobCondition{
				Type: t, Status: corev1.ConditionTrue, Reason: batchv1.JobReasonCompletionsReached,
				Message:       "Complete in " + joinLimited(complete),
				LastProbeTime: *out.CompletionTime, LastTransitionTime: *out.CompletionTime})
		}
		out.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{}
	default:
		out.CompletionTime = nil
		out.Conditions = suspension(reports)
	}
	return encode(&out)
}

// suspension returns the clusters' condition Suspended if all agree, because then it applies to the
// Job as a whole.
func suspension(reports []batchv1.JobStatus) []batchv1.JobCondition {
	var out []batchv1.JobCondition
	for _, r := range reports {
		i := slices.IndexFunc(r.Conditions, func(c batchv1.JobCondition) bool { return c.Type == batchv1.JobSuspended })
		if i < 0 || out != nil && out[0].Status != r.Conditions[i].Status {
			return nil
		}
		if out == nil {
			out = []batchv1.JobCondition{r.Conditions[i]}
		}
	}
	return out
}

// countJobs returns the counts and times of a Job. Where every cluster runs the whole Job, it has
// done what all clusters have done, and it still does what any cluster still does. The counts of
// ended pods never decrease, not even if a cluster leaves: API servers reject that.
func countJobs(was batchv1.JobStatus, members []MemberStatus, reports []batchv1.JobStatus) batchv1.JobStatus {
	done, left := lowest[batchv1.JobStatus], highest[batchv1.JobStatus]
	if divided(members) {
		done, left = total[batchv1.JobStatus], total[batchv1.JobStatus]
	}
	out := batchv1.JobStatus{
		Active:    left(members, reports, func(_ MemberStatus, r batchv1.JobStatus) int32 { return r.Active }),
		Failed:    max(was.Failed, left(members, reports, func(_ MemberStatus, r batchv1.JobStatus) int32 { return r.Failed })),
		Succeeded: max(was.Succeeded, done(members, reports, func(_ MemberStatus, r batchv1.JobStatus) int32 { return r.Succeeded })),
	}
	if slices.ContainsFunc(reports, func(r batchv1.JobStatus) bool { return r.Ready != nil }) {
		ready := left(members, reports, func(m MemberStatus, r batchv1.JobStatus) int32 { return fresh(m, ptr.Deref(r.Ready, 0)) })
		out.Ready = &ready
	}
	for _, r := range reports {
		if r.StartTime != nil && (out.StartTime == nil || r.StartTime.Before(out.StartTime)) {
			out.StartTime = r.StartTime
		}
		if r.CompletionTime != nil && (out.CompletionTime == nil || out.CompletionTime.Before(r.CompletionTime)) {
			out.CompletionTime = r.CompletionTime
		}
	}
	if len(reports) == 1 {
		out.CompletedIndexes, out.FailedIndexes = reports[0].CompletedIndexes, reports[0].FailedIndexes
	}
	return out
}

// outcomes returns the first failure, and the clusters where the Job is complete.
func outcomes(members []MemberStatus, reports []batchv1.JobStatus) (failed *batchv1.JobCondition, complete []string) {
	for i, r := range reports {
		for _, c := range r.Conditions {
			switch {
			case c.Status != corev1.ConditionTrue:
			case c.Type == batchv1.JobComplete:
				complete = append(complete, members[i].Cluster)
			case c.Type == batchv1.JobFailed && failed == nil:
				c.Message = members[i].Cluster + ": " + c.Message
				failed = &c
			}
		}
	}
	return failed, complete
}

// aggregateCronJob lists the active Jobs of the cluster that has the most: every cluster runs the
// whole schedule, and kubectl prints their number. The Jobs are objects of the clusters, so the list
// has their names and not their UIDs.
func aggregateCronJob(_ KindInfo, _ *unstructured.Unstructured, members []MemberStatus) (map[string]any, error) {
	reports, err := decode[batchv1.CronJobStatus](members)
	if err != nil {
		return nil, err
	}
	latest := func(a, b *metav1.Time) *metav1.Time {
		if a == nil || (b != nil && a.Before(b)) {
			return b
		}
		return a
	}
	var out batchv1.CronJobStatus
	for i, r := range reports {
		out.LastScheduleTime = latest(out.LastScheduleTime, r.LastScheduleTime)
		out.LastSuccessfulTime = latest(out.LastSuccessfulTime, r.LastSuccessfulTime)
		if members[i].Stale == "" && len(r.Active) > len(out.Active) {
			out.Active = r.Active
		}
	}
	for i := range out.Active {
		out.Active[i].UID, out.Active[i].ResourceVersion = "", ""
	}
	return encode(&out)
}
