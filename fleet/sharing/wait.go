package sharing

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// errPending means that the timeout expired, or further waiting was useless, before all
// clusters reached the desired state.
var errPending = errors.New("not all clusters are ready")

// await waits until all clusters of a change have reached the desired state. Otherwise
// it returns errPending and a report on the pending clusters.
func (s *Client) await(ctx context.Context, c change, written *unstructured.Unstructured, removal bool, progress func(string)) (report string, err error) {
	f := newFollower(c, written.GetGeneration(), removal)
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	var pending []string
	var lastErr error
	for {
		now, err := s.get(ctx, c.name)
		switch {
		case err != nil && ctx.Err() == nil:
			lastErr = err // a server that restarts comes back
		case err == nil:
			lastErr = nil
			if now != nil && now.UID != written.GetUID() {
				now = nil
			}
			if now == nil && !removal {
				return "", fmt.Errorf("SharedAPI %s was deleted by another client", c.name)
			}
			at := time.Now()
			for _, line := range f.observe(at, now) {
				progress(line)
			}
			pending = f.pending(now)
			if len(pending) == 0 && (!removal || c.spec != nil || now == nil) {
				return "", nil
			}
			if len(pending) > 0 && f.hopeless(at, pending) {
				return f.report(pending), errPending
			}
		}
		select {
		case <-ctx.Done():
			var reports []string
			if len(pending) > 0 {
				reports = append(reports, f.report(pending))
			}
			if lastErr != nil {
				reports = append(reports, "  "+lastErr.Error())
			}
			if len(reports) == 0 {
				reports = append(reports, fmt.Sprintf("  SharedAPI %s still exists: run `kubectl get sharedapi %s -o yaml` to see its finalizers", c.name, c.name))
			}
			return strings.Join(reports, "\n"), errPending
		case <-ticker.C:
		}
	}
}

// follower tracks the progress of the clusters of one change. It is shown the SharedAPI
// repeatedly and returns the news.
type follower struct {
	change     change
	generation int64 // of the SharedAPI as written
	// gone: wait until the clusters have removed the groups, not until they serve them.
	removal bool

	seen       map[string]v1alpha1.ClusterExposure
	since      map[string]time.Time // when a cluster got its current reason
	lastCounts string
}

func newFollower(c change, generation int64, gone bool) *follower {
	return &follower{change: c, generation: generation, removal: gone, seen: map[string]v1alpha1.ClusterExposure{}, since: map[string]time.Time{}}
}

// maxListed is the number of clusters up to which each is reported separately.
const maxListed = 12

// observe processes the current SharedAPI, or nil if it no longer exists, and returns
// the lines to print.
func (f *follower) observe(now time.Time, s *v1alpha1.SharedAPI) (lines []string) {
	for _, name := range f.change.clusters {
		was, known := f.seen[name]
		is := v1alpha1.ClusterExposure{Name: name, Reason: released}
		if s != nil {
			if e, entered := s.Exposure(name); entered {
				is = e
			} else if !f.removal {
				continue
			} else if s.Status.ObservedGeneration < f.generation {
				continue // not reconciled since the change
			}
		}
		f.seen[name] = is
		if known && was.Reason == is.Reason {
			continue
		}
		f.since[name] = now
		if f.removal && !known && is.Reason != v1alpha1.ExposureRemoving && is.Reason != released {
			continue // state before the change
		}
		line := name + ": " + is.Reason
		if known {
			line = name + ": " + was.Reason + " → " + is.Reason
		}
		if !ordinary(is.Reason) && settled(is.Reason) != soon {
			line += ": " + is.Message
		}
		lines = append(lines, line)
	}
	if len(f.change.clusters) <= maxListed {
		return lines
	}
	if now := f.counts(); now != f.lastCounts {
		f.lastCounts = now
		return []string{now}
	}
	return nil
}

// ordinary reports whether a reason is a normal step of the transition.
func ordinary(reason string) bool {
	switch reason {
	case v1alpha1.ExposureApplying, v1alpha1.ExposureExposed, v1alpha1.ExposureRemoving, released:
		return true
	}
	return false
}

// released is the state of a cluster that has removed everything.
const released = "Removed"

func (f *follower) counts() string {
	count := map[string]int{}
	for _, e := range f.seen {
		count[e.Reason]++
	}
	var parts []string
	for _, reason := range slices.Sorted(maps.Keys(count)) {
		parts = append(parts, fmt.Sprintf("%s %d", reason, count[reason]))
	}
	return fmt.Sprintf("%s of %d", strings.Join(parts, ", "), len(f.change.clusters))
}

