package schema

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/zclconf/go-cty/cty"
	ctyjson "github.com/zclconf/go-cty/cty/json"

	"github.com/atoll-dev/atoll/infra/providerapi"
)

// Connection returns the Secret data for a provider's value: everything that is sensitive by the
// schema, by a mark, or at a hidden path, as in Attributes. A string is stored as its text,
// anything else as JSON, which is how secretKeyRef reads it. The keys are the paths, with dots
// between the steps: password, user.0.password.
func (k Kind) Connection(v cty.Value, hidden []cty.Path) map[string][]byte {
	c := &connectionWriter{writer: writer{hidden: hidden}, data: map[string][]byte{}}
	c.block(nil, nil, &k.Schema.Block, v)
	return c.data
}

// A connectionWriter walks a value like a writer, and collects what that omits. Keys use the index
// of a set's element, while hidden paths contain its value. The parameter real is the path that is
// compared with hidden paths.
type connectionWriter struct {
	writer
	data map[string][]byte
}

func (c *connectionWriter) block(path, real cty.Path, b *providerapi.Block, v cty.Value) {
	fields, ok := c.fields(path, real, v)
	if !ok {
		return
	}
	for i := range b.Attributes {
		a := &b.Attributes[i]
		c.attribute(path.GetAttr(a.Name), real.GetAttr(a.Name), a, fields[a.Name])
	}
	for i := range b.Blocks {
		n := &b.Blocks[i]
		c.nested(path.GetAttr(n.Name), real.GetAttr(n.Name), n.Nesting, fields[n.Name], func(path, real cty.Path, v cty.Value) {
			c.block(path, real, &n.Block, v)
		})
	}
}

// fields returns the fields of an object, unless the object is null or sensitive as a whole, and so
// collected here.
func (c *connectionWriter) fields(path, real cty.Path, v cty.Value) (map[string]cty.Value, bool) {
	v, there := c.open(path, real, v)
	if !there {
		return nil, false
	}
	return v.AsValueMap(), true
}

// open removes the mark from a value that is not sensitive. A sensitive one it collects.
func (c *connectionWriter) open(path, real cty.Path, v cty.Value) (cty.Value, bool) {
	if v == cty.NilVal {
		return v, false
	}
	if c.hides(real, v) {
		c.keep(path, v, v.Type())
		return cty.NilVal, false
	}
	v, _ = v.Unmark()
	return v, known(v)
}

func (c *connectionWriter) attribute(path, real cty.Path, a *providerapi.Attribute, v cty.Value) {
	switch {
	case v == cty.NilVal:
	case isSensitive(a):
		c.keep(path, v, a.Type)
	case a.Nested == nil:
		c.value(path, real, v)
	default:
		c.nested(path, real, a.Nested.Nesting, v, func(path, real cty.Path, v cty.Value) {
			fields, ok := c.fields(path, real, v)
			if !ok {
				return
			}
			for i := range a.Nested.Attributes {
				inner := &a.Nested.Attributes[i]
				c.attribute(path.GetAttr(inner.Name), real.GetAttr(inner.Name), inner, fields[inner.Name])
			}
		})
	}
}

func (c *connectionWriter) nested(path, real cty.Path, nesting providerapi.Nesting, v cty.Value, one func(path, real cty.Path, v cty.Value)) {
	if nesting == providerapi.NestingSingle || nesting == providerapi.NestingGroup {
		one(path, real, v)
		return
	}
	if v, there := c.open(path, real, v); there {
		c.each(path, real, v, one)
	}
}

func (c *connectionWriter) each(path, real cty.Path, v cty.Value, one func(path, real cty.Path, v cty.Value)) {
	ty := v.Type()
	at := 0
	for it := v.ElementIterator(); it.Next(); at++ {
		key, element := it.Element()
		switch {
		case ty.IsObjectType():
			one(path.GetAttr(key.AsString()), real.GetAttr(key.AsString()), element)
		case ty.IsMapType():
			one(path.Index(key), real.Index(key), element)
		default:
			one(path.IndexInt(at), real.Index(key), element)
		}
	}
}

// value looks for marks and hidden paths in a value without a nested schema.
func (c *connectionWriter) value(path, real cty.Path, v cty.Value) {
	if v, there := c.open(path, real, v); there && v.CanIterateElements() {
		c.each(path, real, v, c.value)
	}
}

// keep encodes a value so that secretKeyRef decodes it.
func (c *connectionWriter) keep(path cty.Path, v cty.Value, ty cty.Type) {
	v, _ = v.UnmarkDeep()
	if !v.IsWhollyKnown() || v.IsNull() {
		return
	}
	if ty == cty.String {
		c.data[secretKey(path)] = []byte(v.AsString())
		return
	}
	if text, err := ctyjson.Marshal(v, v.Type()); err == nil {
		c.data[secretKey(path)] = text
	}
}

// secretKey returns the Secret key for a path. Map keys may have characters that Secret keys must
// not have, or be long. Then a digest distinguishes different paths.
func secretKey(path cty.Path) string {
	var steps []string
	plain := true
	for _, step := range path {
		switch step := step.(type) {
		case cty.GetAttrStep:
			steps = append(steps, step.Name)
		case cty.IndexStep:
			if step.Key.Type() == cty.Number {
				steps = append(steps, step.Key.AsBigFloat().Text('f', 0))
				continue
			}
			steps = append(steps, step.Key.AsString())
			plain = plain && !strings.Contains(step.Key.AsString(), ".")
		}
	}
	key := strings.Join(steps, ".")
	readable := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '_', r == '.':
			return r
		}
		return '_'
	}, key)
	const longest = 200 // Kubernetes allows 253
	if plain && readable == key && len(key) <= longest {
		return key
	}
	sum := sha256.Sum256([]byte(strings.Join(steps, "\x00")))
	return readable[:min(len(readable), longest)] + "-" + hex.EncodeToString(sum[:4])
}
