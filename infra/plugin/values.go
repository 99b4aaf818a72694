package plugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/zclconf/go-cty/cty"
	ctyjson "github.com/zclconf/go-cty/cty/json"
	"github.com/zclconf/go-cty/cty/msgpack"

	"github.com/atoll-dev/atoll/infra/providerapi"
	"github.com/atoll-dev/atoll/infra/tfplugin6"
)

func isNull(v cty.Value) bool { return v == cty.NilVal || v.IsNull() }

// encode encodes a value of a type. NilVal is encoded as null.
func encode(v cty.Value, t cty.Type) (*tfplugin6.DynamicValue, error) {
	if t != cty.DynamicPseudoType && (v == cty.NilVal || !v.IsMarked() && v.IsKnown() && v.IsNull()) {
		return &tfplugin6.DynamicValue{Msgpack: []byte{0xc0}}, nil // null is the same for every type; skip the slow type check
	}
	if v == cty.NilVal {
		v = cty.NullVal(t)
	}
	encoded, err := msgpack.Marshal(v, t)
	if err != nil {
		return nil, explainPath(err, t)
	}
	return &tfplugin6.DynamicValue{Msgpack: encoded}, nil
}

func (k *typeSchema) encode(what string, v cty.Value) (*tfplugin6.DynamicValue, error) {
	encoded, err := encode(v, k.implied)
	if err != nil {
		return nil, fmt.Errorf("the %s of %s does not conform to its schema: %w", what, k.name, err)
	}
	return encoded, nil
}

// encodeConfig encodes a configuration, and caches the result for further calls.
func (k *typeSchema) encodeConfig(c *providerapi.Configuration) (*tfplugin6.DynamicValue, error) {
	encoded, err := c.Encoded(func(v cty.Value) ([]byte, error) {
		sent, err := k.encode("configuration", v)
		return sent.GetMsgpack(), err
	})
	if err != nil {
		return nil, err
	}
	return &tfplugin6.DynamicValue{Msgpack: encoded}, nil
}

// encodeIdentity returns nil if there is no identity.
func (k *typeSchema) encodeIdentity(v cty.Value) (*tfplugin6.ResourceIdentityData, error) {
	if k.identity == cty.NilType || isNull(v) {
		return nil, nil
	}
	encoded, err := encode(v, k.identity)
	if err != nil {
		return nil, fmt.Errorf("the identity of %s does not conform to its schema: %w", k.name, err)
	}
	return &tfplugin6.ResourceIdentityData{IdentityData: encoded}, nil
}

