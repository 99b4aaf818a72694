package evaluate

import (
	"testing"

	"github.com/zclconf/go-cty/cty"
	ctyjson "github.com/zclconf/go-cty/cty/json"
	"github.com/zclconf/go-cty/cty/msgpack"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/enginetest"
	"github.com/atoll-dev/atoll/infra/providerapi"
	"github.com/atoll-dev/atoll/infra/schema"
)

// TestEncodedAttributes checks that a single decoded attribute has the value and marks that it has
// in the whole object.
func TestEncodedAttributes(t *testing.T) {
	disk := providerapi.Block{Attributes: []providerapi.Attribute{enginetest.Attribute("key", cty.String, "optional sensitive"), enginetest.Attribute("size", cty.Number, "optional")}}
	block := &providerapi.Block{
		Attributes: append(enginetest.ThingSchema().Block.Attributes, providerapi.Attribute{Name: "login", Optional: true, Type: cty.Object(map[string]cty.Type{"pin": cty.String, "user": cty.String}),
			Nested: &providerapi.Object{Nesting: providerapi.NestingSingle, Attributes: []providerapi.Attribute{enginetest.Attribute("pin", cty.String, "optional sensitive"), enginetest.Attribute("user", cty.String, "optional")}}}),
		Blocks: []providerapi.NestedBlock{{Name: "disk", Nesting: providerapi.NestingList, Block: disk}, {Name: "main", Nesting: providerapi.NestingSingle, Block: disk}},
	}
	// Attributes are sorted by name.
	a := block.Attributes
	for i := len(a) - 1; i > 0 && a[i].Name < a[i-1].Name; i-- {
		a[i], a[i-1] = a[i-1], a[i]
	}
	one := cty.ObjectVal(map[string]cty.Value{"key": cty.StringVal("k"), "size": cty.UnknownVal(cty.Number)})
	fields := block.Empty().AsValueMap()
	fields["content"] = cty.StringVal("text")
	fields["id"] = cty.UnknownVal(cty.String).RefineNotNull()
	fields["labels"] = cty.MapVal(map[string]cty.Value{"a": cty.StringVal("1"), "b": cty.StringVal("2")})
	fields["password"] = cty.StringVal("secret")
	fields["token"] = cty.UnknownVal(cty.String)
	fields["login"] = cty.ObjectVal(map[string]cty.Value{"pin": cty.StringVal("0000"), "user": cty.StringVal("u")})
	fields["disk"] = cty.ListVal([]cty.Value{one, one})
	whole := cty.ObjectVal(fields)
	encoded, err := msgpack.Marshal(whole, block.ImpliedType())
	if err != nil {
		t.Fatal(err)
	}
	secret := []cty.Path{cty.GetAttrPath("content"), cty.GetAttrPath("labels").IndexString("a"), cty.GetAttrPath("disk").IndexInt(1).GetAttr("size")}
	all := Mark(block, whole, secret)
	marks := 0
	for name := range fields {
		v, found := EncodedAttribute(block, encoded, secret, name)
		if !found || !v.RawEquals(all.GetAttr(name)) {
			t.Errorf("%s is %#v (%t), want %#v", name, v, found, all.GetAttr(name))
		}
		if v.ContainsMarked() {
			marks++
		}
	}
	if marks != 6 {
		t.Errorf("%d attributes have marks, want 6: content, labels, password, token, login, disk", marks)
	}
	if len(secret) != 3 || !secret[1].Equals(cty.GetAttrPath("labels").IndexString("a")) {
		t.Errorf("the paths were changed to %v", secret)
	}

	// Stored values are known.
	one = cty.ObjectVal(map[string]cty.Value{"key": cty.StringVal("k"), "size": cty.NumberIntVal(5)})
	fields["id"], fields["token"], fields["disk"] = cty.StringVal("i"), cty.StringVal("t"), cty.ListVal([]cty.Value{one, one})
	whole = cty.ObjectVal(fields)
	text, err := ctyjson.Marshal(whole, block.ImpliedType())
	if err != nil {
		t.Fatal(err)
	}
	kind := &infra.ServedKind{Kind: schema.Kind{Schema: &providerapi.Schema{Version: 3, Block: *block}}}
	stored := v1alpha1.ResourceValue{SchemaVersion: 3, Value: text, Sensitive: writePaths(secret)}
	for name, want := range Mark(block, whole, secret).AsValueMap() {
		if v, found := StoredAttribute(kind, &stored, name); !found || !v.RawEquals(want) {
			t.Errorf("%s is stored as %#v (%t), want %#v", name, v, found, want)
		}
	}
	for what, spoil := range map[string]func(*v1alpha1.ResourceValue){
		"with another version":        func(v *v1alpha1.ResourceValue) { v.SchemaVersion = 2 },
		"truncated":                   func(v *v1alpha1.ResourceValue) { v.Value = text[:len(text)/2] },
		"null":                        func(v *v1alpha1.ResourceValue) { v.Value = []byte("null") },
		"with another type":           func(v *v1alpha1.ResourceValue) { v.Value = []byte(`{"content":{}}`) },
		"with an unknown attribute":   func(v *v1alpha1.ResourceValue) { v.Value = []byte(`{"content":"text","former":1}`) },
		"without the attribute":       func(v *v1alpha1.ResourceValue) { v.Value = []byte(`{"id":"i"}`) },
		"with an invalid secret path": func(v *v1alpha1.ResourceValue) { v.Sensitive = []string{"["} },
	} {
		spoilt := stored
		spoil(&spoilt)
		if v, found := StoredAttribute(kind, &spoilt, "content"); found {
			t.Errorf("stored %s: got %#v", what, v)
		}
	}

	unknown, err := msgpack.Marshal(cty.UnknownVal(block.ImpliedType()), block.ImpliedType())
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		what    string
		encoded []byte
		name    string
	}{
		{"missing attribute", encoded, "colour"},
		{"unknown object", unknown, "content"},
		{"truncated object", encoded[:len(encoded)/2], "zone"},
		{"no data", nil, "content"},
	} {
		if v, found := EncodedAttribute(block, row.encoded, nil, row.name); found {
			t.Errorf("%s: got %#v", row.what, v)
		}
	}
}
