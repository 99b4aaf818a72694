package schema

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

func parse(t *testing.T, text string) *Props {
	t.Helper()
	var p Props
	if err := yaml.UnmarshalStrict([]byte(text), &p); err != nil {
		t.Fatalf("parsing %s: %v", text, err)
	}
	return &p
}

// object returns a schema with one property, f.
func object(t *testing.T, f string) *Props {
	p := parse(t, "type: object")
	p.Properties = map[string]Props{"f": *parse(t, f)}
	return p
}

// TestCompareField narrows one field by another, and checks whether the second contains the first.
// An expected refusal is "reason" or "reason at path".
func TestCompareField(t *testing.T) {
	for _, test := range []struct {
		name           string
		existing, next string
		narrowed       string // the field's schema, or a refusal
		contained      string // "" for yes, or a refusal
	}{
		{"same", `{type: string}`, `{type: string}`, `{type: string}`, ""},
		{"types apart", `{type: string}`, `{type: boolean}`, "TypeDiffers at .f", "TypeDiffers"},
		{"number to integer", `{type: number, maximum: 5.5}`, `{type: integer}`, `{type: integer, allOf: [{maximum: 5.5}]}`, "TypeDiffers"},
		{"integer in number", `{type: integer}`, `{type: number}`, `{type: integer}`, ""},
		{"int-or-string to string", `{x-kubernetes-int-or-string: true, anyOf: [{type: integer}, {type: string}], pattern: "^a"}`, `{type: string}`, `{type: string, pattern: "^a"}`, "TypeDiffers"},
		{"int-or-string and number", `{x-kubernetes-int-or-string: true}`, `{type: number}`, `{type: integer}`, "TypeDiffers"},
		{"anything to a type", `{x-kubernetes-preserve-unknown-fields: true}`, `{type: object, properties: {a: {type: string}}}`, `{type: object, properties: {a: {type: string}}}`, "TypeDiffers"},
		{"a type in anything", `{type: integer}`, `{x-kubernetes-preserve-unknown-fields: true}`, `{type: integer}`, ""},

		{"nullable in one", `{type: string, nullable: true}`, `{type: string}`, `{type: string}`, "NullableDiffers"},
		{"nullable in the other", `{type: string}`, `{type: string, nullable: true}`, `{type: string}`, ""},
		{"nullable in both", `{type: string, nullable: true}`, `{type: string, nullable: true}`, `{type: string, nullable: true}`, ""},

		{"enums meet", `{type: string, enum: [a, b]}`, `{type: string, enum: [b, c]}`, `{type: string, enum: [b]}`, "EnumDiffers"},
		{"enum within", `{type: string, enum: [b]}`, `{type: string, enum: [b, c]}`, `{type: string, enum: [b]}`, ""},
		{"enum on a plain string", `{type: string}`, `{type: string, enum: [b]}`, `{type: string, enum: [b]}`, "EnumDiffers"},
		{"disjoint enums leave nothing", `{type: string, enum: [a]}`, `{type: string, enum: [b]}`, "NothingLeft", "EnumDiffers"},
		{"a nullable enum in allOf", `{type: string, nullable: true, allOf: [{enum: [a]}]}`, `{type: string, nullable: true, enum: [a]}`, `{type: string, nullable: true, enum: [a], allOf: [{enum: [a]}]}`, "EnumDiffers"},

		{"tighter maximum", `{type: integer, maximum: 8}`, `{type: integer, maximum: 5}`, `{type: integer, maximum: 5}`, "BoundsDiffer"},
		{"looser maximum", `{type: integer, maximum: 5}`, `{type: integer, maximum: 8}`, `{type: integer, maximum: 5}`, ""},
		{"exclusive maximum", `{type: integer, maximum: 5}`, `{type: integer, maximum: 5, exclusiveMaximum: true}`, `{type: integer, maximum: 5, exclusiveMaximum: true}`, "BoundsDiffer"},
		{"fractions are read in two ways", `{type: number, minimum: 5.7}`, `{type: number, minimum: 5.2, exclusiveMinimum: true}`, `{type: number, minimum: 5.7, allOf: [{minimum: 5.2, exclusiveMinimum: true}]}`, "BoundsDiffer"},
		{"bounds that cross", `{type: integer, maximum: 3}`, `{type: integer, minimum: 5}`, "NothingLeft", "BoundsDiffer"},
		{"a bound that no integer passes", `{type: integer, maximum: 5.5}`, `{type: integer}`, "BoundsDiffer", "BoundsDiffer"},
		{"factors", `{type: integer, multipleOf: 2}`, `{type: integer, multipleOf: 3}`, `{type: integer, multipleOf: 2, allOf: [{multipleOf: 3}]}`, "BoundsDiffer"},
		{"int32 of int64", `{type: integer, format: int64}`, `{type: integer, format: int32}`, `{type: integer, format: int32}`, "FormatDiffers"},
		{"int32 moves a bound", `{type: integer, maximum: 3000000000}`, `{type: integer, format: int32}`, `{type: integer, format: int32, allOf: [{maximum: 3000000000}]}`, "FormatDiffers"},

		{"lengths", `{type: string, minLength: 2, maxLength: 9}`, `{type: string, minLength: 3, maxLength: 12}`, `{type: string, minLength: 3, maxLength: 9}`, "BoundsDiffer"},
		{"lengths that cross", `{type: string, maxLength: 2}`, `{type: string, minLength: 3}`, "NothingLeft", "BoundsDiffer"},
		{"two patterns", `{type: string, pattern: a}`, `{type: string, pattern: b}`, `{type: string, pattern: a, allOf: [{pattern: b}]}`, "PatternDiffers"},
		{"two formats", `{type: string, format: date}`, `{type: string, format: uuid}`, `{type: string, allOf: [{format: date}, {format: uuid}]}`, "FormatDiffers"},
		{"a format lets lists through", `{type: string, format: date}`, `{type: string}`, `{type: string, allOf: [{format: date}]}`, "FormatDiffers"},
		{"a remark for a format", `{type: string}`, `{type: string, format: quantity}`, `{type: string}`, ""},

		{"counts of items", `{type: array, items: {type: string}, minItems: 1}`, `{type: array, items: {type: string}, minItems: 2, maxItems: 4}`, `{type: array, items: {type: string}, minItems: 2, maxItems: 4}`, "BoundsDiffer"},
		{"items", `{type: array, items: {type: string}}`, `{type: array, items: {type: string, maxLength: 3}}`, `{type: array, items: {type: string, maxLength: 3}}`, "BoundsDiffer at .f[*]"},
		{"a set of an atomic list", `{type: array, items: {type: string}}`, `{type: array, items: {type: string}, x-kubernetes-list-type: set}`, `{type: array, items: {type: string}, x-kubernetes-list-type: set}`, "ListTypeDiffers"},
		{"a set in an atomic list", `{type: array, items: {type: string}, x-kubernetes-list-type: set}`, `{type: array, items: {type: string}, x-kubernetes-list-type: atomic}`, `{type: array, items: {type: string}, x-kubernetes-list-type: set}`, ""},
		{"other keys", `{type: array, items: {type: object, required: [a, b], properties: {a: {type: string}, b: {type: string}}}, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [a]}`,
			`{type: array, items: {type: object, required: [a, b], properties: {a: {type: string}, b: {type: string}}}, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [b]}`, "ListTypeDiffers", "ListTypeDiffers"},
		{"fewer keys", `{type: array, items: {type: object, required: [a, b], properties: {a: {type: string}, b: {type: string}}}, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [a, b]}`,
			`{type: array, items: {type: object, required: [a, b], properties: {a: {type: string}, b: {type: string}}}, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [b]}`,
			`{type: array, items: {type: object, required: [a, b], properties: {a: {type: string}, b: {type: string}}}, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [b]}`, "ListTypeDiffers"},
		{"more keys", `{type: array, items: {type: object, required: [a, b], properties: {a: {type: string}, b: {type: string}}}, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [b]}`,
			`{type: array, items: {type: object, required: [a, b], properties: {a: {type: string}, b: {type: string}}}, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [a, b]}`,
			`{type: array, items: {type: object, required: [a, b], properties: {a: {type: string}, b: {type: string}}}, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [b]}`, ""},
		{"a list that an unlisted field would bring back", `{type: object, x-kubernetes-preserve-unknown-fields: true, properties: {a: {type: string}, b: {type: array, items: {type: string}}}}`, `{type: object, additionalProperties: true}`,
			`{type: object, properties: {a: {type: string}}}`, "UnknownFieldsDiffer"},
		{"bounds beyond integers", `{type: number, maximum: 5}`, `{type: number, maximum: 1.0e+300}`, `{type: number, maximum: 5, allOf: [{maximum: 1.0e+300}]}`, "BoundsDiffer"},
		{"a factor that no integer type takes, where types are not asked", `{type: number, multipleOf: 2.5}`, `{x-kubernetes-int-or-string: true}`, `{type: integer, allOf: [{multipleOf: 2.5}]}`, "TypeDiffers"},
		{"a factor of which no integer is a multiple", `{type: integer}`, `{type: number, multipleOf: 0.5}`, "BoundsDiffer", "BoundsDiffer"},
		{"uniqueItems", `{type: array, items: {type: string}}`, `{type: array, items: {type: string}, uniqueItems: true}`, "UnsupportedConstruct", "UnsupportedConstruct"},

		{"properties meet", `{type: object, properties: {a: {type: string}, b: {type: string}}}`, `{type: object, properties: {b: {type: string}, c: {type: string}}}`, `{type: object, properties: {b: {type: string}}}`, "PropertyUnknown at .f.a"},
		{"required in one", `{type: object, properties: {a: {type: string}}}`, `{type: object, required: [a], properties: {a: {type: string}}}`, `{type: object, required: [a], properties: {a: {type: string}}}`, "RequiredDiffers at .f.a"},
		{"required and unknown", `{type: object, properties: {b: {type: string}}}`, `{type: object, required: [a], properties: {a: {type: string}, b: {type: string}}}`, "NothingLeft at .f.a", "NothingLeft"},
		{"required and dropped", `{type: object, required: [a], properties: {a: {type: string}, b: {type: string}}}`, `{type: object, properties: {b: {type: string}}}`, "NothingLeft at .f.a", "PropertyUnknown"},
		{"a default is as good as required", `{type: object, properties: {a: {type: string, default: x}}}`, `{type: object, required: [a], properties: {a: {type: string}}}`, `{type: object, properties: {a: {type: string, default: x}}}`, ""},
		{"counts of properties", `{type: object, additionalProperties: {type: string}}`, `{type: object, maxProperties: 3, additionalProperties: {type: string}}`, `{type: object, maxProperties: 3, additionalProperties: {type: string}}`, "BoundsDiffer"},
		{"values of maps", `{type: object, additionalProperties: {type: string}}`, `{type: object, additionalProperties: {type: string, minLength: 1}}`, `{type: object, additionalProperties: {type: string, minLength: 1}}`, "BoundsDiffer at .f[*]"},
		{"a map and no map", `{type: object, additionalProperties: {type: string}}`, `{type: object, properties: {a: {type: string}}}`, `{type: object, properties: {a: {type: string}}}`, "UnknownFieldsDiffer"},
		{"additionalProperties in one only", `{type: object, properties: {a: {type: string}}}`, `{type: object, additionalProperties: {type: string}}`, `{type: object, properties: {a: {type: string}}}`, ""},
		{"preserving in one", `{type: object, x-kubernetes-preserve-unknown-fields: true}`, `{type: object, properties: {a: {type: string}}}`, `{type: object, properties: {a: {type: string}}}`, "UnknownFieldsDiffer"},
		{"preserving in the other", `{type: object, properties: {a: {type: string}}}`, `{type: object, x-kubernetes-preserve-unknown-fields: true}`, `{type: object, properties: {a: {type: string}}}`, ""},
		{"map types", `{type: object, x-kubernetes-map-type: atomic}`, `{type: object}`, `{type: object, x-kubernetes-map-type: atomic}`, ""},
		{"an atomic map in the other", `{type: object}`, `{type: object, x-kubernetes-map-type: atomic}`, `{type: object, x-kubernetes-map-type: atomic}`, ""},
		{"an atomic map and a transition", `{type: object, properties: {a: {type: string, x-kubernetes-validations: [{rule: "self == oldSelf"}]}}}`, `{type: object, x-kubernetes-map-type: atomic, properties: {a: {type: string}}}`,
			`{type: object, properties: {a: {type: string, x-kubernetes-validations: [{rule: "self == oldSelf"}]}}}`, ""},
		{"embedded in one", `{type: object, x-kubernetes-preserve-unknown-fields: true}`, `{type: object, x-kubernetes-embedded-resource: true, x-kubernetes-preserve-unknown-fields: true}`,
			`{type: object, x-kubernetes-embedded-resource: true, x-kubernetes-preserve-unknown-fields: true}`, "EmbeddedDiffers"},
		{"embedded with nothing in common", `{type: object, x-kubernetes-embedded-resource: true, properties: {a: {type: string}}}`, `{type: object, x-kubernetes-embedded-resource: true, properties: {b: {type: string}}}`,
			`{type: object, x-kubernetes-embedded-resource: true, properties: {kind: {type: string}}}`, "PropertyUnknown"},
		{"a default with unknown fields", `{type: object, properties: {a: {type: string}}, default: {b: x}}`, `{type: object, properties: {a: {type: string}}}`, "UnsupportedConstruct", "UnsupportedConstruct"},
		{"a default with a null", `{type: object, x-kubernetes-preserve-unknown-fields: true, default: {b: null}}`, `{type: object, x-kubernetes-preserve-unknown-fields: true}`, "UnsupportedConstruct", "UnsupportedConstruct"},
		{"embedded and pruned", `{type: object, properties: {a: {type: string}}}`, `{type: object, x-kubernetes-embedded-resource: true, x-kubernetes-preserve-unknown-fields: true}`, "EmbeddedDiffers", "EmbeddedDiffers"},

		{"a default of one", `{type: object, properties: {a: {type: string}}}`, `{type: object, properties: {a: {type: string, default: x}}}`, `{type: object, properties: {a: {type: string, default: x}}}`, "DefaultDiffers at .f.a"},
		{"defaults that differ", `{type: object, properties: {a: {type: string, default: x}}}`, `{type: object, properties: {a: {type: string, default: "y"}}}`, `{type: object, required: [a], properties: {a: {type: string}}}`, ""},
		{"a default that is not valid any more", `{type: object, properties: {a: {type: string, default: xxx}}}`, `{type: object, properties: {a: {type: string, maxLength: 2}}}`, `{type: object, required: [a], properties: {a: {type: string, maxLength: 2}}}`, "BoundsDiffer"},
		{"a cluster's own default", `{type: object, properties: {a: {type: string}}}`, `{type: object, properties: {a: {type: string}, b: {type: string, default: x}}}`, `{type: object, properties: {a: {type: string}}}`, ""},
		{"a cluster's own default that is counted", `{type: object, properties: {a: {type: string}}}`, `{type: object, maxProperties: 1, properties: {a: {type: string}, b: {type: string, default: x}}}`, "DefaultDiffers at .f.b", "BoundsDiffer"},
		{"a cluster's own default that a rule reads", `{type: object, properties: {a: {type: string}}}`, `{type: object, properties: {a: {type: string}, b: {type: string, default: x}}, x-kubernetes-validations: [{rule: "self.b == 'x'"}]}`, "DefaultDiffers at .f.b", "DefaultDiffers"},

		{"anyOf in one", `{type: string}`, `{type: string, anyOf: [{pattern: a}, {pattern: b}]}`, `{type: string, anyOf: [{pattern: a}, {pattern: b}]}`, "CombinationDiffers"},
		{"anyOf in both", `{type: string, anyOf: [{pattern: a}, {pattern: b}]}`, `{type: string, anyOf: [{pattern: c}]}`, `{type: string, anyOf: [{pattern: a}, {pattern: b}], allOf: [{anyOf: [{pattern: c}]}]}`, "CombinationDiffers"},
		{"oneOf", `{type: string}`, `{type: string, oneOf: [{pattern: a}]}`, `{type: string, oneOf: [{pattern: a}]}`, "CombinationDiffers"},
		{"not", `{type: string, not: {enum: [a]}}`, `{type: string, not: {enum: [b]}}`, `{type: string, not: {enum: [a]}, allOf: [{not: {enum: [b]}}]}`, "CombinationDiffers"},
		{"allOf that is implied", `{type: string, maxLength: 3}`, `{type: string, allOf: [{maxLength: 5}]}`, `{type: string, maxLength: 3}`, ""},
		{"combinations forget dropped fields", `{type: object, properties: {a: {type: string}, b: {type: string}}, not: {required: [a], properties: {b: {minLength: 1}}}}`, `{type: object, properties: {a: {type: string}}}`, `{type: object, properties: {a: {type: string}}, not: {required: [a]}}`, "PropertyUnknown"},

		{"rules of both", `{type: string, x-kubernetes-validations: [{rule: "self != 'a'"}]}`, `{type: string, x-kubernetes-validations: [{rule: "self != 'b'"}]}`, `{type: string, x-kubernetes-validations: [{rule: "self != 'a'"}, {rule: "self != 'b'"}]}`, "RuleDiffers"},
		{"a rule over another type", `{type: object, properties: {a: {type: number}}, x-kubernetes-validations: [{rule: "self.a / 2.0 == 1.5"}]}`, `{type: object, properties: {a: {type: integer}}}`, "RuleDiffers at .f", "TypeDiffers"},
		{"a rule over a dropped field", `{type: object, properties: {a: {type: string}, b: {type: string}}, x-kubernetes-validations: [{rule: "!has(self.b)"}]}`, `{type: object, properties: {a: {type: string}}}`, "RuleDiffers at .f", "PropertyUnknown"},
		{"a rule beside a dropped field", `{type: object, properties: {a: {type: string}, b: {type: string}}, x-kubernetes-validations: [{rule: "!has(self.a)"}]}`, `{type: object, properties: {a: {type: string}}}`, `{type: object, properties: {a: {type: string}}, x-kubernetes-validations: [{rule: "!has(self.a)"}]}`, "PropertyUnknown"},
		{"transition rules", `{type: string}`, `{type: string, x-kubernetes-validations: [{rule: "self == oldSelf"}]}`, `{type: string, x-kubernetes-validations: [{rule: "self == oldSelf"}]}`, "RuleDiffers"},

		{"references", `{type: object, $ref: "#/x"}`, `{type: object}`, "UnsupportedConstruct", "UnsupportedConstruct"},
		{"no type", `{}`, `{type: object}`, "UnsupportedConstruct", "UnsupportedConstruct"},
	} {
		t.Run(test.name, func(t *testing.T) {
			existing, next := object(t, test.existing), object(t, test.next)
			result, refusals := Compare(existing, next, true)
			if strings.HasPrefix(test.narrowed, "{") {
				if len(refusals) > 0 {
					t.Fatalf("narrowing is refused: %v", refusals)
				}
				want := object(t, test.narrowed)
				if diff := cmp.Diff(want, result); diff != "" {
					t.Errorf("narrowed (-want +got):\n%s", diff)
				}
			} else {
				wantRefusal(t, "narrowing", test.narrowed, refusals)
			}
			_, refusals = Compare(existing, next, false)
			wantRefusal(t, "containment", test.contained, refusals)
		})
	}
}

func wantRefusal(t *testing.T, what, want string, got []Refusal) {
	t.Helper()
	if want == "" {
		if len(got) > 0 {
			t.Errorf("%s is refused: %v", what, got)
		}
		return
	}
	reason, path, _ := strings.Cut(want, " at ")
	for _, r := range got {
		if string(r.Reason) == reason && (path == "" || r.Path == path) {
			return
		}
	}
	t.Errorf("%s: got %v, want a refusal %s", what, got, want)
}
