package plan

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/msgpack"

	"github.com/atoll-dev/atoll/infra/contract"
)

// node is a value that can be shown. Secrets are replaced by a digest.
type node struct {
	kind  nodeKind
	shape Shape
	raw   json.RawMessage // encoded leaf
	// secret is the digest of a secret.
	secret   string
	names    []string // names of an object's members, sorted
	children []*node  // elements of a list, attributes of an object
}

// sharedNull and sharedUnknown stand for all null and all unknown values. They are never changed.
var sharedNull, sharedUnknown = &node{}, &node{kind: unknownNode}

type nodeKind int

const (
	nullNode nodeKind = iota
	unknownNode
	secretNode
	leafNode
	listNode
	objectNode
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

func (s Shape) block() bool {
	return s == ShapeBlock || s == ShapeBlockList || s == ShapeBlockSet || s == ShapeBlockMap
}

func (s Shape) set() bool { return s == ShapeSet || s == ShapeBlockSet }

func (s Shape) keyed() bool { return s == ShapeMap || s == ShapeBlockMap }

// nodeBuilder turns values into nodes.
type nodeBuilder struct {
	salt    []byte
	address string // the address: equal secrets of two resources get different digests
	secrets []cty.Path
	shapes  map[string]Shape
	err     error
}

// build converts a value of the block's type.
func (w *nodeBuilder) build(block *contract.Block, v cty.Value) *node {
	if isAbsent(v) {
		return sharedNull
	}
	return w.object(blockLevel(block), v, nil, "")
}

// object leaves out null attributes, as most attributes of most resources are.
func (w *nodeBuilder) object(l level, v cty.Value, path cty.Path, pattern string) *node {
	if n := w.opaque(v, path, pattern); n != nil {
		return n
	}
	out := &node{kind: objectNode}
	add := func(name string, one *node) {
		if !one.null() {
			out.names, out.children = append(out.names, name), append(out.children, one)
		}
	}
	for i := range l.attributes {
		a := &l.attributes[i]
		if of := v.GetAttr(a.Name); !of.IsNull() {
			add(a.Name, w.attribute(a, of, w.below(path, a.Name), joined(pattern, a.Name)))
		}
	}
	for i := range l.blocks {
		n := &l.blocks[i]
		if of := v.GetAttr(n.Name); !of.IsNull() {
			add(n.Name, w.nested(n.Nesting, blockLevel(&n.Block), of, w.below(path, n.Name), joined(pattern, n.Name), true))
		}
	}
	return out.sorted()
}

// below returns the path of an attribute. Paths are only compared with those of secrets, so without
// secrets there is no path.
func (w *nodeBuilder) below(path cty.Path, name string) cty.Path {
	if len(w.secrets) == 0 {
		return nil
	}
	return attributeStep(path, name)
}

func joined(pattern, name string) string {
	if pattern == "" {
		return key(name)
	}
	return pattern + "." + key(name)
}

func (w *nodeBuilder) attribute(a *contract.Attribute, v cty.Value, path cty.Path, pattern string) *node {
	switch {
	case a.WriteOnly:
		return sharedNull
	case a.Sensitive && !v.IsNull():
		return w.secret(v, pattern)
	case a.Nested != nil:
		return w.nested(a.Nested.Nesting, objectLevel(a.Nested), v, path, pattern, false)
	}
	return w.value(v, path, pattern)
}

func (w *nodeBuilder) nested(nesting contract.Nesting, l level, v cty.Value, path cty.Path, pattern string, block bool) *node {
	if n := w.opaque(v, path, pattern); n != nil {
		return n
	}
	shape := nestedShape(nesting, block)
	if nesting == contract.NestingSingle || nesting == contract.NestingGroup {
		one := w.object(l, v, path, pattern)
		if nesting == contract.NestingGroup && !slices.ContainsFunc(one.children, func(n *node) bool { return !n.null() }) {
			return sharedNull // a group is never null, so an empty one was not configured
		}
		return w.shaped(one, pattern, shape)
	}
	return w.collection(v, path, pattern, shape, func(v cty.Value, path cty.Path, pattern string) *node {
		return w.object(l, v, path, pattern)
	})
}

func nestedShape(nesting contract.Nesting, block bool) Shape {
	shapes := map[contract.Nesting][2]Shape{
		contract.NestingSingle: {"", ShapeBlock}, contract.NestingGroup: {"", ShapeBlock}, contract.NestingList: {"", ShapeBlockList},
		contract.NestingSet: {ShapeSet, ShapeBlockSet}, contract.NestingMap: {ShapeMap, ShapeBlockMap},
	}
	if block {
		return shapes[nesting][1]
	}
	return shapes[nesting][0]
}

// value converts a value that the schema describes by its type only.
func (w *nodeBuilder) value(v cty.Value, path cty.Path, pattern string) *node {
	if n := w.opaque(v, path, pattern); n != nil {
		return n
	}
	ty := v.Type()
	switch {
	case ty.IsObjectType():
		l := level{}
		for name, of := range ty.AttributeTypes() {
			l.attributes = append(l.attributes, contract.Attribute{Name: name, Type: of})
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
func (w *nodeBuilder) opaque(v cty.Value, path cty.Path, pattern string) *node {
	switch {
	case v.IsKnown() && v.IsNull():
		return sharedNull
	case len(w.secrets) > 0 && hasPath(w.secrets, path):
		return w.secret(v, pattern)
	case !v.IsKnown():
		return sharedUnknown
	}
	return nil
}

// secret returns a node that only has a digest. The digest covers the value's path without list
// positions, so that equal secrets in different places get different digests.
func (w *nodeBuilder) secret(v cty.Value, pattern string) *node {
	out := &node{kind: secretNode}
	if !v.IsWhollyKnown() {
		return out
	}
	packed, err := msgpack.Marshal(v, v.Type())
	if err != nil {
		w.err = fmt.Errorf("%s: cannot encode a secret", pattern)
		return out
	}
	out.secret = keyedDigest(w.salt, "secret", w.address+"\x00"+pattern, packed)
	return out
}

func (w *nodeBuilder) leaf(v cty.Value) *node {
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
		w.err = err
		return sharedNull
	}
	return &node{kind: leafNode, raw: text}
}

func (w *nodeBuilder) collection(v cty.Value, path cty.Path, pattern string, shape Shape, one func(cty.Value, cty.Path, string) *node) *node {
	out := &node{kind: listNode}
	named := v.Type().IsMapType() || v.Type().IsObjectType()
	if named {
		out.kind = objectNode
	}
	for it := v.ElementIterator(); it.Next(); {
		key, of := it.Element()
		if named {
			out.names = append(out.names, key.AsString())
		}
		at := path
		if len(w.secrets) > 0 {
			at = indexStep(path, key)
		}
		out.children = append(out.children, one(of, at, pattern+"[]"))
	}
	if shape.set() {
		// Sort sets by their visible parts, so that the order reveals nothing about secrets.
		slices.SortStableFunc(out.children, func(a, b *node) int { return bytes.Compare(a.sortKey(), b.sortKey()) })
	}
	return w.shaped(out.sorted(), pattern, shape)
}

func (w *nodeBuilder) shaped(n *node, pattern string, shape Shape) *node {
	n.shape = shape
	if shape != "" && w.shapes != nil {
		w.shapes[pattern] = shape
	}
	return n
}

func (n *node) sorted() *node {
	if n.kind == objectNode && !slices.IsSorted(n.names) {
		order := make([]int, len(n.names))
		for i := range order {
			order[i] = i
		}
		slices.SortFunc(order, func(a, b int) int { return strings.Compare(n.names[a], n.names[b]) })
		names, of := make([]string, len(order)), make([]*node, len(order))
		for to, from := range order {
			names[to], of[to] = n.names[from], n.children[from]
		}
		n.names, n.children = names, of
	}
	return n
}

func (n *node) sortKey() []byte {
	var b bytes.Buffer
	v := Value{}
	n.write(&b, "", &v)
	fmt.Fprint(&b, v.Unknown, v.Sensitive)
	return b.Bytes()
}

func (n *node) null() bool { return n == nil || n.kind == nullNode }

// contains reports whether a node of the kind is within.
func (n *node) contains(kind nodeKind) bool {
	return n != nil && (n.kind == kind || slices.ContainsFunc(n.children, func(one *node) bool { return one.contains(kind) }))
}

// equal reports whether two nodes show the same value. An unknown value equals nothing.
func (n *node) equal(m *node) bool {
	if n.null() || m.null() {
		return n.null() && m.null()
	}
	if n.kind != m.kind {
		return false
	}
	switch n.kind {
	case unknownNode:
		return false
	case secretNode:
		return n.secret != "" && n.secret == m.secret
	case leafNode:
		return bytes.Equal(n.raw, m.raw)
	}
	return slices.Equal(n.names, m.names) && slices.EqualFunc(n.children, m.children, (*node).equal)
}

// write writes JSON with null for unknown and secret values, and records their paths in v. Null
// attributes are left out, null elements are not.
func (n *node) write(b *bytes.Buffer, path string, v *Value) {
	if n == nil {
		b.WriteString("null")
		return
	}
	switch n.kind {
	case unknownNode:
		v.Unknown = append(v.Unknown, path)
		b.WriteString("null")
	case secretNode:
		v.Sensitive = append(v.Sensitive, Secret{Path: path, Digest: n.secret})
		b.WriteString("null")
	case leafNode:
		b.Write(n.raw)
	case listNode:
		b.WriteByte('[')
		for i, one := range n.children {
			if i > 0 {
				b.WriteByte(',')
			}
			one.write(b, elementPath(path, i), v)
		}
		b.WriteByte(']')
	case objectNode:
		n.writeObject(b, path, v)
	default:
		b.WriteString("null")
	}
}

func (n *node) writeObject(b *bytes.Buffer, path string, v *Value) {
	b.WriteByte('{')
	first := true
	for i, name := range n.names {
		if n.children[i].null() && !n.shape.keyed() {
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
		n.children[i].write(b, n.memberPath(path, name), v)
	}
	b.WriteByte('}')
}

func (n *node) memberPath(path, name string) string {
	if n.shape.keyed() {
		return path + "[" + strconv.Quote(name) + "]"
	}
	return joined(path, name)
}

func elementPath(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }
