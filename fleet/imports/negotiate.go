package imports

import (
	"fmt"
	"slices"
	"strings"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/schema"
)

// offer is one version of a type as one cluster serves it.
type offer struct {
	cluster string
	// typ is shared by equal offers, and nil if the schema cannot be parsed.
	typ      *schema.Type
	problem  string // why typ is nil
	strategy v1alpha1.SchemaUpdateStrategy
}

// currentType is the control plane's existing definition of a version.
type currentType struct {
	typ *schema.Type
	// enforced is set if a user or the control plane defines the type; published if the fleet
	// does.
	enforced, published bool
	// frozen is set while the published type must not change.
	frozen bool
	// by names what enforces the type, and remedy how clusters can comply, for messages.
	by, remedy string
}

// compatibility is whether a cluster accepts everything that the negotiated type accepts.
type compatibility struct {
	compatible      bool
	reason, message string
}

// negotiate computes the type that the clusters have in common, and which of them accept it.
// Offers are in the order of their creation: the first one seeds the type, later ones narrow
// it. The returned type is nil if nothing could be agreed on.
func negotiate(has currentType, offers []offer) (*schema.Type, []compatibility) {
	n := &negotiation{offers: offers, out: make([]compatibility, len(offers)), checked: map[*schema.Type][]schema.Refusal{}}
	switch {
	case has.enforced:
		n.typ = has.typ
		n.evaluateAll(func(refused string) string {
			return fmt.Sprintf("%s defines the type, and the cluster does not accept everything that it accepts: %s. %s", has.by, refused, has.remedy)
		})
	case has.published:
		n.typ = has.typ
		if !has.frozen {
			n.narrowPublished()
		}
		n.evaluateAll(func(refused string) string {
			return "the cluster does not accept everything that the published type accepts, and its import may narrow the type only with schemaUpdateStrategy UpdatePublished: " + refused
		})
		if !has.frozen {
			n.widen()
		}
	default:
		n.seedAndNarrow()
		n.evaluateAll(func(refused string) string {
			return "the cluster does not accept everything that the negotiated type accepts, and its import must not narrow the type (schemaUpdateStrategy UpdateNever): " + refused
		})
	}
	return n.typ, n.out
}

type negotiation struct {
	offers []offer
	out    []compatibility

	typ *schema.Type
	// checked caches the refusals of typ by the offered type.
	checked map[*schema.Type][]schema.Refusal
}

// check returns the reasons why a cluster does not accept everything that typ accepts.
func (n *negotiation) check(o offer) []schema.Refusal {
	refused, known := n.checked[o.typ]
	if !known {
		refused = check(n.typ, o.typ)
		n.checked[o.typ] = refused
	}
	return refused
}

func check(existing, next *schema.Type) []schema.Refusal {
	_, refused := schema.Intersect(*existing, *next, false)
	return refused
}

func (n *negotiation) refuse(i int, message string) {
	n.out[i] = compatibility{reason: v1alpha1.ReasonSchemaIncompatible, message: truncate(message)}
}

// evaluateAll sets the compatibility of every offer with the final type. An offer that could
// not be reconciled may accept the final type; for the others, format returns the message.
func (n *negotiation) evaluateAll(format func(refused string) string) {
	for i, o := range n.offers {
		switch {
		case o.typ == nil:
			n.out[i] = compatibility{reason: v1alpha1.ReasonSchemaUnreadable, message: truncate("the cluster's schema of the type cannot be parsed: " + o.problem)}
		case n.typ == nil:
			if n.out[i].reason == "" {
				n.refuse(i, "there is no negotiated type to compare the cluster with")
			}
		case len(n.check(o)) == 0:
			n.out[i] = compatibility{compatible: true, reason: v1alpha1.ReasonSchemaAccepted, message: "the cluster accepts everything that the negotiated type accepts"}
		case n.out[i].reason == "":
			n.refuse(i, format(joinRefusals(n.check(o))))
		}
	}
}

// seedAndNarrow negotiates a type that is not published yet. Imports with UpdateNever are only
// compared with what the others agree on. If there are only such imports, the first of them
// defines the type.
func (n *negotiation) seedAndNarrow() {
	willing := n.distinct(func(o offer) bool { return o.strategy.Allows(false) })
	if len(willing) == 0 {
		willing = n.distinct(func(offer) bool { return true })
		willing = willing[:min(1, len(willing))]
	}
	n.intersect(willing, nil, "")
}

