package scheduler

import (
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

const (
	// victimsPerSecond and victimsAtOnce bound the objects that make room: a PriorityClass may be a mistake.
	victimsPerSecond = 1
	victimsAtOnce    = 10
	// attemptsPerSecond bounds the search for victims, and retryInterval is how long an object waits for which none
	// were found.
	attemptsPerSecond = 5
	retryInterval     = 10 * time.Second
)

// preemptions are the objects for which others make room, as their bindings have it.
type preemptions struct {
	mu       sync.Mutex
	by       map[object]*v1alpha1.ResourceBinding
	of       map[object]map[object]bool // by victim
	attempts *rate.Limiter
	victims  *rate.Limiter
	failed   map[object]time.Time
	// classes are the PriorityClasses of objects when they were last decided, without those that have none.
	classes map[object]string
}

func newPreemptions() *preemptions {
	return &preemptions{by: map[object]*v1alpha1.ResourceBinding{}, of: map[object]map[object]bool{}, failed: map[object]time.Time{}, classes: map[object]string{},
		attempts: rate.NewLimiter(attemptsPerSecond, attemptsPerSecond), victims: rate.NewLimiter(victimsPerSecond, victimsAtOnce)}
}

// record records the binding of an object, nil if it is gone, and returns the objects that make room for it, and those
// that no longer do.
func (p *preemptions) record(o object, b *v1alpha1.ResourceBinding) (changed []object) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.by[o]
	switch {
	case before == nil && (b == nil || b.Spec.Preemption == nil):
		return nil
	case before != nil && b != nil && b.Spec.Preemption != nil && before.UID == b.UID && b.Spec.Preemption.Time.Equal(&before.Spec.Preemption.Time):
		p.by[o] = b
		return nil
	}
	if before != nil {
		for i := range before.Spec.Preemption.Victims {
			v := victimOf(&before.Spec.Preemption.Victims[i])
			if delete(p.of[v], o); len(p.of[v]) == 0 {
				delete(p.of, v)
			}
			changed = append(changed, v)
		}
		delete(p.by, o)
	}
	if b != nil && b.Spec.Preemption != nil {
		p.by[o] = b
		for i := range b.Spec.Preemption.Victims {
			v := victimOf(&b.Spec.Preemption.Victims[i])
			if p.of[v] == nil {
				p.of[v] = map[object]bool{}
			}
			p.of[v][o] = true
			changed = append(changed, v)
		}
	}
	return changed
}

// preemptorsOf returns the objects for which a victim makes room.
func (p *preemptions) preemptorsOf(victim object) (out []object) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for o := range p.of[victim] {
		out = append(out, o)
	}
	return out
}

func (p *preemptions) setClass(o object, name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if name == "" {
		delete(p.classes, o)
		return
	}
	p.classes[o] = name
}

func (p *preemptions) classOf(o object) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.classes[o]
}

// attempt returns how long an object has to wait until victims are searched for it; 0 means that they may be now.
func (p *preemptions) attempt(o object, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if at, failed := p.failed[o]; failed && now.Sub(at) < retryInterval {
		return retryInterval - now.Sub(at)
	}
	if p.victims.TokensAt(now) < 1 || !p.attempts.AllowN(now, 1) {
		return time.Second
	}
	return 0
}

// allow reports whether so many more objects may make room now.
func (p *preemptions) allow(victims int, now time.Time) bool {
	return p.victims.AllowN(now, min(victims, victimsAtOnce))
}

func (p *preemptions) fail(o object, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failed[o] = now
}

// succeeded forgets that no victims were found for an object: it no longer waits.
func (p *preemptions) succeeded(o object) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.failed, o)
}

func (p *preemptions) forget(o object) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.failed, o)
	delete(p.classes, o)
}

// preempt has objects of lower priority make room for one that waits, and has it decided again when that ends. The
// caller holds allocationsMu.
func (s *scheduler) preempt(snap *Snapshot, a *Result, k interpret.KindInfo, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding) {
	o := refOf(k.GroupKind(), obj)
	if a.Preemption == nil && snap.mayPreempt(a, obj, b) && !s.isHeld(obj.GetNamespace(), labelsOrNone(obj), b) {
		if again := s.preemptions.attempt(o, snap.Now); again > 0 {
			s.queue.AddAfter(o, again)
			return
		}
		p := snap.preempt(a, k, obj)
		if p == nil {
			s.preemptions.fail(o, snap.Now)
			s.queue.AddAfter(o, retryInterval)
			return
		}
		if !s.preemptions.allow(len(p.Victims), snap.Now) {
			s.queue.AddAfter(o, time.Second)
			return
		}
		snap.accept(a, p)
	}
	if a.Preemption != nil {
		s.queue.AddAfter(o, preemptionEnds(a.Preemption).Sub(snap.Now))
	}
}

// accept records a preemption in a result.
func (snap *Snapshot) accept(a *Result, p *v1alpha1.Preemption) {
	a.Preemption = p
	a.Condition.Message += preemptionMessage(p)
	promise(snap.Rooms, &a.Request.Object, p, a.Decision.Shares())
}

// labelsOrNone returns labels that are not nil.
func labelsOrNone(obj *unstructured.Unstructured) map[string]string {
	if l := obj.GetLabels(); l != nil {
		return l
	}
	return map[string]string{}
}

// preemptionChanged queues the objects that make room, or no longer do, and those for which a victim has made it.
func (s *scheduler) preemptionChanged(was, is *v1alpha1.ResourceBinding) {
	b := is
	if is == nil {
		b = was
	}
	o := boundBy(b)
	for _, victim := range s.preemptions.record(o, is) {
		s.queue.Add(victim)
	}
	for _, by := range s.preemptions.preemptorsOf(o) {
		s.queue.Add(by)
	}
	if is != nil && is.Spec.Preemption != nil && was != nil && !slices.EqualFunc(was.Status.Clusters, is.Status.Clusters, func(a, b v1alpha1.ClusterState) bool {
		return a.Name == b.Name && a.Health == b.Health
	}) {
		s.queue.Add(o)
	}
}
