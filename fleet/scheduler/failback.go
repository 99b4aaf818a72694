package scheduler

import (
	"fmt"
	"slices"
	"time"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/names"
	"github.com/atoll-dev/atoll/fleet/placement"
)

// homeInputs identifies what people decided about where an object runs: its policy, its label, and a request to
// divide it again. When that changes, the object's home ends.
func homeInputs(a *Result) string {
	r := a.Choice.Reference
	return fmt.Sprintf("%s %s %s %s %s", r.Kind, r.Name, r.UID, a.Choice.Policy.HomeInputs(), a.Request.Object.Rebalance)
}

// setHome completes a request by where the object returns to, if its policy says when.
func (a *Result) setHome(b *v1alpha1.ResourceBinding) {
	after, returns := a.Choice.Policy.Failback()
	if b == nil || b.Spec.Home == nil || !returns || b.Spec.Home.Inputs != homeInputs(a) {
		return
	}
	home := &placement.Home{Shares: placementShares(b.Spec.Home.Clusters), After: after}
	for _, c := range b.Spec.Avoided {
		if home.Avoided == nil {
			home.Avoided = map[string]time.Time{}
		}
		home.Avoided[c.Name] = time.Unix(1<<40, 0) // until something else changes
		if c.Until != nil {
			home.Avoided[c.Name] = c.Until.Time
		}
	}
	a.Request.Home = home
}

func placementShares(clusters []v1alpha1.ClusterShare) []placement.Share {
	out := make([]placement.Share, 0, len(clusters))
	for _, c := range clusters {
		share := placement.Share{Cluster: c.Name, Whole: c.Replicas == nil}
		if c.Replicas != nil {
			share.Replicas = *c.Replicas
		}
		out = append(out, share)
	}
	return out
}

// nextHome returns the home of an object after a decision. It gets one when it leaves unreachable clusters, and keeps
// that one if it has to leave others, until it is back or a person decides something else.
func nextHome(a *Result, b *v1alpha1.ResourceBinding) *v1alpha1.BindingHome {
	if b == nil {
		return nil
	}
	if a.Choice.Err != nil {
		return b.Spec.Home // nothing is decided
	}
	home := b.Spec.Home
	if home == nil && len(a.Decision.Evicted) == 0 {
		return nil
	}
	inputs := homeInputs(a)
	if home != nil && (home.Inputs != inputs || a.Decision.Home.Returned || isBack(home, a)) {
		home = nil
	}
	if home != nil || len(a.Decision.Evicted) == 0 || a.Decision.Home.Returned {
		return home
	}
	home = &v1alpha1.BindingHome{Inputs: inputs}
	for _, c := range b.Decided() {
		home.Clusters = append(home.Clusters, v1alpha1.ClusterShare{Name: c.Name, Replicas: c.Replicas, Reason: c.Reason})
	}
	return home
}

// isBack reports whether a decision chooses all clusters of a home that are in the fleet.
func isBack(home *v1alpha1.BindingHome, a *Result) bool {
	if a.Request.Fleet == nil {
		return true // nothing decides where it runs
	}
	chosen := clustersIn(a.Shares)
	return !slices.ContainsFunc(home.Clusters, func(c v1alpha1.ClusterShare) bool {
		_, joined := a.Request.Fleet.Cluster(c.Name)
		return joined && !chosen[c.Name]
	})
}

// isHomeOf reports whether an object is to return to a cluster some time.
func isHomeOf(b *v1alpha1.ResourceBinding, cluster string) bool {
	return b.Spec.Home != nil && slices.ContainsFunc(b.Spec.Home.Clusters, func(c v1alpha1.ClusterShare) bool { return c.Name == cluster })
}

// homePatch is policyPatch for BindingHomes.
func homePatch(h *v1alpha1.BindingHome) any {
	if h == nil {
		return nil
	}
	return map[string]any{"clusters": orEmpty(h.Clusters), "inputs": orNull(h.Inputs)}
}

// homeMessage says when an object returns to where it ran before it failed over, or why not yet.
func (a *Result) homeMessage() string {
	switch h := a.Decision.Home; {
	case len(h.To) == 0 || h.Returned:
		return ""
	case h.Waits != "":
		return fmt.Sprintf("; returns to %s after that has been Ready for %s, but %s", names.List(h.To), a.Request.Home.After, h.Waits)
	default:
		return fmt.Sprintf("; returns to %s at %s", names.List(h.To), h.At.UTC().Format(time.RFC3339))
	}
}

// returnText says that an object returned to where it ran before it failed over, or "".
func (a *Result) returnText() string {
	if !a.Decision.Home.Returned {
		return ""
	}
	return fmt.Sprintf(": %s has been Ready for %s again", names.List(a.Decision.Home.To), a.Request.Home.After)
}