// narrowPublished narrows a published type by the imports that may do so.
func (n *negotiation) narrowPublished() {
	narrowing := n.distinct(func(o offer) bool { return o.strategy.Allows(true) && len(n.check(o)) > 0 })
	if len(narrowing) > 0 {
		n.intersect(narrowing, n.typ, "the cluster's schema cannot be reconciled with the published type")
	}
}

// distinct returns the distinct types of the offers that include selects.
func (n *negotiation) distinct(include func(offer) bool) (out []*schema.Type) {
	for _, o := range n.offers {
		if o.typ != nil && include(o) && !slices.Contains(out, o.typ) {
			out = append(out, o.typ)
		}
	}
	return out
}

// intersect sets typ to what the types have in common, starting with first if there is one, and
// refuses the offers that it had to omit. If why is empty, the message names the cluster that
// they disagree with.
func (n *negotiation) intersect(types []*schema.Type, first *schema.Type, why string) {
	if first != nil {
		types = slices.Insert(types, 0, first)
	}
	if len(types) == 0 {
		return
	}
	values := make([]schema.Type, len(types))
	for i, t := range types {
		values[i] = *t
	}
	result, refused := schema.Negotiate(values)
	if slices.ContainsFunc(refused, func(r []schema.Refusal) bool { return len(r) == 0 }) {
		n.typ = &result
	}
	clear(n.checked)
	if why == "" {
		why = fmt.Sprintf("the cluster's schema cannot be reconciled with that of cluster %s and those that agree with it", n.seed(types, refused))
	}
	for i, o := range n.offers {
		if at := slices.Index(types, o.typ); o.typ != nil && at >= 0 && o.typ != first && len(refused[at]) > 0 {
			n.refuse(i, fmt.Sprintf("%s: %s. Align the schemas; or, if the others should follow this one, delete their APIResourceImports: they are recreated and then rank after it",
				why, joinRefusals(refused[at])))
		}
	}
}

// seed returns the name of the cluster that seeded the negotiated type.
func (n *negotiation) seed(types []*schema.Type, refused [][]schema.Refusal) string {
	at := max(0, slices.IndexFunc(refused, func(r []schema.Refusal) bool { return len(r) == 0 }))
	return n.offers[slices.IndexFunc(n.offers, func(o offer) bool { return o.typ == types[at] })].cluster
}

// widen extends the published type to what all compatible clusters accept by now: for example a
// field that was missing only in the last cluster to be upgraded.
func (n *negotiation) widen() {
	fresh := &negotiation{checked: map[*schema.Type][]schema.Refusal{}}
	for i, o := range n.offers {
		if n.out[i].compatible {
			fresh.offers = append(fresh.offers, o)
		}
	}
	if len(fresh.offers) == 0 {
		return
	}
	fresh.out = make([]compatibility, len(fresh.offers))
	fresh.seedAndNarrow()
	fresh.evaluateAll(func(refused string) string { return refused })
	agreed := !slices.ContainsFunc(fresh.out, func(j compatibility) bool { return !j.compatible })
	if agreed && len(check(n.typ, fresh.typ)) == 0 {
		n.typ = fresh.typ
	}
}

const (
	// maxRefusals is how many refusals a message lists: after correcting these, the user sees
	// the next.
	maxRefusals = 5
	// maxMessageBytes is the maximum length of a message.
	maxMessageBytes = 1500
)

// joinRefusals lists the refused fields with the reasons.
func joinRefusals(refused []schema.Refusal) string {
	var lines []string
	for _, r := range refused[:min(maxRefusals, len(refused))] {
		lines = append(lines, r.String())
	}
	out := strings.Join(lines, "; ")
	if more := len(refused) - maxRefusals; more > 0 {
		out += fmt.Sprintf("; and %d more", more)
	}
	return out
}

// truncate limits the length of a message that contains text from clusters.
func truncate(message string) string {
	if len(message) <= maxMessageBytes {
		return message
	}
	return strings.ToValidUTF8(message[:maxMessageBytes], "") + "…"
}
