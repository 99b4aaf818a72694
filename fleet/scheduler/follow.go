package scheduler

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// Reasons that an object is where it is because of others.
const (
	// ReasonRequired: an object there needs it.
	ReasonRequired = "Required"
	// ReasonKeptData: nothing there needs it now, but it holds data.
	ReasonKeptData = "KeptBecauseOfData"
	// ReasonKeptPending: what needs it is not decided yet, or not known.
	ReasonKeptPending = "KeptWhileUndecided"
)

// incomplete is when to look again at what is kept because not all objects are in
// the caches.
const incomplete = 5 * time.Second

// follow sends an object where its users are; one that has no namespace to those in
// all namespaces. A label of its own that names a cluster counts as a user there.
func (s *scheduler) follow(ctx context.Context, k interpret.Kind, o object, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding) error {
	users, undecided := s.usersOf(o)
	if !s.Complete() {
		undecided = true
		if b != nil {
			s.queue.AddAfter(o, incomplete)
		}
	}
	p := proposal{requiredBy: requirers(o, users), condition: metav1.Condition{Type: v1alpha1.BindingScheduled, Status: metav1.ConditionTrue,
		Reason: ReasonRequired, Message: "follows what needs it"}}
	asked := s.askedFor(k, obj, b, &p)
	wanted := len(users) > 0 || len(asked) > 0
	if !wanted && b == nil {
		return nil // of no concern to any cluster
	}
	if !wanted && !k.KeepsData && !undecided {
		return s.withdraw(ctx, b, s.requested(b, nil))
	}
	shares := s.withUsers(asked, users)
	if len(shares) == 0 && b == nil {
		return nil // users wait for a cluster; their binding says so
	}
	if s.unscaled(o, users) {
		return nil // it comes here again when that has been made good
	}
	p.shares = s.withoutGaps(k, obj, b, shares, &p.condition)
	if boundsReplicas(o.GroupKind) {
		p.shares = withReplicas(p.shares, s.sharesOf(users))
	}
	if b != nil && (k.KeepsData || undecided) {
		p.shares = s.withKept(p.shares, b, k.KeepsData)
	}
	if b != nil && undecided && len(users) == 0 {
		p.requiredBy = b.Spec.RequiredBy // who had it there; it matters why they are gone
	}
	p.requested = s.requested(b, p.shares)
	return s.write(ctx, k, obj, b, p)
}

// askedFor gives the clusters that an object which otherwise follows others is to be
// in because a label of its own, or a policy that names it or its kind, says so.
func (s *scheduler) askedFor(k interpret.Kind, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding, p *proposal) []v1alpha1.ClusterShare {
	choice := s.world().Choose(k, obj)
	if !choice.Explicit {
		return nil
	}
	var own *v1alpha1.ResourceBinding
	if b != nil {
		// What it has because others need it is not what it was asked for.
		own = b.DeepCopy()
		own.Spec.Clusters = slices.DeleteFunc(own.Spec.Clusters, func(c v1alpha1.ClusterShare) bool { return c.Reason == ReasonRequired })
	}
	a := s.answer(k, obj, own)
	p.policy(&a)
	if !a.Decision.Recheck.IsZero() {
		s.queue.AddAfter(refOf(k.GroupKind(), obj), a.Decision.Recheck.Sub(a.Request.Now))
	}
	if a.Condition.Status != metav1.ConditionTrue {
		p.condition = a.Condition
	}
	return a.Shares
}

func requirers(o object, users []object) []v1alpha1.Requirer {
	var out []v1alpha1.Requirer
	for _, user := range users[:min(len(users), v1alpha1.MaxRequirers)] {
		r := v1alpha1.Requirer{Kind: user.Kind, Name: user.Name}
		if user.Namespace != o.Namespace {
			r.Namespace = user.Namespace
		}
		out = append(out, r)
	}
	return out
}

// withUsers adds the clusters of an object's users.
func (s *scheduler) withUsers(shares []v1alpha1.ClusterShare, users []object) []v1alpha1.ClusterShare {
	have := clustersIn(shares)
	for _, user := range users {
		ub, ok := s.Binding(user.binding())
		if !ok {
			continue
		}
		for _, c := range ub.Spec.Clusters {
			if !have[c.Name] {
				have[c.Name] = true
				shares = append(shares, v1alpha1.ClusterShare{Name: c.Name, Reason: ReasonRequired,
					Message: fmt.Sprintf("%s %s needs it", user.Kind, user.Name)})
			}
		}
	}
	return shares
}

// withoutGaps takes those clusters out that lack something for an object and do not
// have it, and says so. Its users run there without it.
func (s *scheduler) withoutGaps(k interpret.Kind, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding, shares []v1alpha1.ClusterShare, c *metav1.Condition) []v1alpha1.ClusterShare {
	if len(shares) == 0 || !fleet.Native(k.GroupKind()) {
		return shares
	}
	against := s.obstacles(k, obj, b)
	if len(against) == 0 {
		return shares
	}
	var out []v1alpha1.ClusterShare
	var without []string
	for _, share := range shares {
		obstacle, is := against[share.Name]
		if is && !obstacle.Keeps {
			without = append(without, fmt.Sprintf("%s: the cluster %s", share.Name, obstacle.Message))
			c.Reason = obstacle.Reason
			continue
		}
		if is {
			share.Message = "keeps what it has, though the cluster " + obstacle.Message
		}
		out = append(out, share)
	}
	if len(without) > 0 {
		const most = 3
		c.Status, c.Message = metav1.ConditionFalse, "what needs it is without it in "+strings.Join(without[:min(most, len(without))], "; ")
		if more := len(without) - most; more > 0 {
			c.Message += fmt.Sprintf("; and in %d more clusters", more)
		}
	}
	return out
}

