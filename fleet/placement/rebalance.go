package placement

// chooseAgain chooses clusters as if the object were new, if a user requests that. It returns false without a request, if
// the object must not move, or if not all of it could be placed: then the object stays where it is.
func (d *decider) chooseAgain() (outcome, bool) {
	if !d.rebalances || d.r.Object.Stays || d.r.Group != nil || d.mode == divided && d.most >= noLimit && len(d.policy.spread) == 0 {
		return outcome{}, false
	}
	var again []*holder
	for _, at := range d.view.open {
		if h := d.holderAt(at); h != nil && h.free() {
			h.again = true
			again = append(again, h)
		}
	}
	d.resetMarks()
	o := d.attempt(d.fresh(), false, true)
	if o.problem == "" && o.unplaced == 0 {
		return o, true
	}
	for _, h := range again {
		h.again = false
		d.marks[h.at] = unmarked
	}
	return outcome{}, false
}
