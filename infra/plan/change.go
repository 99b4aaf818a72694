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

// Change is the public form of a decision: it is stored, shown, checked by policies and approved.
// It is as visible as its plan, so it has no secrets. Its JSON encoding is canonical: the same
// decision gives the same bytes.
type Change struct {
	Address     Address `json:"address"`
	Action      Action  `json:"action"`
	Reason      Reason  `json:"reason,omitempty"`
	Detail      string  `json:"detail,omitempty"`
	CreateFirst bool    `json:"createFirst,omitempty"`
	Importing   string  `json:"importing,omitempty"`
	Deferred    string  `json:"deferred,omitempty"`
	// Before and After are set if the action is not a no-op and the value is not null.
	Before *Value `json:"before,omitempty"`
	After  *Value `json:"after,omitempty"`
	// Fields lists the differences between Before and After.
	Fields []Field `json:"fields,omitempty"`
	// Drift is the change that was made outside of Atoll since the last refresh, whatever the
	// action is.
	Drift *Difference `json:"drift,omitempty"`
	// Shapes records, by path, the collection types that JSON cannot express. In a path, [] stands
	// for any position or key, as in rules[].ports.
	Shapes map[string]Shape `json:"shapes,omitempty"`
	// Uses lists the Secrets that a workload needs.
	Uses []string `json:"uses,omitempty"`
	// Preconditions must hold when the change is applied. The caller defines and checks them.
	Preconditions []string `json:"preconditions,omitempty"`
	// PriorSpec is the spec that was last applied, if it is known. A later rollback restores it. A
	// spec contains no secrets.
	PriorSpec json.RawMessage `json:"was,omitempty"`
	// RestoreSpec is the spec that a rollback writes back before it applies the change. Null
	// deletes the object.
	RestoreSpec json.RawMessage `json:"writes,omitempty"`
	// Sealed is the SealDigest of the sealed decision, which binds it to this change.
	Sealed string `json:"sealed,omitempty"`
}

// Difference is a pair of values and the fields in which they differ.
type Difference struct {
	Before *Value  `json:"before,omitempty"`
	After  *Value  `json:"after,omitempty"`
	Fields []Field `json:"fields,omitempty"`
}

// Value is a value as JSON. Unknown and secret values are null in it, and their paths are listed.
// Null attributes are left out. Sets are arrays in an order without meaning.
type Value struct {
	JSON      json.RawMessage `json:"value"`
	Unknown   []string        `json:"unknown,omitempty"`
	Sensitive []Secret        `json:"sensitive,omitempty"`
}

// Secret is the place of a secret value, with a keyed digest that shows whether the secret changed.
type Secret struct {
	Path string `json:"path"`
	// Digest is empty if the secret is not known yet.
	Digest string `json:"digest,omitempty"`
}

// FieldAction says how a field changes.
type FieldAction string

const (
	FieldAdded   FieldAction = "add"
	FieldRemoved FieldAction = "remove"
	FieldChanged FieldAction = "change"
	// FieldUnknown is a change to a value that is not known yet. It may turn out to be no change.
	FieldUnknown FieldAction = "unknown"
)

// Field is one value that changes.
type Field struct {
	// Path is the path in After, or in Before if the field is removed, such as rules[0].port or
	// tags["Name"].
	Path   string      `json:"path"`
	Action FieldAction `json:"kind"`
	// Before and After are encoded as in Value. Null is left out.
	Before json.RawMessage `json:"before,omitempty"`
	After  json.RawMessage `json:"after,omitempty"`
	// Sensitive reports whether the field contains a secret, which is not shown.
	Sensitive bool `json:"sensitive,omitempty"`
	// ForcesReplacement reports whether this field is a reason for the replacement.
	ForcesReplacement bool `json:"forcesReplacement,omitempty"`
	// From lists the references that the value comes from.
	From []string `json:"from,omitempty"`
}

