package change

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/providerapi"
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
	// KeepOld: a replacement leaves the old resource in place and forgets it.
	KeepOld   bool   `json:"keepOld,omitempty"`
	Importing string `json:"importing,omitempty"`
	// MovedFrom is the address that the resource had before. MovedTo is where a released resource goes.
	MovedFrom *Address `json:"movedFrom,omitempty"`
	MovedTo   *Address `json:"movedTo,omitempty"`
	Deferred  string   `json:"deferred,omitempty"`
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

func (n *Node) Value() *Value {
	if n.IsNull() {
		return nil
	}
	v := &Value{}
	var b bytes.Buffer
	n.write(&b, "", v)
	v.JSON = b.Bytes()
	return v
}

func (n *Node) json() json.RawMessage {
	if n.IsNull() || n.Kind == UnknownNode || n.Kind == SecretNode {
		return nil
	}
	var b bytes.Buffer
	n.write(&b, "", &Value{})
	return b.Bytes()
}

// Fields lists the differences. Attributes that force a replacement but show no difference, because
// they are write-only, come last.
func (d *Delta) Fields(replace []cty.Path, origins map[string]string) []Field {
	forcing := make([]string, 0, len(replace))
	for _, p := range replace {
		forcing = append(forcing, providerapi.PathText(p))
	}
	sources := slices.Sorted(maps.Keys(origins))
	var out []Field
	if d != nil && d.Sign != ' ' {
		out = make([]Field, 0, len(d.Children)+len(forcing))
	}
	shown := make([]bool, len(forcing))
	d.each(nil, func(within []*Delta, d *Delta) {
		f := Field{
			Path: d.Path, Action: d.action(), Before: d.Before.json(), After: d.After.json(),
			Sensitive: d.Before.contains(SecretNode) || d.After.contains(SecretNode),
		}
		for i, p := range forcing {
			if overlaps(p, d.Path) {
				f.ForcesReplacement, shown[i] = true, true
			}
		}
		if d.Sign != '-' && len(sources) > 0 {
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
func originsOf(within []*Delta, d *Delta, sources []string, origins map[string]string) (from []string) {
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

// IndexedAction returns the action under which the change is counted and found.
func (c *Change) IndexedAction() Action {
	if c.Deferred != "" {
		return Deferred
	}
	return c.Action
}

// Deferred is not an action of a Change. Changes without a decision are counted and found under it.
const Deferred Action = "deferred"
