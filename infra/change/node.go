package change

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/msgpack"

	"github.com/atoll-dev/atoll/infra/providerapi"
)

// Node is a value that can be shown. Secrets are replaced by a digest.
type Node struct {
	Kind  nodeKind
	Shape Shape
	Raw   json.RawMessage // encoded leaf
	// secret is the digest of a secret.
	secret   string
	names    []string // names of an object's members, sorted
	Children []*Node  // elements of a list, attributes of an object
}

// sharedNull and sharedUnknown stand for all null and all unknown values. They are never changed.
var sharedNull, sharedUnknown = &Node{}, &Node{Kind: UnknownNode}

type nodeKind int

const (
	nullNode nodeKind = iota
	UnknownNode
	SecretNode
	LeafNode
	ListNode
	ObjectNode
)

// Shape is the collection type of a value that JSON cannot express. Lists and objects need none.
type Shape string

const (
	ShapeSet       Shape = "set"
	ShapeMap       Shape = "map"
	ShapeBlock     Shape = "block"
	ShapeBlockList Shape = "block list"
	ShapeBlockSet  Shape = "block set"
	ShapeBlockMap  Shape = "block map"
)

func (s Shape) IsBlock() bool {
	return s == ShapeBlock || s == ShapeBlockList || s == ShapeBlockSet || s == ShapeBlockMap
}

func (s Shape) IsSet() bool { return s == ShapeSet || s == ShapeBlockSet }

func (s Shape) IsKeyed() bool { return s == ShapeMap || s == ShapeBlockMap }

// Builder turns values into nodes.
type Builder struct {
	Salt    []byte
	Address string // the address: equal secrets of two resources get different digests
	Secrets []cty.Path
	Shapes  map[string]Shape
	Err     error
}

// Build converts a value of the block's type.
func (w *Builder) Build(block *providerapi.Block, v cty.Value) *Node {
	if v == cty.NilVal || v.IsNull() {
		return sharedNull
	}
	return w.object(providerapi.BlockLevel(block), v, nil, "")
}

// object leaves out null attributes, as most attributes of most resources are.
func (w *Builder) object(l providerapi.Level, v cty.Value, path cty.Path, pattern string) *Node {
	if n := w.opaque(v, path, pattern); n != nil {
		return n
	}
	out := &Node{Kind: ObjectNode}
	add := func(name string, one *Node) {
		if !one.IsNull() {
			out.names, out.Children = append(out.names, name), append(out.Children, one)
		}
	}
	for i := range l.Attributes {
		a := &l.Attributes[i]
		if of := v.GetAttr(a.Name); !of.IsNull() {
			add(a.Name, w.attribute(a, of, w.below(path, a.Name), joined(pattern, a.Name)))
		}
	}
	for i := range l.Blocks {
		n := &l.Blocks[i]
		if of := v.GetAttr(n.Name); !of.IsNull() {
			add(n.Name, w.nested(n.Nesting, providerapi.BlockLevel(&n.Block), of, w.below(path, n.Name), joined(pattern, n.Name), true))
		}
	}
	return out.sorted()
}

// below returns the path of an attribute. Paths are only compared with those of secrets, so without
// secrets there is no path.
func (w *Builder) below(path cty.Path, name string) cty.Path {
	if len(w.Secrets) == 0 {
		return nil
	}
	return append(slices.Clip(path), cty.GetAttrStep{Name: name})
}

func joined(pattern, name string) string {
	if pattern == "" {
		return providerapi.NameText(name)
	}
	return pattern + "." + providerapi.NameText(name)
}

func (w *Builder) attribute(a *providerapi.Attribute, v cty.Value, path cty.Path, pattern string) *Node {
	switch {
	case a.WriteOnly:
		return sharedNull
	case a.Sensitive && !v.IsNull():
		return w.secret(v, pattern)
	case a.Nested != nil:
		return w.nested(a.Nested.Nesting, providerapi.ObjectLevel(a.Nested), v, path, pattern, false)
	}
	return w.value(v, path, pattern)
}

