package value

import (
	"encoding/json"
	"testing"

	"github.com/hashicorp/terraform-plugin-go/tftypes"
)

// TestRoundTrip encodes and decodes values that are easily encoded wrong.
func TestRoundTrip(t *testing.T) {
	typ := tftypes.Object{AttributeTypes: map[string]tftypes.Type{
		"number": tftypes.Number, "any": tftypes.DynamicPseudoType, "list": tftypes.List{ElementType: tftypes.String},
		"set": tftypes.Set{ElementType: tftypes.Number}, "map": tftypes.Map{ElementType: tftypes.Bool},
		"tuple": tftypes.Tuple{ElementTypes: []tftypes.Type{tftypes.String, tftypes.Bool}}, "object": tftypes.Object{AttributeTypes: map[string]tftypes.Type{"a": tftypes.DynamicPseudoType}},
	}}
	for _, text := range []string{
		`{"any":null,"list":[],"map":{},"number":null,"object":null,"set":[],"tuple":null}`,
		`{"any":{"type":"string","value":"x"},"list":["",null],"map":{"a":null},"number":9007199254740993,"object":{"a":{"type":["list","number"],"value":[1]}},"set":[1.5],"tuple":["a",true]}`,
		`{"any":{"type":["object",{"a":"number"}],"value":{"a":1e-30}},"list":null,"map":null,"number":123456789012345678901234567890,"object":{"a":null},"set":null,"tuple":null}`,
	} {
		v, err := Decode([]byte(text), typ)
		if err != nil {
			t.Fatal(err)
		}
		encoded, err := EncodeObject(v, typ)
		if err != nil {
			t.Fatal(err)
		}
		again, err := DecodeObject(encoded, typ)
		if err != nil {
			t.Fatal(err)
		}
		if written, _ := json.Marshal(encoded); string(written) != text || !again.Equal(v) {
			t.Errorf("%s\nis encoded as\n%s", text, written)
		}
	}
}

func TestUnknownIsNotWritten(t *testing.T) {
	typ := tftypes.Object{AttributeTypes: map[string]tftypes.Type{"a": tftypes.String}}
	if _, err := EncodeObject(tftypes.NewValue(typ, map[string]tftypes.Value{"a": tftypes.NewValue(tftypes.String, tftypes.UnknownValue)}), typ); err == nil {
		t.Error("an unknown value was encoded")
	}
}

// TestFill fills every type; only the same seed gives the same value.
func TestFill(t *testing.T) {
	object := tftypes.Object{AttributeTypes: map[string]tftypes.Type{"a": tftypes.String, "b": tftypes.Number, "c": tftypes.Bool}}
	for _, typ := range []tftypes.Type{
		tftypes.String, tftypes.Number, object, tftypes.DynamicPseudoType, tftypes.List{ElementType: object}, tftypes.Set{ElementType: tftypes.String},
		tftypes.Map{ElementType: object}, tftypes.Tuple{ElementTypes: []tftypes.Type{tftypes.Bool, tftypes.String}},
	} {
		unknown := tftypes.NewValue(typ, tftypes.UnknownValue)
		one, err := Fill(unknown, "one")
		if err != nil || !one.IsFullyKnown() || one.IsNull() {
			t.Fatalf("%s is filled with %s, %v", typ, one, err)
		}
		again, _ := Fill(unknown, "one")
		other, _ := Fill(unknown, "other")
		if !one.Equal(again) || one.Equal(other) {
			t.Errorf("%s: %s, again %s, with another seed %s", typ, one, again, other)
		}
	}
}
