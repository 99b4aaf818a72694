package scheduler

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/placement"
	"github.com/atoll-dev/atoll/fleet/transition"
)

// Avoided clusters are tried again after a time that grows with the attempts.
const (
	firstRetry = 10 * time.Minute
	lastRetry  = 6 * time.Hour
)

// failure describes why clusters are avoided from now on, for an object and its policy as they are.
func (a *Result) failure(obj metav1.Object, snap *Snapshot, waitingFor string, aborted bool, deadline time.Duration) v1alpha1.AvoidedCluster {
	out := v1alpha1.AvoidedCluster{Reason: v1alpha1.AvoidedDeadline, Time: metav1.NewTime(snap.Now).Rfc3339Copy(), ObjectGeneration: obj.GetGeneration(), Selection: selectionOf(&a.Choice, obj, snap)}
	out.Message = fmt.Sprintf("did not run its share within %s: the transition waited for %s", deadline, waitingFor)
	if aborted {
		out.Reason, out.Message = v1alpha1.AvoidedAborted, "is avoided because a user aborted the transition to it"
	}
	return out
}

// avoid adds clusters to those that an object avoids.
func avoid(avoided []v1alpha1.AvoidedCluster, clusters []string, why v1alpha1.AvoidedCluster) []v1alpha1.AvoidedCluster {
	out := slices.Clone(avoided)
	for _, cluster := range clusters {
		entry := why
		entry.Name, entry.Attempts = cluster, 1
		if at := slices.IndexFunc(out, func(c v1alpha1.AvoidedCluster) bool { return c.Name == cluster }); at >= 0 {
			entry.Attempts = out[at].Attempts + 1
			out = slices.Delete(out, at, at+1)
		}
		if why.Reason != v1alpha1.AvoidedAborted {
			entry.Until = retryAfter(&entry)
		}
		out = append(out, entry)
	}
	return out
}

// avoidAfter is avoid for one cluster and a number of attempts.
func avoidAfter(avoided []v1alpha1.AvoidedCluster, cluster string, entry v1alpha1.AvoidedCluster, attempts int32) []v1alpha1.AvoidedCluster {
	out := slices.DeleteFunc(slices.Clone(avoided), func(c v1alpha1.AvoidedCluster) bool { return c.Name == cluster })
	entry.Name, entry.Attempts = cluster, attempts
	entry.Until = retryAfter(&entry)
	return append(out, entry)
}

// retryAfter returns when a cluster may be tried again.
func retryAfter(entry *v1alpha1.AvoidedCluster) *metav1.Time {
	until := metav1.NewTime(entry.Time.Add(min(firstRetry<<min(entry.Attempts-1, 10), lastRetry)))
	return &until
}

// selectionOf identifies the policy and the label that select clusters for an object.
func selectionOf(c *placement.PolicyChoice, obj metav1.Object, snap *Snapshot) string {
	label := obj.GetLabels()[v1alpha1.ClusterLabel]
	if label == "" && snap.Namespace != nil && obj.GetNamespace() != "" {
		label = snap.Namespace(obj.GetNamespace())[v1alpha1.ClusterLabel]
	}
	sum := sha256.Sum256([]byte(strings.Join([]string{string(c.Reference.UID), fmt.Sprint(c.Reference.Generation), label}, "/")))
	return hex.EncodeToString(sum[:])[:8]
}

// avoided returns the clusters that an object still avoids, and when the first of them may be tried again. Those whose
// time is over count further attempts as long as nothing else changes.
func (snap *Snapshot) avoided(c *placement.PolicyChoice, obj metav1.Object, b *v1alpha1.ResourceBinding) (kept []v1alpha1.AvoidedCluster, active map[string]placement.Obstacle, recheck time.Time) {
	if b == nil || len(b.Spec.Avoided) == 0 {
		return nil, nil, time.Time{}
	}
	settings, err := transition.ObjectSettings(obj.GetAnnotations()[v1alpha1.TransitionAnnotation])
	selection := selectionOf(c, obj, snap)
	for _, entry := range b.Spec.Avoided {
		if entry.ObjectGeneration != obj.GetGeneration() || entry.Selection != selection || err == nil && settings.Retry != nil && entry.Time.Before(settings.Retry) || isForgotten(&entry, snap.Now) {
			continue
		}
		kept = append(kept, entry)
		if entry.Until != nil && !snap.Now.Before(entry.Until.Time) || decidedDegraded(b, &entry) {
			continue
		}
		if active == nil {
			active = map[string]placement.Obstacle{}
		}
		// A cluster that did not run more replicas keeps those that it runs.
		_, runs := b.DecidedShare(entry.Name)
		active[entry.Name] = placement.Obstacle{Reason: entry.Reason, Message: entry.Message + retryText(&entry), Keeps: runs && entry.Reason != v1alpha1.AvoidedDegraded}
		if entry.Until != nil && (recheck.IsZero() || entry.Until.Time.Before(recheck)) {
			recheck = entry.Until.Time
		}
	}
	return kept, active, recheck
}

// avoidFailed keeps an object out of the clusters that failed to run it, and returns when the first may be tried again.
func (snap *Snapshot) avoidFailed(a *Result, obj metav1.Object, b *v1alpha1.ResourceBinding) (retry time.Time) {
	kept, active, retry := snap.avoided(&a.Choice, obj, b)
	a.Avoided = kept
	for cluster, obstacle := range active {
		if _, obstructed := a.Request.Obstacles[cluster]; obstructed {
			continue
		}
		if a.Request.Obstacles == nil {
			a.Request.Obstacles = map[string]placement.Obstacle{}
		}
		a.Request.Obstacles[cluster] = obstacle
	}
	return retry
}

// retryText says when an avoided cluster is tried again.
func retryText(c *v1alpha1.AvoidedCluster) string {
	if c.Until == nil {
		return ". It is tried again with `atoll retry`, or when the object, its policy or its label changes"
	}
	return fmt.Sprintf(". It is tried again after %s, with `atoll retry`, or when the object, its policy or its label changes", c.Until.UTC().Format(time.RFC3339))
}

// avoidedMessage names the clusters that an object avoids, except those that the message about the decision names.
func (a *Result) avoidedMessage() string {
	out := ""
	for _, c := range a.Avoided {
		if o, active := a.Request.Obstacles[c.Name]; active && !strings.Contains(a.Decision.Message, c.Name+": the cluster "+o.Message) {
			out += fmt.Sprintf("; the cluster %s %s", c.Name, o.Message)
		}
	}
	return out
}
