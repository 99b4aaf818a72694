package plan

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/contract"
)

// Change is a decision as it may be seen by whoever may see the plan: stored, shown, judged by
// policies, approved. There is no secret in it. Encoded as JSON it is canonical: the
// same decision gives the same bytes.
type Change struct {
	Address     Address `json:"address"`
	Action      Action  `json:"action"`
	Reason      Reason  `json:"reason,omitempty"`
	Detail      string  `json:"detail,omitempty"`
	CreateFirst bool    `json:"createFirst,omitempty"`
	Importing   string  `json:"importing,omitempty"`
	Deferred    string  `json:"deferred,omitempty"`
	// Before and After are there if there is something to do, and not null.
	Before *Value `json:"before,omitempty"`
	After  *Value `json:"after,omitempty"`
	// Fields is what differs between the two.
	Fields []Field `json:"fields,omitempty"`
	// Drift is what changed behind our back since the last time, whatever is to be done about it.
	Drift *Difference `json:"drift,omitempty"`
	// Shapes tells of the values what JSON does not, by path: with [] for the position or key of
	// any element, as in rules[].ports.
	Shapes map[string]Shape `json:"shapes,omitempty"`
	// Uses are the Secrets that a workload needs.
	Uses []string `json:"uses,omitempty"`
	// Preconditions have to be true when it is carried out. They are the caller's.
	Preconditions []string `json:"preconditions,omitempty"`
	// Was is the spec that was last carried out, if it is known: what a later rollback goes back to. Nothing secret stands in a
	// spec.
	Was json.RawMessage `json:"was,omitempty"`
	// Writes is the spec that is written back before this is carried out, in a rollback: null deletes the object.
	Writes json.RawMessage `json:"writes,omitempty"`
	// Sealed binds the sealed part: SealDigest of it.
	Sealed string `json:"sealed,omitempty"`
}

// Difference is two values and what differs.
type Difference struct {
	Before *Value  `json:"before,omitempty"`
	After  *Value  `json:"after,omitempty"`
	Fields []Field `json:"fields,omitempty"`
}

// Value is a value as JSON. Where something is unknown or secret it has null, and the place is
// listed. Attributes that are null are left out. Sets are arrays in an order that says nothing.
type Value struct {
	JSON      json.RawMessage `json:"value"`
	Unknown   []string        `json:"unknown,omitempty"`
	Sensitive []Secret        `json:"sensitive,omitempty"`
}

// Secret is that there is one, and a keyed digest by which a change of it is noticed.
type Secret struct {
	Path string `json:"path"`
	// Digest is empty if the secret is not known yet.
	Digest string `json:"digest,omitempty"`
}

// Kind is how a field changes.
type Kind string

const (
	Added   Kind = "add"
	Removed Kind = "remove"
	Changed Kind = "change"
	// Unknown is a change to what is not known yet, which may turn out to be none.
	Unknown Kind = "unknown"
)

// Field is one value that changes.
type Field struct {
	// Path of it in the value after, or in the one before if it is removed: in the way of
	// rules[0].port and tags["Name"].
	Path string `json:"path"`
	Kind Kind   `json:"kind"`
	// Before and After are as in Value, and left out if null.
	Before json.RawMessage `json:"before,omitempty"`
	After  json.RawMessage `json:"after,omitempty"`
	// Sensitive says that there is something secret in it, which is not shown.
	Sensitive bool `json:"sensitive,omitempty"`
	// ForcesReplacement says that this is why there has to be a new resource.
	ForcesReplacement bool `json:"forcesReplacement,omitempty"`
	// From are the references that it comes from.
	From []string `json:"from,omitempty"`
}

// Showing is what a Change has that a Decision does not.
type Showing struct {
	// Salt keys the digests of secrets: at least 16 random bytes. It is kept with sealed parts, and never where
	// a Change is: who has both can try out whether he guesses a secret. Two plans with
	// different salts cannot be compared by their digests.
	Salt []byte
	// Origins are the references that arguments come from, by the field of the spec that they are written in: labels[z], rule[0].port.
	Origins map[string]string
	// Preconditions go into the change as they are.
	Preconditions []string
	// Was and Writes go into the change as they are.
	Was, Writes json.RawMessage
	// Sealed is the sealed part, if there is one.
	Sealed []byte
}