// parseIdentity parses an import ID that is a JSON object with attributes of the identity, for types that
// have one. Any other text is an ID, and gives NilVal. An invalid identity gives a problem.
func (k *typeSchema) parseIdentity(id string) (v cty.Value, problem string) {
	var given map[string]json.RawMessage
	if k.identity == cty.NilType || !strings.HasPrefix(id, "{") || json.Unmarshal([]byte(id), &given) != nil || len(given) == 0 {
		return cty.NilVal, ""
	}
	types := k.identity.AttributeTypes()
	var names []string
	for name := range given {
		if _, known := types[name]; known {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return cty.NilVal, ""
	}
	all := map[string]cty.Value{}
	for _, a := range k.schema.Identity {
		text, there := given[a.Name]
		delete(given, a.Name)
		switch {
		case !there && a.RequiredForImport:
			return cty.NilVal, fmt.Sprintf("the identity of %s needs the attribute %q", k.name, a.Name)
		case !there:
			all[a.Name] = cty.NullVal(a.Type)
			continue
		}
		one, err := ctyjson.Unmarshal(text, a.Type)
		if err != nil {
			return cty.NilVal, fmt.Sprintf("attribute %q of the identity must be %s", a.Name, a.Type.FriendlyName())
		}
		all[a.Name] = one
	}
	for name := range given {
		return cty.NilVal, fmt.Sprintf("the identity of %s has no attribute %q; it has %s", k.name, name, strings.Join(slices.Sorted(maps.Keys(types)), ", "))
	}
	return cty.ObjectVal(all), ""
}

// decode decodes a value of a type. An absent value decodes to null. A value that does not conform
// to the type is an error, even if the decoder panics on it.
func decode(from *tfplugin6.DynamicValue, t cty.Type) (v cty.Value, err error) {
	defer func() {
		// Among others, lists whose elements differ in type make cty panic.
		if r := recover(); r != nil {
			v, err = cty.NilVal, errors.New("the value is inconsistent")
		}
	}()
	switch {
	case len(from.GetMsgpack()) > 0:
		if _, err := checkMsgpack(from.Msgpack); err != nil {
			return cty.NilVal, err
		}
		v, err = msgpack.Unmarshal(from.Msgpack, t)
	case len(from.GetJson()) > maxJSON:
		return cty.NilVal, fmt.Errorf("the value is larger than %d MiB of JSON", maxJSON>>20)
	case len(from.GetJson()) > 0:
		v, err = ctyjson.Unmarshal(from.Json, t)
	default:
		return cty.NullVal(t), nil
	}
	if err != nil {
		return cty.NilVal, explainPath(err, t)
	}
	// The decoder accepts objects that lack attributes.
	if wrong := v.Type().TestConformance(t); len(wrong) > 0 {
		return cty.NilVal, explainPath(wrong[0], t)
	}
	return v, nil
}

// explainPath prefixes a cty error with its path.
func explainPath(err error, t cty.Type) error {
	var at cty.PathError
	if errors.As(err, &at) && len(at.Path) > 0 {
		return fmt.Errorf("%s: %s", formatPath(attributesOf(at.Path, t)), at.Error())
	}
	return err
}

// attributesOf converts map keys along a path to attributes where the type is an object: the
// decoder reports both as keys.
func attributesOf(path cty.Path, t cty.Type) cty.Path {
	path = path.Copy()
	for n, step := range path {
		key, isKey := step.(cty.IndexStep)
		name, isAttribute := step.(cty.GetAttrStep)
		if isKey && t.IsObjectType() && key.Key.Type() == cty.String {
			name, isAttribute = cty.GetAttrStep{Name: key.Key.AsString()}, true
			path[n] = name
		}
		switch {
		case isAttribute && t.IsObjectType() && t.HasAttribute(name.Name):
			t = t.AttributeType(name.Name)
		case isKey && t.IsCollectionType():
			t = t.ElementType()
		default:
			return path // dynamic, or not in the type
		}
	}
	return path
}

// formatPath formats a path as in an expression.
func formatPath(path cty.Path) string {
	text := ""
	for _, step := range path {
		switch step := step.(type) {
		case cty.GetAttrStep:
			text += "." + step.Name
		case cty.IndexStep:
			text += formatKey(step.Key)
		}
	}
	if text != "" && text[0] == '.' {
		return text[1:]
	}
	return text
}

func formatKey(key cty.Value) string {
	switch {
	case !key.IsKnown() || key.IsNull():
		return "[?]"
	case key.Type() == cty.String:
		return fmt.Sprintf("[%q]", key.AsString())
	case key.Type() == cty.Number:
		return "[" + key.AsBigFloat().Text('f', 0) + "]"
	}
	return "[…]" // an element of a set
}

// decodeState decodes a value in an answer. Write-only attributes must be null there. A value
// returned for one is dropped, and a diagnostic reports it.
func (i *Instance) decodeState(k *typeSchema, method string, from *tfplugin6.DynamicValue, diagnostics *providerapi.Diagnostics) (cty.Value, error) {
	v, err := decode(from, k.implied)
	if err != nil {
		return cty.NilVal, fmt.Errorf("provider %s: %s of %s: its answer does not conform to its schema: %w", i.binary.Name, method, k.name, err)
	}
	if !k.writeOnly {
		return v, nil
	}
	return cty.Transform(v, func(path cty.Path, v cty.Value) (cty.Value, error) {
		if v.IsNull() || len(path) == 0 || !k.isWriteOnly(path) {
			return v, nil
		}
		*diagnostics = append(*diagnostics, providerapi.Diagnostic{
			Summary:   "The provider returned a write-only value",
			Detail:    fmt.Sprintf("%s of %s returned a value for %s, which is write-only. This is a bug in the provider.", method, k.name, formatPath(path)),
			Attribute: path.Copy(),
		})
		return cty.NullVal(v.Type()), nil
	})
}

func (i *Instance) decodeIdentity(k *typeSchema, method string, from *tfplugin6.ResourceIdentityData) (cty.Value, error) {
	if k.identity == cty.NilType || from.GetIdentityData() == nil {
		return cty.NilVal, nil
	}
	v, err := decode(from.IdentityData, k.identity)
	if err != nil {
		return cty.NilVal, fmt.Errorf("provider %s: %s of %s: the identity in its answer does not conform to its schema: %w", i.binary.Name, method, k.name, err)
	}
	return v, nil
}

// diagnostics converts a provider's diagnostics, with secrets masked.
func (i *Instance) diagnostics(from []*tfplugin6.Diagnostic) providerapi.Diagnostics {
	if len(from) == 0 {
		return nil
	}
	to := make(providerapi.Diagnostics, len(from))
	for n, d := range from {
		to[n] = providerapi.Diagnostic{
			Warning:   d.GetSeverity() == tfplugin6.Diagnostic_WARNING,
			Summary:   i.mask.text(d.GetSummary()),
			Detail:    i.mask.text(d.GetDetail()),
			Attribute: decodePath(d.GetAttribute()),
		}
	}
	return to
}

func decodePath(from *tfplugin6.AttributePath) cty.Path {
	var path cty.Path
	for _, step := range from.GetSteps() {
		switch step := step.GetSelector().(type) {
		case *tfplugin6.AttributePath_Step_AttributeName:
			path = path.GetAttr(step.AttributeName)
		case *tfplugin6.AttributePath_Step_ElementKeyString:
			path = path.IndexString(step.ElementKeyString)
		case *tfplugin6.AttributePath_Step_ElementKeyInt:
			path = path.Index(cty.NumberIntVal(step.ElementKeyInt))
		}
	}
	return path
}
