package imports

import (
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/schema"
)

// widget is a type whose spec has these properties, in YAML.
func widget(t *testing.T, properties string) *schema.Type {
	t.Helper()
	props := &schema.Props{}
	if err := yaml.Unmarshal([]byte("{type: object, properties: {spec: {type: object, properties: {"+properties+"}}}}"), props); err != nil {
		t.Fatalf("%s: %v", properties, err)
	}
	return &schema.Type{Group: "example.com", Version: "v1", Kind: "Widget", Plural: "widgets", Singular: "widget", ListKind: "WidgetList",
		Scope: apiextensionsv1.NamespaceScoped, Schema: props}
}

// fields names the properties of a widget's spec, in order.
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
		offers    []string // properties; "" cannot be understood. A prefix ! is UpdateNever, + UpdatePublished
		want      string   // fields of what is negotiated
		fits      string   // y or n for each offer
		says      string   // in the first refusal
	}{
		{name: "one seeds", offers: []string{both(colour, size)}, want: "colour size", fits: "y"},
		{name: "later ones narrow", offers: []string{both(colour, size, speed), both(colour, size), both(colour, speed)}, want: "colour", fits: "yyy"},
		{name: "bounds narrow", offers: []string{size, small}, want: "size<5", fits: "yy"},
		{name: "the first is right", offers: []string{colour, painted, colour}, want: "colour", fits: "yny", says: ".spec.colour"},
		{name: "whom to blame is named", offers: []string{colour, painted}, want: "colour", fits: "yn", says: "cluster c0"},
		{name: "one that cannot be understood is left out", offers: []string{"", colour}, want: "colour", fits: "ny", says: "cannot be understood"},
		{name: "nothing to agree on", offers: []string{"", ""}, want: "none", fits: "nn"},
		{name: "UpdateNever is only checked", offers: []string{"!" + colour, both(colour, size)}, want: "colour size", fits: "ny", says: "UpdateNever"},
		{name: "and may fit", offers: []string{"!" + both(colour, size), colour}, want: "colour", fits: "yy"},
		{name: "and seeds if nobody else does", offers: []string{"!" + both(colour, size), "!" + both(colour, size, speed)}, want: "colour size", fits: "yy"},

		{name: "what is published does not narrow", published: both(colour, size), offers: []string{both(colour, size), colour}, want: "colour size", fits: "yn", says: "UpdatePublished"},
		{name: "unless it may", published: both(colour, size), offers: []string{both(colour, size), "+" + colour}, want: "colour", fits: "yy"},
		{name: "then others fit too", published: both(colour, size), offers: []string{colour, "+" + colour}, want: "colour", fits: "yy"},
		{name: "it widens when all know more", published: colour, offers: []string{both(colour, size), both(colour, size, speed)}, want: "colour size", fits: "yy"},
		{name: "not before", published: colour, offers: []string{both(colour, size), colour}, want: "colour", fits: "yy"},
		{name: "bounds widen", published: small, offers: []string{size, size}, want: "size", fits: "yy"},
		{name: "one that does not fit does not hold the others back", published: colour, offers: []string{painted, both(colour, size)}, want: "colour size", fits: "ny"},
		{name: "it stays when the last cluster goes", published: colour, want: "colour"},

		{name: "what is enforced is checked", enforced: both(colour, size), offers: []string{both(colour, size, speed), colour, "+" + small}, want: "colour size", fits: "ynn", says: "CustomResourceDefinition widgets"},
	}
	for _, tt := range tests {
		has := standing{}
		switch {
		case tt.enforced != "":
			has = standing{enforced: true, typ: widget(t, tt.enforced), by: "CustomResourceDefinition widgets"}
		case tt.published != "":
			has = standing{published: true, typ: widget(t, tt.published)}
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
				one.problem = "it is in Latin"
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
			t.Errorf("%s: negotiated %q, fits %q, saying %q; want %q, %q, %q", tt.name, got, fits, said, tt.want, tt.fits, tt.says)
		}
		// What is negotiated is a fixed point: published as it is, nothing changes.
		if typ != nil && !has.enforced {
			again, then := negotiate(standing{published: true, typ: typ}, offers)
			for n := range then {
				if judgements[n].compatible && !then[n].compatible {
					t.Errorf("%s: once published it does not fit %s any more: %s", tt.name, offers[n].cluster, then[n].message)
				}
			}
			if fields(again) != fields(typ) {
				t.Errorf("%s: once published %q becomes %q", tt.name, fields(typ), fields(again))
			}
		}
	}
}

func TestMessagesAreBounded(t *testing.T) {
	var refused []schema.Refusal
	for range 1000 {
		refused = append(refused, schema.Refusal{Path: ".spec." + strings.Repeat("é", 400), Reason: schema.TypeDiffers, Message: "is other"})
	}
	n := &negotiation{out: make([]judgement, 1)}
	n.refuse(0, quote(refused))
	if got := n.out[0].message; len(got) > longest+4 || strings.ToValidUTF8(got, "?") != got {
		t.Errorf("%d bytes: %s", len(got), got)
	}
	if got := quote(refused[:7]); !strings.HasSuffix(got, "; and 2 more") {
		t.Errorf("%s", got)
	}
}
