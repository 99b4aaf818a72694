package imports

import (
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/schema"
)

// widget returns a type whose spec has these properties, in YAML.
func widget(t *testing.T, properties string) *schema.Type {
	t.Helper()
	props := &schema.Props{}
	if err := yaml.Unmarshal([]byte("{type: object, properties: {spec: {type: object, properties: {"+properties+"}}}}"), props); err != nil {
		t.Fatalf("%s: %v", properties, err)
	}
	return &schema.Type{Group: "example.com", Version: "v1", Kind: "Widget", Plural: "widgets", Singular: "widget", ListKind: "WidgetList",
		Scope: apiextensionsv1.NamespaceScoped, Schema: props}
}

// fields lists the properties of a widget's spec, in order.
func fields(typ *schema.Type) string {
	if typ == nil {
		return "none"
	}
	var out []string
	for _, name := range []string{"colour", "size", "speed"} {
		if p, ok := typ.Schema.Properties["spec"].Properties[name]; ok {
			if p.Maximum != nil {
				name += "<" + string(rune('0'+int(*p.Maximum)))
			}
			out = append(out, name)
		}
	}
	return strings.Join(out, " ")
}

const (
	colour  = "colour: {type: string}"
	painted = "colour: {type: integer}" // cannot be reconciled with colour
	size    = "size: {type: integer}"
	small   = "size: {type: integer, maximum: 5}"
	speed   = "speed: {type: integer}"
)

func TestNegotiate(t *testing.T) {
	both := func(a ...string) string { return strings.Join(a, ", ") }
	tests := []struct {
		name      string
		enforced  string
		published string
		offers    []string // properties; "" cannot be parsed. Prefix ! means UpdateNever, + UpdatePublished
		want      string   // fields of the negotiated type
		fits      string   // y or n for each offer
		says      string   // part of the first refusal
	}{
		{name: "one seeds", offers: []string{both(colour, size)}, want: "colour size", fits: "y"},
		{name: "later ones narrow", offers: []string{both(colour, size, speed), both(colour, size), both(colour, speed)}, want: "colour", fits: "yyy"},
		{name: "bounds narrow", offers: []string{size, small}, want: "size<5", fits: "yy"},
		{name: "the first one wins", offers: []string{colour, painted, colour}, want: "colour", fits: "yny", says: ".spec.colour"},
		{name: "the contradicting cluster is named", offers: []string{colour, painted}, want: "colour", fits: "yn", says: "cluster c0"},
		{name: "unparsable schema is omitted", offers: []string{"", colour}, want: "colour", fits: "ny", says: "cannot be parsed"},
		{name: "nothing to agree on", offers: []string{"", ""}, want: "none", fits: "nn"},
		{name: "UpdateNever does not narrow", offers: []string{"!" + colour, both(colour, size)}, want: "colour size", fits: "ny", says: "UpdateNever"},
		{name: "UpdateNever may be compatible", offers: []string{"!" + both(colour, size), colour}, want: "colour", fits: "yy"},
		{name: "UpdateNever seeds if all imports have it", offers: []string{"!" + both(colour, size), "!" + both(colour, size, speed)}, want: "colour size", fits: "yy"},

		{name: "published type does not narrow", published: both(colour, size), offers: []string{both(colour, size), colour}, want: "colour size", fits: "yn", says: "UpdatePublished"},
		{name: "UpdatePublished narrows the published type", published: both(colour, size), offers: []string{both(colour, size), "+" + colour}, want: "colour", fits: "yy"},
		{name: "after narrowing others are compatible too", published: both(colour, size), offers: []string{colour, "+" + colour}, want: "colour", fits: "yy"},
		{name: "published type widens when all clusters accept more", published: colour, offers: []string{both(colour, size), both(colour, size, speed)}, want: "colour size", fits: "yy"},
		{name: "published type does not widen for some clusters", published: colour, offers: []string{both(colour, size), colour}, want: "colour", fits: "yy"},
		{name: "bounds widen", published: small, offers: []string{size, size}, want: "size", fits: "yy"},
		{name: "incompatible cluster does not prevent widening", published: colour, offers: []string{painted, both(colour, size)}, want: "colour size", fits: "ny"},
		{name: "published type stays without clusters", published: colour, want: "colour"},

		{name: "enforced type is only checked", enforced: both(colour, size), offers: []string{both(colour, size, speed), colour, "+" + small}, want: "colour size", fits: "ynn", says: "CustomResourceDefinition widgets"},
	}
	for _, tt := range tests {
		has := currentType{}
		switch {
		case tt.enforced != "":
			has = currentType{enforced: true, typ: widget(t, tt.enforced), by: "CustomResourceDefinition widgets"}
		case tt.published != "":
			has = currentType{published: true, typ: widget(t, tt.published)}
		}
		var offers []offer
		for n, o := range tt.offers {
			strategy := v1alpha1.UpdateUnpublished
			switch {
			case strings.HasPrefix(o, "!"):
				strategy = v1alpha1.UpdateNever
			case strings.HasPrefix(o, "+"):
				strategy = v1alpha1.UpdatePublished
			}
			one := offer{cluster: "c" + string(rune('0'+n)), strategy: strategy}
			if o = strings.TrimLeft(o, "!+"); o != "" {
				one.typ = widget(t, o)
			} else {
				one.problem = "not JSON"
			}
			offers = append(offers, one)
		}
		typ, judgements := negotiate(has, offers)
		fits, said := "", ""
		for _, j := range judgements {
			if j.compatible {
				fits += "y"
				continue
			}
			fits += "n"
			if said == "" {
				said = j.message
			}
		}
		if got := fields(typ); got != tt.want || fits != tt.fits || !strings.Contains(said, tt.says) {
			t.Errorf("%s: negotiated %q, compatible %q, message %q; want %q, %q, %q", tt.name, got, fits, said, tt.want, tt.fits, tt.says)
		}
		// The negotiated type is a fixed point: once published, nothing changes.
		if typ != nil && !has.enforced {
			again, then := negotiate(currentType{published: true, typ: typ}, offers)
			for n := range then {
				if judgements[n].compatible && !then[n].compatible {
					t.Errorf("%s: once published, the type is not compatible with %s any more: %s", tt.name, offers[n].cluster, then[n].message)
				}
			}
			if fields(again) != fields(typ) {
				t.Errorf("%s: once published, %q becomes %q", tt.name, fields(typ), fields(again))
			}
		}
	}
}

func TestMessagesAreBounded(t *testing.T) {
	var refused []schema.Refusal
	for range 1000 {
		refused = append(refused, schema.Refusal{Path: ".spec." + strings.Repeat("é", 400), Reason: schema.TypeDiffers, Message: "differs"})
	}
	n := &negotiation{out: make([]compatibility, 1)}
	n.refuse(0, joinRefusals(refused))
	if got := n.out[0].message; len(got) > maxMessageBytes+4 || strings.ToValidUTF8(got, "?") != got {
		t.Errorf("%d bytes: %s", len(got), got)
	}
	if got := joinRefusals(refused[:7]); !strings.HasSuffix(got, "; and 2 more") {
		t.Errorf("%s", got)
	}
}