// boundsReplicas tells whether objects of a kind bound the replicas of their users, as
// an autoscaler and a disruption budget do.
func boundsReplicas(gk schema.GroupKind) bool { return gk == scalerKind() || gk == budgetKind() }

// withReplicas says, for what bounds the replicas of its users, how many of them each
// cluster has: its bounds are divided by that. Where one of them is not divided, nothing
// is.
func withReplicas(shares []v1alpha1.ClusterShare, users [][]v1alpha1.ClusterShare) []v1alpha1.ClusterShare {
	total := map[string]int32{}
	for _, user := range users {
		for _, c := range user {
			if c.Replicas == nil {
				return shares
			}
			total[c.Name] += *c.Replicas
		}
	}
	for i := range shares {
		if n, ok := total[shares[i].Name]; ok {
			shares[i].Replicas = &n
		}
	}
	return shares
}

func (s *scheduler) sharesOf(users []object) (out [][]v1alpha1.ClusterShare) {
	for _, user := range users {
		if ub, ok := s.Binding(user.binding()); ok {
			out = append(out, ub.Spec.Clusters)
		}
	}
	return out
}

// withKept adds the clusters that have the object and that it does not leave.
func (s *scheduler) withKept(shares []v1alpha1.ClusterShare, b *v1alpha1.ResourceBinding, data bool) []v1alpha1.ClusterShare {
	have := clustersIn(shares)
	for _, c := range b.Spec.Clusters {
		cluster, joined := s.Cluster(c.Name)
		if have[c.Name] || !joined || cluster.DeletionTimestamp != nil {
			continue
		}
		c.Reason, c.Message = ReasonKeptPending, "kept until it is decided where what needs it goes"
		if data {
			c.Reason, c.Message = ReasonKeptData, "nothing there needs it now, but it holds data: it goes when it is deleted"
		}
		shares = append(shares, c)
	}
	return shares
}

func clustersIn(shares []v1alpha1.ClusterShare) map[string]bool {
	out := make(map[string]bool, len(shares))
	for _, c := range shares {
		out[c.Name] = true
	}
	return out
}

// usersOf gives the users of an object that exist, and whether it is not known
// yet where some of them go.
func (s *scheduler) usersOf(o object) (users []object, undecided bool) {
	for _, user := range s.needs.by(o) {
		if !s.rooted(user, map[object]bool{o: true}) {
			continue
		}
		ub, bound := s.Binding(user.binding())
		users = append(users, user)
		undecided = undecided || !bound || ub.DeletionTimestamp != nil
	}
	return users, undecided
}

// rooted tells whether an object is somewhere for a reason of its own, or because
// of one that is: it is placed, or keeps data where it is, or has a user of which
// that is true. Two that need each other keep nobody anywhere. seen ends circles.
func (s *scheduler) rooted(o object, seen map[object]bool) bool {
	if seen[o] {
		return false
	}
	seen[o] = true
	k, served := s.Served(o.GroupKind)
	obj, exists := s.Object(o.GroupKind, o.NamespacedName)
	if !served || !exists || s.staysHome(obj) {
		return false
	}
	if k.Placed {
		return true
	}
	if b, bound := s.Binding(o.binding()); !bound {
		return false // a follower that nobody needs
	} else if k.KeepsData && len(b.Spec.Clusters) > 0 || s.world().Choose(k, obj).Explicit {
		return true
	}
	for _, user := range s.needs.by(o) {
		if s.rooted(user, seen) {
			return true
		}
	}
	return false
}

// unscaled tells, of an autoscaler, whether one of its targets was decided before there was
// any. Divided like that, all of its lower bound could go to the one cluster that has the only replica.
func (s *scheduler) unscaled(o object, targets []object) bool {
	if o.GroupKind != scalerKind() {
		return false
	}
	return slices.ContainsFunc(targets, func(target object) bool {
		k, served := s.Served(target.GroupKind)
		b, bound := s.Binding(target.binding())
		return served && k.Placed && bound && b.Spec.ScaledBy == nil
	})
}

// autoscalerOf gives what sets the replicas of an object in its clusters, nil if nothing does.
func (s *scheduler) autoscalerOf(o object) *unstructured.Unstructured {
	for _, f := range s.needs.of(o) {
		if f.GroupKind != scalerKind() {
			continue
		}
		if obj, exists := s.Object(f.GroupKind, f.NamespacedName); exists && obj.GetDeletionTimestamp() == nil {
			return obj
		}
	}
	return nil
}

// scalerOf names it.
func (s *scheduler) scalerOf(o object) *v1alpha1.Requirer {
	obj := s.autoscalerOf(o)
	if obj == nil {
		return nil
	}
	return &v1alpha1.Requirer{Kind: scalerKind().Kind, Name: obj.GetName()}
}

// scalerKind is what sets replica counts in clusters.
func scalerKind() schema.GroupKind {
	return schema.GroupKind{Group: "autoscaling", Kind: "HorizontalPodAutoscaler"}
}

func budgetKind() schema.GroupKind {
	return schema.GroupKind{Group: "policy", Kind: "PodDisruptionBudget"}
}
