package planner

import (
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/inventory"
)

// snapshot takes the objects and states of the plan from the Inventory.
func (r *run) snapshot() error {
	taken, err := r.Inventory.Snapshot(inventory.SnapshotOptions{Namespace: r.opts.Namespace, Overrides: r.opts.Overrides, Select: r.isCandidate})
	if err != nil {
		return err
	}
	r.taken, r.count = taken, taken.Selected
	r.slots = make([]slot, len(taken.Resources))
	for i := range r.slots {
		r.slots[i].Resource = &taken.Resources[i]
	}
	r.values = make([]lazyValue, len(r.slots))
	return nil
}

// isCandidate reports whether the plan may change a resource.
func (r *run) isCandidate(s *inventory.Resource) bool {
	deleting := s.Object != nil && s.Object.Deleting
	switch r.opts.Mode {
	case change.Destroy:
		return s.State != nil && !s.IsData() || deleting && !s.IsData()
	case change.RefreshOnly:
		return s.State != nil || s.IsData() && s.Object != nil && !deleting
	}
	return s.State != nil || s.Object != nil && !(s.IsData() && deleting)
}
