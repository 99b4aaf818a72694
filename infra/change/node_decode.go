package change

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
)

// Node decodes a stored value for comparison and rendering.
func (v *Value) Node(shapes map[string]Shape) (*Node, error) {
	if v == nil {
		return &Node{}, nil
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

func (r *nodeReader) node(doc any, path, pattern string) *Node {
	out := &Node{Shape: r.shapes[pattern]}
	switch doc := doc.(type) {
	case nil:
		if digest, secret := r.secrets[path]; secret {
			out.Kind, out.secret = SecretNode, digest
		} else if r.unknown[path] {
			out.Kind = UnknownNode
		}
	case map[string]any:
		out.Kind = ObjectNode
		for _, name := range slices.Sorted(maps.Keys(doc)) {
			below := pattern + "[]"
			if !out.Shape.IsKeyed() {
				below = joined(pattern, name)
			}
			out.names = append(out.names, name)
			out.Children = append(out.Children, r.node(doc[name], out.memberPath(path, name), below))
		}
	case []any:
		out.Kind = ListNode
		for i := range doc {
			out.Children = append(out.Children, r.node(doc[i], elementPath(path, i), pattern+"[]"))
		}
	case json.Number:
		out.Kind, out.Raw = LeafNode, json.RawMessage(doc.String())
	case bool:
		out.Kind, out.Raw = LeafNode, json.RawMessage(strconv.FormatBool(doc))
	case string:
		text, err := json.Marshal(doc)
		if err == nil { // a string can always be encoded
			out.Kind, out.Raw = LeafNode, text
		}
	}
	return out
}

// Text returns the string of a leaf, and whether the leaf is one.
func (n *Node) Text() (string, bool) {
	if n == nil || n.Kind != LeafNode || len(n.Raw) == 0 || n.Raw[0] != '"' {
		return "", false
	}
	var s string
	if err := json.Unmarshal(n.Raw, &s); err != nil {
		return "", false
	}
	return s, true
}
