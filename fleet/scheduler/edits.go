package scheduler

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/placement"
)

// progressDelay is how long after a report of an object the status of its policy is updated: many report at once.
const progressDelay = 200 * time.Millisecond

// edits are the edits of policies that not all objects follow.
type edits struct {
	progressed chan struct{} // has an element if objects of an edit that is in progress have changed
	inProgress atomic.Bool
	// of is used by followPolicies alone.
	of map[types.UID]*edit

	mu sync.Mutex
	// released are the objects of the steps that this session began. Their bindings record it soon.
	released map[object][]v1alpha1.PolicyVersion
}

func newEdits() *edits {
	return &edits{progressed: make(chan struct{}, 1), of: map[types.UID]*edit{}, released: map[object][]v1alpha1.PolicyVersion{}}
}

// edit is one edit of a policy.
type edit struct {
	generation int64
	spreads    bool // objects follow it one after another
	waiting    []object
}

// reported signals that an object of an edit in progress has changed.
func (e *edits) reported(was, is *v1alpha1.ResourceBinding) {
	if !e.inProgress.Load() || is != nil && len(is.Spec.Adopted) == 0 && (was == nil || len(was.Spec.Adopted) == 0) {
		return
	}
	select {
	case e.progressed <- struct{}{}:
	default:
	}
}

func (e *edits) release(objects []object, v v1alpha1.PolicyVersion) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, o := range objects {
		e.released[o] = append(e.released[o], v)
	}
}

func (e *edits) releasedFor(o object) []v1alpha1.PolicyVersion {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.released[o])
}

// releasedBy returns the objects that a step released to a version.
func (e *edits) releasedBy(v v1alpha1.PolicyVersion) (out []object) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for o, versions := range e.released {
		if slices.Contains(versions, v) {
			out = append(out, o)
		}
	}
	return out
}

// forget ends the edits of a policy.
func (e *edits) forget(policy types.UID) {
	if e.of[policy] == nil {
		return
	}
	delete(e.of, policy)
	e.mu.Lock()
	defer e.mu.Unlock()
	for o, versions := range e.released {
		left := slices.DeleteFunc(versions, func(v v1alpha1.PolicyVersion) bool { return v.UID == policy })
		if len(left) == 0 {
			delete(e.released, o)
		} else {
			e.released[o] = left
		}
	}
}

// forgetDeleted ends the edits of policies that do not exist any more.
func (e *edits) forgetDeleted(p *fleet.Policies) {
	if len(e.of) > 0 {
		exist := map[types.UID]bool{}
		for _, p := range p.Placements.All() {
			exist[p.UID] = true
		}
		for _, p := range p.ClusterPlacements.All() {
			exist[p.UID] = true
		}
		for uid := range e.of {
			if !exist[uid] {
				e.forget(uid)
			}
		}
	}
	spreads := false
	for _, edit := range e.of {
		spreads = spreads || edit.spreads
	}
	e.inProgress.Store(spreads)
}

// following returns what determines which contents of policies an object follows.
func (s *scheduler) following(o object, obj metav1.Object) placement.Following {
	b, _ := s.Bindings.Get(o.binding())
	out := following(b, obj)
	if released := s.edits.releasedFor(o); len(released) > 0 {
		out.Adopted = slices.Concat(out.Adopted, released)
	}
	return out
}