func (w *Builder) nested(nesting providerapi.Nesting, l providerapi.Level, v cty.Value, path cty.Path, pattern string, block bool) *Node {
	if n := w.opaque(v, path, pattern); n != nil {
		return n
	}
	shape := nestedShape(nesting, block)
	if nesting == providerapi.NestingSingle || nesting == providerapi.NestingGroup {
		one := w.object(l, v, path, pattern)
		if nesting == providerapi.NestingGroup && !slices.ContainsFunc(one.Children, func(n *Node) bool { return !n.IsNull() }) {
			return sharedNull // a group is never null, so an empty one was not configured
		}
		return w.shaped(one, pattern, shape)
	}
	return w.collection(v, path, pattern, shape, func(v cty.Value, path cty.Path, pattern string) *Node {
		return w.object(l, v, path, pattern)
	})
}

func nestedShape(nesting providerapi.Nesting, block bool) Shape {
	shapes := map[providerapi.Nesting][2]Shape{
		providerapi.NestingSingle: {"", ShapeBlock}, providerapi.NestingGroup: {"", ShapeBlock}, providerapi.NestingList: {"", ShapeBlockList},
		providerapi.NestingSet: {ShapeSet, ShapeBlockSet}, providerapi.NestingMap: {ShapeMap, ShapeBlockMap},
	}
	if block {
		return shapes[nesting][1]
	}
	return shapes[nesting][0]
}

// value converts a value that the schema describes by its type only.
func (w *Builder) value(v cty.Value, path cty.Path, pattern string) *Node {
	if n := w.opaque(v, path, pattern); n != nil {
		return n
	}
	ty := v.Type()
	switch {
	case ty.IsObjectType():
		l := providerapi.Level{}
		for name, of := range ty.AttributeTypes() {
			l.Attributes = append(l.Attributes, providerapi.Attribute{Name: name, Type: of})
		}
		return w.object(l, v, path, pattern)
	case ty.IsMapType():
		return w.collection(v, path, pattern, ShapeMap, w.value)
	case ty.IsSetType():
		return w.collection(v, path, pattern, ShapeSet, w.value)
	case ty.IsListType() || ty.IsTupleType():
		return w.collection(v, path, pattern, "", w.value)
	}
	return w.leaf(v)
}

// opaque returns the node of a null, secret or unknown value, and nil for any other value.
func (w *Builder) opaque(v cty.Value, path cty.Path, pattern string) *Node {
	switch {
	case v.IsKnown() && v.IsNull():
		return sharedNull
	case len(w.Secrets) > 0 && slices.ContainsFunc(w.Secrets, path.Equals):
		return w.secret(v, pattern)
	case !v.IsKnown():
		return sharedUnknown
	}
	return nil
}

// secret returns a node that only has a digest. The digest covers the value's path without list
// positions, so that equal secrets in different places get different digests.
func (w *Builder) secret(v cty.Value, pattern string) *Node {
	out := &Node{Kind: SecretNode}
	if !v.IsWhollyKnown() {
		return out
	}
	packed, err := msgpack.Marshal(v, v.Type())
	if err != nil {
		w.Err = fmt.Errorf("%s: cannot encode a secret", pattern)
		return out
	}
	out.secret = KeyedDigest(w.Salt, "secret", w.Address+"\x00"+pattern, packed)
	return out
}

func (w *Builder) leaf(v cty.Value) *Node {
	var text []byte
	var err error
	switch v.Type() {
	case cty.String:
		text, err = json.Marshal(v.AsString())
	case cty.Number:
		text = []byte(v.AsBigFloat().Text('f', -1))
	case cty.Bool:
		text = []byte(strconv.FormatBool(v.True()))
	default:
		err = fmt.Errorf("cannot show a value of type %s", v.Type().FriendlyName())
	}
	if err != nil {
		w.Err = err
		return sharedNull
	}
	return &Node{Kind: LeafNode, Raw: text}
}

