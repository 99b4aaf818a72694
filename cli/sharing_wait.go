package cli

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// follower follows how the clusters of one change fare: it is shown the SharedAPI
// again and again, and says what is news.
type follower struct {
	change     change
	generation int64 // of the SharedAPI as it was written
	// gone: waits until the clusters hold nothing of the groups, and not until they
	// serve them.
	gone bool

	seen  map[string]v1alpha1.ClusterExposure
	since map[string]time.Time // when a cluster got its reason
	said  string
}

func follow(c change, generation int64, gone bool) *follower {
	return &follower{change: c, generation: generation, gone: gone, seen: map[string]v1alpha1.ClusterExposure{}, since: map[string]time.Time{}}
}

// oneByOne is up to how many clusters are told of one by one.
const oneByOne = 12

// look takes in the SharedAPI as it is now, nil if it does not exist any more, and
// gives the lines to print.
func (f *follower) look(now time.Time, s *v1alpha1.SharedAPI) (lines []string) {
	for _, name := range f.change.clusters {
		was, known := f.seen[name]
		is := v1alpha1.ClusterExposure{Name: name, Reason: released}
		if s != nil {
			if e, entered := s.Exposure(name); entered {
				is = e
			} else if !f.gone {
				continue
			} else if s.Status.ObservedGeneration < f.generation {
				continue // not looked at since
			}
		}
		f.seen[name] = is
		if known && was.Reason == is.Reason {
			continue
		}
		f.since[name] = now
		if f.gone && !known && is.Reason != v1alpha1.ExposureRemoving && is.Reason != released {
			continue // how it was until now
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
	if len(f.change.clusters) <= oneByOne {
		return lines
	}
	if now := f.counts(); now != f.said {
		f.said = now
		return []string{now}
	}
	return nil
}

// ordinary tells whether a reason is on the way from one state to the other.
func ordinary(reason string) bool {
	switch reason {
	case v1alpha1.ExposureApplying, v1alpha1.ExposureExposed, v1alpha1.ExposureRemoving, released:
		return true
	}
	return false
}

// released stands for a cluster that holds nothing any more.
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

// pending gives the clusters that are not as they shall be.
func (f *follower) pending(s *v1alpha1.SharedAPI) (out []string) {
	looked := s == nil || s.Status.ObservedGeneration >= f.generation
	for _, name := range f.change.clusters {
		e, seen := f.seen[name]
		done := looked && seen && e.Exposed
		if f.gone {
			done = looked && seen && f.holdsNothing(e)
		}
		if !done {
			out = append(out, name)
		}
	}
	return out
}

// holdsNothing tells whether a cluster is known to be without the groups. One that
// serves other groups of the SharedAPI keeps its entry, with their versions.
func (f *follower) holdsNothing(e v1alpha1.ClusterExposure) bool {
	if e.Reason == released {
		return true
	}
	if f.change.spec == nil || !slices.Equal(f.change.spec.Clusters, f.change.was.Spec.Clusters) {
		return false // the whole entry is to go
	}
	switch e.Reason {
	case v1alpha1.ExposureClusterUnreachable, v1alpha1.ExposureApplyFailed, v1alpha1.ExposureApplying, v1alpha1.ExposureRemoving, v1alpha1.ExposureClusterPulls:
		return false // says nothing about what the cluster has
	}
	return !slices.ContainsFunc(e.Versions, func(v string) bool {
		group, _, _ := strings.Cut(v, "/")
		return slices.Contains(f.change.groups, group)
	})
}

// soon is how long a reason holds that will not pass: the report follows at once.
const soon = 3 * time.Second

// settled is how long a reason must hold until waiting on is of no use: somebody has
// to do something. Zero for one that may pass.
func settled(reason string) time.Duration {
	switch reason {
	case v1alpha1.ExposureGroupConflict, v1alpha1.ExposureNoFrontProxy, v1alpha1.ExposureSharedAuthority, v1alpha1.ExposureNoSuchCluster,
		v1alpha1.ExposureClusterPulls:
		return soon
	case v1alpha1.ExposureNoServers:
		return 15 * time.Second // a server that starts announces itself a little later
	}
	return 0
}

// hopeless tells whether nobody is left for whom waiting could help.
func (f *follower) hopeless(now time.Time, pending []string) bool {
	return !f.gone && !slices.ContainsFunc(pending, func(name string) bool {
		patience := settled(f.seen[name].Reason)
		return patience == 0 || now.Sub(f.since[name]) < patience
	})
}

// report says of each pending cluster what stands in the way, and the remedy.
func (f *follower) report(pending []string) string {
	var lines []string
	for _, name := range pending {
		e, seen := f.seen[name]
		switch {
		case !seen:
			lines = append(lines, fmt.Sprintf("  %s: not looked at yet: is an Atoll server running? `kubectl get leases -n %s` shows who leads", name, v1alpha1.SystemNamespace))
		case e.Message == "":
			lines = append(lines, fmt.Sprintf("  %s: %s%s", name, e.Reason, f.remedy(e)))
		default:
			lines = append(lines, fmt.Sprintf("  %s: %s: %s%s", name, e.Reason, e.Message, f.remedy(e)))
		}
	}
	return strings.Join(lines, "\n")
}

// remedy adds to messages that say what is wrong and not what to do.
func (f *follower) remedy(e v1alpha1.ClusterExposure) string {
	switch {
	case e.Reason == v1alpha1.ExposureUnavailable:
		return fmt.Sprintf("\n    its API server must reach every address of `kubectl get leases -n %s -l %s -o yaml`", v1alpha1.SystemNamespace, v1alpha1.MemberEndpointLabel)
	case e.Reason == v1alpha1.ExposureClusterUnreachable && f.gone:
		return fmt.Sprintf("\n    it goes on when the cluster answers; if it never will: `atoll leave %s --cascade=%s`", e.Name, v1alpha1.LeaveOrphan)
	case e.Reason == v1alpha1.ExposureClusterUnreachable:
		return fmt.Sprintf("\n    `kubectl describe cluster %s` says more", e.Name)
	}
	return ""
}
