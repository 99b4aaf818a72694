package moving

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// Target is an object that goes to clusters.
type Target struct {
	Object
	// Clusters are those that run it afterwards.
	Clusters []string
}

// Progress is how far objects are.
type Progress struct {
	// Done counts the objects that have arrived or returned, of Total.
	Done, Total int
	// Fraction counts the shares that are in effect, too, up to 1.
	Fraction float64
	// Text describes the only object, or the first one that is not done.
	Text string
}

// Outcome is how the move of one object ended.
type Outcome struct {
	Object
	// RolledBack is the cluster that the object avoids, if it returned; nil if it arrived.
	RolledBack *v1alpha1.AvoidedCluster
	// Deleted: the object was deleted meanwhile.
	Deleted bool
}

// Follower follows objects in transition.
type Follower struct {
	client  *Client
	targets []*followed
}

// followed is a target with its state before the change.
type followed struct {
	Target
	// avoided are the times of earlier failures, by cluster.
	avoided map[string]metav1.Time
	// seen: it had a binding.
	seen   bool
	done   bool
	latest verdict
}

// Follow prepares to follow targets of one namespace, or a single one. It is called before the change that moves
// them, so that earlier failures are not mistaken for new ones.
func (c *Client) Follow(ctx context.Context, targets []Target) (*Follower, error) {
	f := &Follower{client: c}
	for _, t := range targets {
		f.targets = append(f.targets, &followed{Target: t, avoided: map[string]metav1.Time{}})
	}
	bindings, err := f.read(ctx)
	if err != nil {
		return nil, err
	}
	for _, t := range f.targets {
		if b := bindings[t.Object]; b != nil {
			for _, a := range b.Spec.Avoided {
				t.avoided[a.Name] = a.Time
			}
		}
	}
	return f, nil
}

// read returns the bindings of the targets that are not done.
func (f *Follower) read(ctx context.Context) (map[Object]*v1alpha1.ResourceBinding, error) {
	out := map[Object]*v1alpha1.ResourceBinding{}
	if len(f.targets) == 1 {
		o := f.targets[0].Object
		b, err := f.client.Binding(ctx, o)
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("read the binding of %s: %w", o, err)
		}
		if err == nil {
			out[o] = b
		}
		return out, nil
	}
	names := map[string]Object{}
	for _, t := range f.targets {
		names[t.Namespace+"/"+v1alpha1.BindingName(t.Kind, t.Name)] = t.Object
	}
	if len(names) == 0 {
		return out, nil
	}
	err := f.client.eachBinding(ctx, f.targets[0].Namespace, func(b *v1alpha1.ResourceBinding) {
		if o, is := names[b.Namespace+"/"+b.Name]; is {
			out[o] = b
		}
	})
	return out, err
}

// Wait returns when all objects have arrived or returned, or when ctx ends. It calls progress whenever that changes,
// and finished with the outcome of each object.
func (f *Follower) Wait(ctx context.Context, progress func(Progress), finished func(Outcome)) error {
	var last Progress
	return poll(ctx, func() (bool, error, error) {
		bindings, err := f.read(ctx)
		if err != nil {
			return false, err, nil
		}
		for _, o := range f.observe(bindings) {
			finished(o)
		}
		p := f.progress()
		if p.Done < p.Total && p != last {
			progress(p)
			last = p
		}
		return p.Done == p.Total, nil, nil
	})
}

// observe processes the current bindings and returns the objects that are done now.
func (f *Follower) observe(bindings map[Object]*v1alpha1.ResourceBinding) (out []Outcome) {
	for _, t := range f.targets {
		if t.done {
			continue
		}
		b := bindings[t.Object]
		deleted := t.seen && (b == nil || b.DeletionTimestamp != nil)
		t.seen = t.seen || b != nil
		t.latest = judge(&t.Target, t.avoided, b)
		if t.latest.arrived || t.latest.returned != nil || deleted {
			t.done = true
			out = append(out, Outcome{t.Object, t.latest.returned, deleted})
		}
	}
	return out
}

func (f *Follower) progress() Progress {
	p := Progress{Total: len(f.targets)}
	sum := 0.0
	for _, t := range f.targets {
		switch {
		case t.done:
			p.Done++
			sum++
		default:
			sum += t.latest.fraction
			if p.Text == "" {
				p.Text = t.String() + ": " + t.latest.text
			}
		}
	}
	if p.Total > 0 {
		p.Fraction = sum / float64(p.Total)
	}
	return p
}

