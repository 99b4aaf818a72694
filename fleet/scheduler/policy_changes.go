package scheduler

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/names"
	"github.com/atoll-dev/atoll/fleet/placement"
)

// compilePolicies compiles the policies of the caches, and records which contents of them are in effect from then on.
func (s *scheduler) compilePolicies(known *placement.Policies) *placement.Policies {
	placements, clusterPlacements := s.Policies.Placements.All(), s.Policies.ClusterPlacements.All()
	clear(s.cache.inputs)
	for _, p := range placements {
		subject := placement.SubjectOf(p)
		s.cache.inputs[p.UID] = subject.Inputs()
	}
	for _, p := range clusterPlacements {
		subject := placement.SubjectOfCluster(p)
		s.cache.inputs[p.UID] = subject.Inputs()
	}
	return placement.NewPolicies(placements, clusterPlacements, known)
}

// signalPolicies signals that policies may have changed. It never blocks; concurrent changes are
// processed together.
func (s *scheduler) signalPolicies() {
	select {
	case s.cache.policiesChanged <- struct{}{}:
	default:
	}
}

// followPolicies processes changes of policies and the progress of their edits, until ctx ends.
func (s *scheduler) followPolicies(ctx context.Context) {
	next := s.updatePolicies(ctx)
	due := s.Clock.Now().Add(next)
	for {
		var timeout <-chan time.Time
		stop := func() bool { return false }
		if next > 0 {
			timer := s.Clock.NewTimer(max(due.Sub(s.Clock.Now()), 0))
			timeout, stop = timer.C(), timer.Stop
		}
		select {
		case <-ctx.Done():
			stop()
			return
		case <-s.cache.policiesChanged:
			next = s.readPolicies(ctx)
		case <-s.cache.namesChanged:
			next = s.updatePolicies(ctx) // their conditions name the Clusters and kinds that do not exist
		case <-s.edits.progressed:
			stop()
			if next == 0 || due.Sub(s.Clock.Now()) > progressDelay {
				next, due = progressDelay, s.Clock.Now().Add(progressDelay)
			}
			continue
		case <-timeout:
			next = s.updatePolicies(ctx)
		}
		stop()
		due = s.Clock.Now().Add(next)
	}
}

// readPolicies reads the policies and queues the objects whose policy was replaced or changed. It returns when to
// update the policies' status again, 0 if only after an event.
func (s *scheduler) readPolicies(ctx context.Context) time.Duration {
	s.cache.mu.Lock()
	before := s.cache.policies
	s.cache.policies = s.compilePolicies(before)
	after := s.cache.policies
	s.cache.mu.Unlock()
	now := &Snapshot{Policies: after, Namespace: s.namespaceLabels, Follows: s.following}
	earlier := &Snapshot{Policies: before, Namespace: s.namespaceLabels, Follows: s.following}
	for _, k := range s.Kinds.All() {
		for obj := range s.Objects.AllMetadata(k.GroupKind(), "") {
			a, b := earlier.Choose(k, obj), now.Choose(k, obj)
			if o := refOf(k.GroupKind(), obj); !a.Equal(&b) && (k.Placed || k.Configuration || a.Explicit || b.Explicit || s.bound(o)) {
				s.queue.Add(o)
			}
		}
	}
	s.requeueNamespaces(earlier, now)
	s.requeueSuspended()
	return s.updatePolicies(ctx)
}

func (c *cache) signalNames() {
	select {
	case c.namesChanged <- struct{}{}:
	default:
	}
}

// updatePolicies sets the condition Accepted of all policies, and advances their edits. It returns when to do that
// again, 0 if only after an event.
func (s *scheduler) updatePolicies(ctx context.Context) (next time.Duration) {
	s.cache.mu.RLock()
	invalid := s.cache.policies.Invalid
	s.cache.mu.RUnlock()
	problem := func(p *placement.Subject) error {
		for _, i := range invalid {
			if i.Reference.Kind == p.Kind && i.Namespace == p.Meta.Namespace && i.Reference.Name == p.Meta.Name {
				return i.Err
			}
		}
		return nil
	}
	joined := []string{}
	for _, c := range s.Clusters.All() {
		joined = append(joined, c.Name)
	}
	known := append(s.Kinds.All(), interpret.NamespaceKind())
	update := func(p placement.Subject, policy runtime.Object) {
		s.cache.mu.RLock()
		inputs := s.cache.inputs[p.Meta.UID]
		s.cache.mu.RUnlock()
		if inputs != p.Inputs() {
			// Decisions do not follow it yet: an edit must not be reported before it is in effect.
			s.signalPolicies()
			return
		}
		err := problem(&p)
		t := s.advance(&p, err)
		accepted := acceptedCondition(&p, err, t.waits(), known, joined)
		if again := s.writePolicyStatus(ctx, &p, policy, accepted, t); again > 0 && (next == 0 || again < next) {
			next = again
		}
	}
	for _, p := range s.Policies.Placements.All() {
		update(placement.SubjectOf(p), p)
	}
	for _, p := range s.Policies.ClusterPlacements.All() {
		update(placement.SubjectOfCluster(p), p)
	}
	s.edits.forgetDeleted(s.Policies)
	return next
}

// acceptedCondition returns the condition Accepted of a policy. With waits, not all objects follow its spec.
func acceptedCondition(p *placement.Subject, err error, waits bool, known []interpret.KindInfo, joined []string) metav1.Condition {
	spec := &p.Spec.PlacementSpec
	c := metav1.Condition{Type: v1alpha1.PlacementAccepted, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonPolicyAccepted, Message: "the policy is in effect"}
	ineffective, all := ineffectiveKinds(spec.Selector.Kinds, known, p.Meta.Namespace != "")
	if reserved, none := reservedNamespaces(spec); reserved != "" {
		ineffective, all = strings.TrimPrefix(ineffective+"; "+reserved, "; "), all || none
	}
	missing := missingClusters(&p.Spec, joined)
	if waits {
		c.Message = "the policy is valid"
	}
	if err != nil && waits {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, v1alpha1.ReasonPolicyInvalid, fmt.Sprintf("the policy is invalid, and its earlier content stays in effect: %v", err)
	} else if err != nil {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, v1alpha1.ReasonPolicyInvalid,
			fmt.Sprintf("the policy is invalid, and the objects that it selects stay where they are: %v", err)
	} else if all {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, v1alpha1.ReasonPolicyIneffective, "the policy has no effect: "+ineffective
	} else if but := strings.Trim(missing+"; "+ineffective, "; "); but != "" {
		c.Message += ", but " + but
	}
	return c
}

// missingClusters says which of the clusters that a policy names do not exist, or "". They may join
// later, so the policy is accepted all the same.
func missingClusters(spec *v1alpha1.ClusterPlacementSpec, joined []string) string {
	var named, missing []string
	for _, s := range []*v1alpha1.ClusterSelector{spec.Clusters, spec.Bounds} {
		if s != nil {
			named = slices.Concat(named, s.Names)
		}
	}
	for i := range spec.ClusterGroups {
		named = slices.Concat(named, spec.ClusterGroups[i].Clusters.Names)
	}
	for _, name := range named {
		if !slices.Contains(joined, name) {
			missing = append(missing, fmt.Sprintf("no Cluster %s exists%s", name, names.DidYouMean(name, joined)))
		}
	}
	const most = 5
	if len(missing) > most {
		missing = append(missing[:most], fmt.Sprintf("and %d more", len(missing)-most))
	}
	return strings.Join(missing, "; ")
}