// pending returns the clusters that have not reached the desired state.
func (f *follower) pending(s *v1alpha1.SharedAPI) (out []string) {
	looked := s == nil || s.Status.ObservedGeneration >= f.generation
	for _, name := range f.change.clusters {
		e, seen := f.seen[name]
		done := looked && seen && e.Exposed
		if f.removal {
			done = looked && seen && f.holdsNothing(e)
		}
		if !done {
			out = append(out, name)
		}
	}
	return out
}

// holdsNothing reports whether a cluster has removed the groups. A cluster that serves
// other groups of the SharedAPI keeps its entry, with their versions.
func (f *follower) holdsNothing(e v1alpha1.ClusterExposure) bool {
	if e.Reason == released {
		return true
	}
	if f.change.spec == nil || !slices.Equal(f.change.spec.Clusters, f.change.old.Spec.Clusters) {
		return false // the whole entry must go
	}
	switch e.Reason {
	case v1alpha1.ExposureClusterUnreachable, v1alpha1.ExposureApplyFailed, v1alpha1.ExposureApplying, v1alpha1.ExposureRemoving, v1alpha1.ExposureClusterPulls:
		return false // not conclusive about the cluster's state
	}
	return !slices.ContainsFunc(e.Versions, func(v string) bool {
		group, _, _ := strings.Cut(v, "/")
		return slices.Contains(f.change.groups, group)
	})
}

// soon is how long a permanent failure must last before it is reported.
const soon = 3 * time.Second

// settled returns how long a reason must last until waiting is useless, because a user
// has to act. It returns zero for a reason that may go away by itself.
func settled(reason string) time.Duration {
	switch reason {
	case v1alpha1.ExposureGroupConflict, v1alpha1.ExposureNoFrontProxy, v1alpha1.ExposureSharedAuthority, v1alpha1.ExposureNoSuchCluster,
		v1alpha1.ExposureClusterPulls, v1alpha1.ExposureOwnersInUse:
		return soon
	case v1alpha1.ExposureNoServers:
		return 15 * time.Second // a server announces itself a little after it starts
	}
	return 0
}

// hopeless reports whether waiting can help none of the pending clusters.
func (f *follower) hopeless(now time.Time, pending []string) bool {
	return !slices.ContainsFunc(pending, func(name string) bool {
		reason := f.seen[name].Reason
		if f.removal && reason != v1alpha1.ExposureOwnersInUse {
			return true // the others are of the state before, or go away with it
		}
		limit := settled(reason)
		return limit == 0 || now.Sub(f.since[name]) < limit
	})
}

// report describes, for each pending cluster, the cause and the next step.
func (f *follower) report(pending []string) string {
	var lines []string
	for _, name := range pending {
		e, seen := f.seen[name]
		switch {
		case !seen:
			lines = append(lines, fmt.Sprintf("  %s: not reconciled yet: check that an Atoll server is running; `kubectl get leases -n %s` shows the leader", name, v1alpha1.SystemNamespace))
		case e.Message == "":
			lines = append(lines, fmt.Sprintf("  %s: %s%s", name, e.Reason, f.remedy(e)))
		default:
			lines = append(lines, fmt.Sprintf("  %s: %s: %s%s", name, e.Reason, e.Message, f.remedy(e)))
		}
	}
	return strings.Join(lines, "\n")
}

// remedy returns the next step for messages that lack one.
func (f *follower) remedy(e v1alpha1.ClusterExposure) string {
	switch {
	case e.Reason == v1alpha1.ExposureUnavailable:
		return fmt.Sprintf("\n    its API server must reach every address of `kubectl get leases -n %s -l %s -o yaml`", v1alpha1.SystemNamespace, v1alpha1.MemberEndpointLabel)
	case e.Reason == v1alpha1.ExposureClusterUnreachable && f.removal:
		return fmt.Sprintf("\n    the removal continues when the cluster responds; if it never will, run `atoll leave %s --cascade=%s`", e.Name, v1alpha1.LeaveOrphan)
	case e.Reason == v1alpha1.ExposureClusterUnreachable:
		return fmt.Sprintf("\n    run `kubectl describe cluster %s` for details", e.Name)
	}
	return ""
}
