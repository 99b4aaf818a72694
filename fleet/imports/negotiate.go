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
	// typ is shared by offers that say the same, and nil if it cannot be understood.
	typ      *schema.Type
	problem  string // why not
	strategy v1alpha1.SchemaUpdateStrategy
}

// standing is what the control plane has of that version already.
type standing struct {
	typ *schema.Type
	// enforced: somebody else defines the type; published: the fleet does.
	enforced, published bool
	// frozen: what is published must not change now.
	frozen bool
	// by says who enforces it, and remedy what to do so that it can be met, for people.
	by, remedy string
}

// judgement is whether a cluster accepts all that the negotiated type does.
type judgement struct {
	compatible      bool
	reason, message string
}

// negotiate finds what the clusters have in common, and who accepts it. Offers come in
// the order in which they were made: the first seeds, the later ones narrow. What
// a type is to be may be nil: then nothing is known that could be agreed on.
func negotiate(has standing, offers []offer) (*schema.Type, []judgement) {
	n := &negotiation{offers: offers, out: make([]judgement, len(offers)), checked: map[*schema.Type][]schema.Refusal{}}
	switch {
	case has.enforced:
		n.typ = has.typ
		n.judgeAll(func(refused string) string {
			return fmt.Sprintf("%s defines the type, and the cluster does not accept all that it does: %s. %s", has.by, refused, has.remedy)
		})
	case has.published:
		n.typ = has.typ
		if !has.frozen {
			n.narrowPublished()
		}
		n.judgeAll(func(refused string) string {
			return "the cluster does not accept all that the published type does, and its import may not narrow it unless its schemaUpdateStrategy is UpdatePublished: " + refused
		})
		if !has.frozen {
			n.widen()
		}
	default:
		n.seedAndNarrow()
		n.judgeAll(func(refused string) string {
			return "the cluster does not accept all that the negotiated type does, and its import is not to narrow it (schemaUpdateStrategy UpdateNever): " + refused
		})
	}
	return n.typ, n.out
}

type negotiation struct {
	offers []offer
	out    []judgement

	typ *schema.Type
	// checked remembers what stands against typ, by what is offered.
	checked map[*schema.Type][]schema.Refusal
}

// check tells what stands against a cluster's accepting all that typ does.
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
	n.out[i] = judgement{reason: v1alpha1.ReasonSchemaIncompatible, message: bounded(message)}
}

// judgeAll judges every offer by what became of the type. One that could not be
// reconciled may accept what it is now; of others say makes a sentence.
func (n *negotiation) judgeAll(say func(refused string) string) {
	for i, o := range n.offers {
		switch {
		case o.typ == nil:
			n.out[i] = judgement{reason: v1alpha1.ReasonSchemaUnreadable, message: bounded("the cluster's schema of the type cannot be understood: " + o.problem)}
		case n.typ == nil:
			if n.out[i].reason == "" {
				n.refuse(i, "nothing is negotiated that the cluster could be compared with")
			}
		case len(n.check(o)) == 0:
			n.out[i] = judgement{compatible: true, reason: v1alpha1.ReasonSchemaAccepted, message: "the cluster accepts everything that the negotiated type does"}
		case n.out[i].reason == "":
			n.refuse(i, say(quote(n.check(o))))
		}
	}
}

// seedAndNarrow negotiates a type that nobody relies on yet. Imports that are never to
// narrow it are compared with what the others agree on; if there are no others, the
// first of them says what the type is.
func (n *negotiation) seedAndNarrow() {
	willing := n.distinct(func(o offer) bool { return o.strategy.Allows(false) })
	if len(willing) == 0 {
		willing = n.distinct(func(offer) bool { return true })
		willing = willing[:min(1, len(willing))]
	}
	n.agree(willing, nil, "")
}

// narrowPublished narrows a type that people use, where imports may do so.
func (n *negotiation) narrowPublished() {
	narrowing := n.distinct(func(o offer) bool { return o.strategy.Allows(true) && len(n.check(o)) > 0 })
	if len(narrowing) > 0 {
		n.agree(narrowing, n.typ, "what the cluster serves cannot be reconciled with the published type")
	}
}

// distinct gives what is offered, each once, by those that are asked for.
func (n *negotiation) distinct(ask func(offer) bool) (out []*schema.Type) {
	for _, o := range n.offers {
		if o.typ != nil && ask(o) && !slices.Contains(out, o.typ) {
			out = append(out, o.typ)
		}
	}
	return out
}

// agree makes typ what these have in common, beginning with first if there is one, and
// says why of those that it had to leave out. Without words of the caller's it names
// whom they do not agree with.
func (n *negotiation) agree(types []*schema.Type, first *schema.Type, why string) {
	if first != nil {
		types = slices.Insert(types, 0, first)
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
		why = fmt.Sprintf("what the cluster serves cannot be reconciled with what cluster %s does, and those that agree with it", n.seed(types, refused))
	}
	for i, o := range n.offers {
		if at := slices.Index(types, o.typ); o.typ != nil && at >= 0 && o.typ != first && len(refused[at]) > 0 {
			n.refuse(i, fmt.Sprintf("%s: %s. Make the schemas alike; or, if the others should follow this one, delete their APIResourceImports: they are made anew, and come after it",
				why, quote(refused[at])))
		}
	}
}

// seed names the cluster that what is negotiated began with.
func (n *negotiation) seed(types []*schema.Type, refused [][]schema.Refusal) string {
	at := max(0, slices.IndexFunc(refused, func(r []schema.Refusal) bool { return len(r) == 0 }))
	return n.offers[slices.IndexFunc(n.offers, func(o offer) bool { return o.typ == types[at] })].cluster
}

// widen gives people what all clusters that are compatible have come to accept in
// the meantime: a field that only the last to be upgraded did not know.
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
	fresh.out = make([]judgement, len(fresh.offers))
	fresh.seedAndNarrow()
	fresh.judgeAll(func(refused string) string { return refused })
	agreed := !slices.ContainsFunc(fresh.out, func(j judgement) bool { return !j.compatible })
	if agreed && len(check(n.typ, fresh.typ)) == 0 {
		n.typ = fresh.typ
	}
}

const (
	// quoted is how many refusals a message tells: whoever puts these right sees the next.
	quoted = 5
	// longest is how long a message may be, in bytes.
	longest = 1500
)

// quote tells what was refused, where and why.
func quote(refused []schema.Refusal) string {
	var said []string
	for _, r := range refused[:min(quoted, len(refused))] {
		said = append(said, r.String())
	}
	out := strings.Join(said, "; ")
	if more := len(refused) - quoted; more > 0 {
		out += fmt.Sprintf("; and %d more", more)
	}
	return out
}

// bounded cuts a message that carries what clusters say.
func bounded(message string) string {
	if len(message) <= longest {
		return message
	}
	return strings.ToValidUTF8(message[:longest], "") + "…"
}
