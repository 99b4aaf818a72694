package scheduler

import (
	"cmp"
	"slices"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// preemptAll has objects make room for those that wait, in a preview: first for the highest priority. What takes the
// scheduler several decisions happens at once.
func (snap *Snapshot) preemptAll(all []previewed) {
	tenants, ok := snap.Tenants.(*stateTenants)
	if !ok {
		return
	}
	var waiting []int
	for i := range all {
		if d := &all[i]; snap.mayPreempt(&d.result, d.Object, d.binding) {
			waiting = append(waiting, i)
		}
	}
	if len(waiting) == 0 {
		return
	}
	slices.SortStableFunc(waiting, func(a, b int) int {
		return cmp.Compare(tenants.priorityOf(all[b].Object).value, tenants.priorityOf(all[a].Object).value)
	})
	at := make(map[object]int, len(all))
	for i := range all {
		d := &all[i]
		at[d.ref()] = i
		tenants.after[d.ref()] = d.afterwards(nil)
	}
	for _, i := range waiting {
		d := &all[i]
		p := snap.preempt(&d.result, d.Kind, d.Object)
		if p == nil {
			continue
		}
		snap.accept(&d.result, p)
		b := d.afterwards(p)
		tenants.after[d.ref()] = b
		tenants.preempting(b)
		for j := range p.Victims {
			if k, known := at[victimOf(&p.Victims[j])]; known {
				snap.decideAgain(&all[k], tenants)
			}
		}
		snap.decideAgain(d, tenants)
	}
}

// decideAgain decides about an object as the scheduler does after the decision of a preview.
func (snap *Snapshot) decideAgain(d *previewed, tenants *stateTenants) {
	d.result = snap.Schedule(d.Kind, d.Object, tenants.after[d.ref()])
	d.moves = MovesOf(d.Placed, d.binding, d.result)
	snap.reserve(&d.result)
	snap.Groups.(*stateGroups).after[d.Key()] = d.result.Shares
	tenants.after[d.ref()] = d.afterwards(d.result.Preemption)
}

func (d *previewed) ref() object { return refOf(d.Kind.GroupKind(), d.Object) }

// afterwards returns the binding with the decision of a preview, as if clusters followed it already.
func (d *previewed) afterwards(p *v1alpha1.Preemption) *v1alpha1.ResourceBinding {
	b := d.result.binding(d.Kind, d.Object, d.binding)
	b.Spec.Preemption, b.Status.Clusters = p, nil
	return b
}
