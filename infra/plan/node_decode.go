package plan

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
)

// node decodes a stored value for comparison and rendering.
func (v *Value) node(shapes map[string]Shape) (*node, error) {
	if v == nil {
		return &node{}, nil
	}
	decoder := json.NewDecoder(bytes.NewReader(v.JSON))
	decoder.UseNumber() // keeps numbers of any size
	var doc any
	if err := decoder.Decode(&doc); err != nil {
		return nil, fmt.Errorf("decode a value of the plan: %w", err)
	}
	r := &nodeReader{shapes: shapes, unknown: make(map[string]bool, len(v.Unknown)), secrets: make(map[string]string, len(v.Sensitive))}
	for _, path := range v.Unknown {
		r.unknown[path] = true
	}
	for _, s := range v.Sensitive {
		r.secrets[s.Path] = s.Digest
	}
	return r.node(doc, "", ""), nil
}

type nodeReader struct {
	shapes  map[string]Shape
	unknown map[string]bool
	secrets map[string]string
}

func (r *nodeReader) node(doc any, path, pattern string) *node {
	out := &node{shape: r.shapes[pattern]}
	switch doc := doc.(type) {
	case nil:
		if digest, secret := r.secrets[path]; secret {
			out.kind, out.secret = secretNode, digest
		} else if r.unknown[path] {
			out.kind = unknownNode
		}
	case map[string]any:
		out.kind = objectNode
		for _, name := range slices.Sorted(maps.Keys(doc)) {
			below := pattern + "[]"
			if !out.shape.keyed() {
				below = joined(pattern, name)
			}
			out.names = append(out.names, name)
			out.children = append(out.children, r.node(doc[name], out.memberPath(path, name), below))
		}
	case []any:
		out.kind = listNode
		for i := range doc {
			out.children = append(out.children, r.node(doc[i], elementPath(path, i), pattern+"[]"))
		}
	case json.Number:
		out.kind, out.raw = leafNode, json.RawMessage(doc.String())
	case bool:
		out.kind, out.raw = leafNode, json.RawMessage(strconv.FormatBool(doc))
	case string:
		text, err := json.Marshal(doc)
		if err == nil { // a string can always be encoded
			out.kind, out.raw = leafNode, text
		}
	}
	return out
}

// text returns the string of a leaf, and whether the leaf is one.
func (n *node) text() (string, bool) {
	if n == nil || n.kind != leafNode || len(n.raw) == 0 || n.raw[0] != '"' {
		return "", false
	}
	var s string
	if err := json.Unmarshal(n.raw, &s); err != nil {
		return "", false
	}
	return s, true
}