// Change is what may be seen of the decision.
func (d *Decision) Change(schema *contract.Schema, show Showing) (*Change, error) {
	if len(show.Salt) < 16 {
		return nil, errors.New("without a salt of 16 bytes or more, a plan would give away its secrets to whoever tries")
	}
	c := &Change{
		Address: d.Address, Action: d.Action, Reason: d.Reason, Detail: d.Detail, CreateFirst: d.CreateFirst,
		Importing: d.Importing, Deferred: d.Deferred, Preconditions: show.Preconditions,
		Was: show.Was, Writes: show.Writes,
	}
	if show.Sealed != nil {
		c.Sealed = SealDigest(show.Salt, show.Sealed)
	}
	// What is secret on either side is so on both: a value that becomes secret must not be shown once more.
	w := &drawing{salt: show.Salt, where: d.Address.String(), secrets: slices.Concat(d.Sensitive, d.BeforeSensitive), shapes: map[string]Shape{}}
	block := &schema.Block
	if d.Drift != nil {
		c.Drift = &Difference{}
		was, is := w.draw(block, d.Drift.Before), w.draw(block, d.Drift.After)
		c.Drift.Before, c.Drift.After = was.value(), is.value()
		c.Drift.Fields = compared(was, is, "").fields(nil, show.Origins)
	}
	if d.Action != NoOp {
		was, is := w.draw(block, d.Before.Value), w.draw(block, d.After)
		c.Before, c.After = was.value(), is.value()
		c.Fields = compared(was, is, "").fields(d.Replace, show.Origins)
	}
	if len(w.shapes) > 0 {
		c.Shapes = maps.Clone(w.shapes)
	}
	return c, w.err
}

func (n *node) value() *Value {
	if n.null() {
		return nil
	}
	v := &Value{}
	var b bytes.Buffer
	n.write(&b, "", v)
	v.JSON = b.Bytes()
	return v
}

func (n *node) json() json.RawMessage {
	if n.null() || n.kind == unknownNode || n.kind == secretNode {
		return nil
	}
	var b bytes.Buffer
	n.write(&b, "", &Value{})
	return b.Bytes()
}

// fields lists what differs. Attributes that force a replacement and show no difference, because
// they are write-only, come last.
func (d *delta) fields(replace []cty.Path, origins map[string]string) []Field {
	forcing := make([]string, 0, len(replace))
	for _, p := range replace {
		forcing = append(forcing, PathText(p))
	}
	sources := slices.Sorted(maps.Keys(origins))
	var out []Field
	if d != nil && d.sign != ' ' {
		out = make([]Field, 0, len(d.of)+len(forcing))
	}
	shown := make([]bool, len(forcing))
	d.each(nil, func(within []*delta, d *delta) {
		f := Field{
			Path: d.path, Kind: d.kind(), Before: d.before.json(), After: d.after.json(),
			Sensitive: d.before.contains(secretNode) || d.after.contains(secretNode),
		}
		for i, p := range forcing {
			if related(p, d.path) {
				f.ForcesReplacement, shown[i] = true, true
			}
		}
		if d.sign != '-' && len(sources) > 0 {
			f.From = comesFrom(within, d, sources, origins)
		}
		out = append(out, f)
	})
	for i, p := range forcing {
		if !shown[i] {
			out = append(out, Field{Path: p, Kind: Changed, Sensitive: true, ForcesReplacement: true})
		}
	}
	return out
}

// comesFrom are the references that are written in what differs.
func comesFrom(within []*delta, d *delta, sources []string, origins map[string]string) (from []string) {
	at, alone, known := written(within, d)
	if !known {
		return nil
	}
	for _, p := range sources {
		if related(p, at) || related(p, alone) {
			from = append(from, origins[p])
		}
	}
	return from
}

// related tells whether one path is within the other.
func related(a, b string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	return strings.HasPrefix(b, a) && (a == "" || len(a) == len(b) || b[len(a)] == '.' || b[len(a)] == '[')
}

// Encode gives the canonical bytes.
func (c *Change) Encode() ([]byte, error) { return json.Marshal(c) }

// Digest is over the canonical bytes.
func (c *Change) Digest() ([32]byte, error) {
	text, err := c.Encode()
	if err != nil {
		return [32]byte{}, err
	}
	return sha256.Sum256(text), nil
}
