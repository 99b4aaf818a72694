package decide

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/msgpack"

	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/providerapi"
)

// sealed is the stored form of a decision with all its secrets. It is stored where state is stored,
// and never together with a Change.
type sealed struct {
	Version         int            `json:"version"`
	Address         change.Address `json:"address"`
	Action          change.Action  `json:"action"`
	Reason          change.Reason  `json:"reason,omitempty"`
	Detail          string         `json:"detail,omitempty"`
	CreateFirst     bool           `json:"createFirst,omitempty"`
	KeepOld         bool           `json:"keepOld,omitempty"`
	Importing       string         `json:"importing,omitempty"`
	Schema          int64          `json:"schema"` // schema version of the values
	Before          []byte         `json:"before"` // msgpack, of the resource's type
	BeforePrivate   []byte         `json:"beforePrivate,omitempty"`
	BeforeIdentity  []byte         `json:"beforeIdentity,omitempty"` // msgpack, with its type
	Tainted         bool           `json:"tainted,omitempty"`
	After           []byte         `json:"after"`
	Private         []byte         `json:"private,omitempty"`
	Identity        []byte         `json:"identity,omitempty"`
	Replace         []pathDoc      `json:"replace,omitempty"`
	Sensitive       []pathDoc      `json:"sensitive,omitempty"`
	BeforeSensitive []pathDoc      `json:"beforeSensitive,omitempty"`
}

const sealVersion = 1

// msgpackNull is null of any type.
var msgpackNull = []byte{0xc0}

// Seal encodes everything that Execute needs of the decision, including its secrets. The caller
// stores it encrypted, as it stores state. Permission to read a plan must not grant access to it.
func (d *Decision) Seal(schema *providerapi.Schema) ([]byte, error) {
	if d.Deferred != "" {
		return nil, fmt.Errorf("%s: a deferred decision cannot be sealed", d.Address)
	}
	ty := schema.Block.ImpliedType()
	s := sealed{
		Version: sealVersion, Address: d.Address, Action: d.Action, Reason: d.Reason, Detail: d.Detail,
		CreateFirst: d.CreateFirst, KeepOld: d.KeepOld, Importing: d.Importing, Schema: schema.Version,
		BeforePrivate: d.Before.Private, Tainted: d.Tainted, Private: d.Private,
	}
	var err error
	for _, v := range []struct {
		to   *[]byte
		what cty.Value
		ty   cty.Type
	}{{&s.Before, d.Before.Value, ty}, {&s.BeforeIdentity, d.Before.Identity, cty.DynamicPseudoType}, {&s.Identity, d.Identity, cty.DynamicPseudoType}} {
		packed, e := pack(v.what, v.ty)
		*v.to, err = packed, errors.Join(err, e)
	}
	after, e := d.Encoded(ty)
	s.After, err = after, errors.Join(err, e)
	for _, p := range []struct {
		to   *[]pathDoc
		from []cty.Path
	}{{&s.Replace, d.Replace}, {&s.Sensitive, d.Sensitive}, {&s.BeforeSensitive, d.BeforeSensitive}} {
		for _, path := range p.from {
			doc, e := writePath(path)
			err = errors.Join(err, e)
			*p.to = append(*p.to, doc)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: encode the decision: %w", d.Address, err)
	}
	return json.Marshal(s)
}

// Encoded returns After in msgpack, as a value of the resource's type. It is nil if After is not
// set.
func (d *Decision) Encoded(ty cty.Type) ([]byte, error) {
	if d.encoded != nil {
		return d.encoded, nil
	}
	return pack(d.After, ty)
}

func pack(v cty.Value, ty cty.Type) ([]byte, error) {
	switch {
	case v == cty.NilVal:
		return nil, nil
	case v.IsNull() && ty != cty.DynamicPseudoType:
		return msgpackNull, nil // avoids comparing a type with many attributes
	}
	return msgpack.Marshal(v, ty)
}

// Open decodes a sealed decision. The schema must have the version that it was sealed with.
func Open(text []byte, schema *providerapi.Schema) (*Decision, error) {
	var s sealed
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, fmt.Errorf("decode a sealed decision: %w", err)
	}
	if s.Version != sealVersion {
		return nil, fmt.Errorf("%s: the decision was sealed by another version of Atoll (format %d, want %d): create a new plan", s.Address, s.Version, sealVersion)
	}
	if s.Schema != schema.Version {
		return nil, &Error{Address: s.Address, Kind: ErrStale, Remedy: "create a new plan", Problems: []Problem{{
			Text: fmt.Sprintf("it was planned with schema version %d, but the provider has version %d", s.Schema, schema.Version)}}}
	}
	ty := schema.Block.ImpliedType()
	d := &Decision{
		Address: s.Address, Action: s.Action, Reason: s.Reason, Detail: s.Detail, CreateFirst: s.CreateFirst, KeepOld: s.KeepOld,
		Importing: s.Importing, Tainted: s.Tainted, Private: s.Private, Before: providerapi.State{Private: s.BeforePrivate},
	}
	var err error
	unpack := func(text []byte, ty cty.Type) cty.Value {
		if len(text) == 0 || err != nil {
			return cty.NilVal
		}
		var v cty.Value
		v, err = msgpack.Unmarshal(text, ty)
		return v
	}
	d.Before.Value, d.After = unpack(s.Before, ty), unpack(s.After, ty)
	d.Before.Identity, d.Identity = unpack(s.BeforeIdentity, cty.DynamicPseudoType), unpack(s.Identity, cty.DynamicPseudoType)
	for _, p := range []struct {
		to   *[]cty.Path
		from []pathDoc
	}{{&d.Replace, s.Replace}, {&d.Sensitive, s.Sensitive}, {&d.BeforeSensitive, s.BeforeSensitive}} {
		for _, doc := range p.from {
			path, e := doc.read()
			err = errors.Join(err, e)
			*p.to = append(*p.to, path)
		}
	}
	if err == nil && (d.Before.Value == cty.NilVal || d.After == cty.NilVal) {
		err = errors.New("it has no values")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: decode a sealed decision: %w", s.Address, err)
	}
	return d, nil
}

// pathDoc is the stored form of a path.
type pathDoc []stepDoc

// stepDoc is one step: an attribute's name, or an element's key in msgpack with its type.
type stepDoc struct {
	Name string `json:"name,omitempty"`
	Key  []byte `json:"key,omitempty"`
}

func writePath(path cty.Path) (pathDoc, error) {
	doc := make(pathDoc, 0, len(path))
	for _, s := range path {
		switch s := s.(type) {
		case cty.GetAttrStep:
			doc = append(doc, stepDoc{Name: s.Name})
		case cty.IndexStep:
			key, err := msgpack.Marshal(s.Key, cty.DynamicPseudoType)
			if err != nil {
				return nil, err
			}
			doc = append(doc, stepDoc{Key: key})
		}
	}
	return doc, nil
}

func (doc pathDoc) read() (cty.Path, error) {
	path := make(cty.Path, 0, len(doc))
	for _, s := range doc {
		if s.Key == nil {
			path = append(path, cty.GetAttrStep{Name: s.Name})
			continue
		}
		key, err := msgpack.Unmarshal(s.Key, cty.DynamicPseudoType)
		if err != nil {
			return nil, err
		}
		path = append(path, cty.IndexStep{Key: key})
	}
	return path, nil
}

// SealDigest binds a Change to its sealed decision. It is keyed, so that secrets cannot be guessed
// from a Change.
func SealDigest(salt, sealed []byte) string { return change.KeyedDigest(salt, "sealed", "", sealed) }
