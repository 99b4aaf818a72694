package placement

import (
	"slices"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// ReasonKeptVolumes: the object's volumes are there, so it stays although it should leave.
const ReasonKeptVolumes = "KeptWithVolumes"

// hold keeps a holder that should yield, if the caller says that the object must not leave it.
func (d *decider) hold(h *holder) {
	if h.yields == unmarked || !d.r.Held[d.fleet.clusters[h.at].Name] {
		return
	}
	h.despite, h.yields = h.yields, unmarked
	h.reason, h.capped = ReasonKeptVolumes, true
}

// heldMessage explains why a holder stays although it should yield.
func (d *decider) heldMessage(at int32) string {
	why := ""
	if i := d.holds[at]; i > 0 {
		why = d.message(at, d.reason(at, d.holders[i-1].despite))
	}
	return "keeps its share with its volumes, which do not move" + because(why)
}

// fixMode keeps an object divided or whole as it was if nothing may change.
func (d *decider) fixMode() {
	switch {
	case d.r.Fixed == "" || len(d.r.Previous) == 0:
	case slices.ContainsFunc(d.r.Previous, func(s Share) bool { return !s.Whole }):
		d.mode = divided
	case d.mode == divided:
		d.mode = v1alpha1.ModeDuplicated
	}
}

// stayFixed keeps the shares as they are, because of Request.Fixed. Replicas beyond them have no cluster.
func (d *decider) stayFixed() outcome {
	o := d.stay()
	o.problem = d.r.Fixed
	if d.mode == divided {
		o.unplaced = d.r.Object.Replicas
		for _, m := range o.members {
			o.unplaced -= m.replica
		}
		o.unplaced = max(0, o.unplaced)
	}
	return o
}