// ChangeOptions are the parts of a Change that a Decision does not have.
type ChangeOptions struct {
	// Salt keys the digests of secrets: at least 16 random bytes. It is stored with sealed
	// decisions and never with changes, because both together allow testing guesses of a secret.
	// Digests of plans with different salts cannot be compared.
	Salt []byte
	// Origins maps the field of the spec in which a reference is written, such as labels[z] or
	// rule[0].port, to that reference.
	Origins map[string]string
	// Preconditions are copied into the change.
	Preconditions []string
	// PriorSpec and RestoreSpec are copied into the change.
	PriorSpec, RestoreSpec json.RawMessage
	// Sealed is the sealed decision, if there is one.
	Sealed []byte
}

// Change returns the public form of the decision.
func (d *Decision) Change(schema *contract.Schema, show ChangeOptions) (*Change, error) {
	if len(show.Salt) < 16 {
		return nil, errors.New("the salt must have at least 16 bytes, or the plan's digests would reveal its secrets")
	}
	c := &Change{
		Address: d.Address, Action: d.Action, Reason: d.Reason, Detail: d.Detail, CreateFirst: d.CreateFirst,
		Importing: d.Importing, Deferred: d.Deferred, Preconditions: show.Preconditions,
		PriorSpec: show.PriorSpec, RestoreSpec: show.RestoreSpec,
	}
	if show.Sealed != nil {
		c.Sealed = SealDigest(show.Salt, show.Sealed)
	}
	// A value that is secret before or after is masked on both sides: one that becomes secret must not be shown again.
	w := &nodeBuilder{salt: show.Salt, address: d.Address.String(), secrets: slices.Concat(d.Sensitive, d.BeforeSensitive), shapes: map[string]Shape{}}
	block := &schema.Block
	if d.Drift != nil {
		c.Drift = &Difference{}
		was, is := w.build(block, d.Drift.Before), w.build(block, d.Drift.After)
		c.Drift.Before, c.Drift.After = was.value(), is.value()
		c.Drift.Fields = diff(was, is, "").fields(nil, show.Origins)
	}
	if d.Action != NoOp {
		was, is := w.build(block, d.Before.Value), w.build(block, d.After)
		c.Before, c.After = was.value(), is.value()
		c.Fields = diff(was, is, "").fields(d.Replace, show.Origins)
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

// fields lists the differences. Attributes that force a replacement but show no difference, because
// they are write-only, come last.
func (d *delta) fields(replace []cty.Path, origins map[string]string) []Field {
	forcing := make([]string, 0, len(replace))
	for _, p := range replace {
		forcing = append(forcing, PathText(p))
	}
	sources := slices.Sorted(maps.Keys(origins))
	var out []Field
	if d != nil && d.sign != ' ' {
		out = make([]Field, 0, len(d.children)+len(forcing))
	}
	shown := make([]bool, len(forcing))
	d.each(nil, func(within []*delta, d *delta) {
		f := Field{
			Path: d.path, Action: d.action(), Before: d.before.json(), After: d.after.json(),
			Sensitive: d.before.contains(secretNode) || d.after.contains(secretNode),
		}
		for i, p := range forcing {
			if overlaps(p, d.path) {
				f.ForcesReplacement, shown[i] = true, true
			}
		}
		if d.sign != '-' && len(sources) > 0 {
			f.From = originsOf(within, d, sources, origins)
		}
		out = append(out, f)
	})
	for i, p := range forcing {
		if !shown[i] {
			out = append(out, Field{Path: p, Action: FieldChanged, Sensitive: true, ForcesReplacement: true})
		}
	}
	return out
}

// originsOf returns the references that are written within the difference.
func originsOf(within []*delta, d *delta, sources []string, origins map[string]string) (from []string) {
	at, alone, known := specPath(within, d)
	if !known {
		return nil
	}
	for _, p := range sources {
		if overlaps(p, at) || overlaps(p, alone) {
			from = append(from, origins[p])
		}
	}
	return from
}

// overlaps reports whether one path is within the other.
func overlaps(a, b string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	return strings.HasPrefix(b, a) && (a == "" || len(a) == len(b) || b[len(a)] == '.' || b[len(a)] == '[')
}

// Encode returns the canonical JSON.
func (c *Change) Encode() ([]byte, error) { return json.Marshal(c) }

// Digest returns the SHA-256 of the canonical JSON.
func (c *Change) Digest() ([32]byte, error) {
	text, err := c.Encode()
	if err != nil {
		return [32]byte{}, err
	}
	return sha256.Sum256(text), nil
}