// Pending describes the objects that are not done.
func (f *Follower) Pending() (out []string) {
	for _, t := range f.targets {
		if !t.done {
			out = append(out, t.String()+": "+t.latest.text)
		}
	}
	return out
}

// verdict is how far one object is.
type verdict struct {
	arrived  bool
	returned *v1alpha1.AvoidedCluster
	fraction float64
	text     string
}

// judge returns how far an object is, by its binding, which may be nil. avoided are the failures before it moved.
func judge(t *Target, avoided map[string]metav1.Time, b *v1alpha1.ResourceBinding) verdict {
	if b == nil {
		return verdict{text: "there is no decision yet"}
	}
	failure := newFailure(t, avoided, b)
	shares := changesText(changesOf(b))
	if transition := b.Spec.Transition; transition != nil {
		v := verdict{text: phaseText(b) + ": " + shares, fraction: fractionOf(b)}
		if s := statusOf(b); s != nil && s.WaitingFor != "" {
			v.text += ", waiting for " + s.WaitingFor
		}
		if transition.Cause == v1alpha1.CauseRolledBack {
			v.fraction = 0
			v.text = "goes back: " + v.text
		}
		return v
	}
	if failure != nil {
		return verdict{returned: failure, text: "went back"}
	}
	if !sameClusters(b.Spec.Clusters, t.Clusters) {
		text := "waiting for the scheduler's decision"
		if c := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.BindingScheduled); c != nil && c.Status == metav1.ConditionFalse {
			text = c.Reason + ": " + c.Message
		}
		return verdict{text: text}
	}
	if waits := unsettled(t, b); waits != "" {
		return verdict{text: shares + ", waiting for " + waits, fraction: 1}
	}
	return verdict{arrived: true, fraction: 1, text: shares}
}

// newFailure returns the failure of one of the target's clusters since it moved.
func newFailure(t *Target, before map[string]metav1.Time, b *v1alpha1.ResourceBinding) *v1alpha1.AvoidedCluster {
	for i := range b.Spec.Avoided {
		a := &b.Spec.Avoided[i]
		if earlier, was := before[a.Name]; was && a.Time.Equal(&earlier) {
			continue
		}
		if slices.Contains(t.Clusters, a.Name) {
			return a
		}
	}
	return nil
}

func phaseText(b *v1alpha1.ResourceBinding) string {
	if s := statusOf(b); s != nil {
		return string(s.Phase)
	}
	return "Starting"
}

// unsettled returns what the last part waits for: clusters that do not run the object yet, or still have it.
func unsettled(t *Target, b *v1alpha1.ResourceBinding) string {
	for _, name := range t.Clusters {
		state, reported := b.State(name)
		switch {
		case !reported || state.UID == "":
			if reported && state.Message != "" {
				return name + ": " + state.Message
			}
			return name + " to get it"
		case state.Health != v1alpha1.Healthy && state.Health != v1alpha1.Unknown:
			text := fmt.Sprintf("%s, where it is %s", name, state.Health)
			if state.Message != "" {
				text += ": " + state.Message
			}
			return text
		}
	}
	for _, c := range b.Status.Clusters {
		if !slices.Contains(t.Clusters, c.Name) && c.Stale == nil { // one that does not answer removes it later
			text := c.Name + " to remove it"
			if c.Reason == v1alpha1.StateHeld && c.Message != "" {
				text += ": " + c.Message
			}
			return text
		}
	}
	return ""
}

func sameClusters(shares []v1alpha1.ClusterShare, names []string) bool {
	if len(shares) != len(names) {
		return false
	}
	return !slices.ContainsFunc(shares, func(c v1alpha1.ClusterShare) bool { return !slices.Contains(names, c.Name) })
}

// fractionOf returns which part of the goal's shares is in effect.
func fractionOf(b *v1alpha1.ResourceBinding) float64 {
	have, want := 0.0, 0.0
	for _, goal := range b.Decided() {
		now, has := b.Share(goal.Name)
		if goal.Replicas == nil || has && now.Replicas == nil {
			want++
			if has {
				have++
			}
			continue
		}
		want += float64(*goal.Replicas)
		if has {
			have += float64(min(*now.Replicas, *goal.Replicas))
		}
	}
	if want == 0 {
		return 0
	}
	return have / want
}