func (w *Builder) collection(v cty.Value, path cty.Path, pattern string, shape Shape, one func(cty.Value, cty.Path, string) *Node) *Node {
	out := &Node{Kind: ListNode}
	named := v.Type().IsMapType() || v.Type().IsObjectType()
	if named {
		out.Kind = ObjectNode
	}
	for it := v.ElementIterator(); it.Next(); {
		key, of := it.Element()
		if named {
			out.names = append(out.names, key.AsString())
		}
		at := path
		if len(w.Secrets) > 0 {
			at = append(slices.Clip(path), cty.IndexStep{Key: key})
		}
		out.Children = append(out.Children, one(of, at, pattern+"[]"))
	}
	if shape.IsSet() {
		// Sort sets by their visible parts, so that the order reveals nothing about secrets.
		slices.SortStableFunc(out.Children, func(a, b *Node) int { return bytes.Compare(a.sortKey(), b.sortKey()) })
	}
	return w.shaped(out.sorted(), pattern, shape)
}

func (w *Builder) shaped(n *Node, pattern string, shape Shape) *Node {
	n.Shape = shape
	if shape != "" && w.Shapes != nil {
		w.Shapes[pattern] = shape
	}
	return n
}

func (n *Node) sorted() *Node {
	if n.Kind == ObjectNode && !slices.IsSorted(n.names) {
		order := make([]int, len(n.names))
		for i := range order {
			order[i] = i
		}
		slices.SortFunc(order, func(a, b int) int { return strings.Compare(n.names[a], n.names[b]) })
		names, of := make([]string, len(order)), make([]*Node, len(order))
		for to, from := range order {
			names[to], of[to] = n.names[from], n.Children[from]
		}
		n.names, n.Children = names, of
	}
	return n
}

func (n *Node) sortKey() []byte {
	var b bytes.Buffer
	v := Value{}
	n.write(&b, "", &v)
	fmt.Fprint(&b, v.Unknown, v.Sensitive)
	return b.Bytes()
}

func (n *Node) IsNull() bool { return n == nil || n.Kind == nullNode }

// contains reports whether a node of the kind is within.
func (n *Node) contains(kind nodeKind) bool {
	return n != nil && (n.Kind == kind || slices.ContainsFunc(n.Children, func(one *Node) bool { return one.contains(kind) }))
}

// equal reports whether two nodes show the same value. An unknown value equals nothing.
func (n *Node) equal(m *Node) bool {
	if n.IsNull() || m.IsNull() {
		return n.IsNull() && m.IsNull()
	}
	if n.Kind != m.Kind {
		return false
	}
	switch n.Kind {
	case UnknownNode:
		return false
	case SecretNode:
		return n.secret != "" && n.secret == m.secret
	case LeafNode:
		return bytes.Equal(n.Raw, m.Raw)
	}
	return slices.Equal(n.names, m.names) && slices.EqualFunc(n.Children, m.Children, (*Node).equal)
}

// write writes JSON with null for unknown and secret values, and records their paths in v. Null
// attributes are left out, null elements are not.
func (n *Node) write(b *bytes.Buffer, path string, v *Value) {
	if n == nil {
		b.WriteString("null")
		return
	}
	switch n.Kind {
	case UnknownNode:
		v.Unknown = append(v.Unknown, path)
		b.WriteString("null")
	case SecretNode:
		v.Sensitive = append(v.Sensitive, Secret{Path: path, Digest: n.secret})
		b.WriteString("null")
	case LeafNode:
		b.Write(n.Raw)
	case ListNode:
		b.WriteByte('[')
		for i, one := range n.Children {
			if i > 0 {
				b.WriteByte(',')
			}
			one.write(b, elementPath(path, i), v)
		}
		b.WriteByte(']')
	case ObjectNode:
		n.writeObject(b, path, v)
	default:
		b.WriteString("null")
	}
}

func (n *Node) writeObject(b *bytes.Buffer, path string, v *Value) {
	b.WriteByte('{')
	first := true
	for i, name := range n.names {
		if n.Children[i].IsNull() && !n.Shape.IsKeyed() {
			continue
		}
		if !first {
			b.WriteByte(',')
		}
		first = false
		text, err := json.Marshal(name)
		if err != nil {
			continue // a string can always be encoded
		}
		b.Write(text)
		b.WriteByte(':')
		n.Children[i].write(b, n.memberPath(path, name), v)
	}
	b.WriteByte('}')
}

func (n *Node) memberPath(path, name string) string {
	if n.Shape.IsKeyed() {
		return path + "[" + strconv.Quote(name) + "]"
	}
	return joined(path, name)
}

func elementPath(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }
