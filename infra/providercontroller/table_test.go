package providercontroller

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/providerapi"
	"github.com/atoll-dev/atoll/infra/schema"
)

// typeList is a catalog that has only names.
type typeList struct{ resources, data []string }

func (c typeList) Resources() []string   { return c.resources }
func (c typeList) DataSources() []string { return c.data }
func (c typeList) Functions() []string   { return nil }
func (c typeList) Function(string) (*providerapi.Function, error) {
	return nil, providerapi.ErrUnknownFunction
}
func (c typeList) Config() *providerapi.Schema {
	return &providerapi.Schema{}
}
func (c typeList) Resource(name string) (*providerapi.Schema, error) {
	return &providerapi.Schema{}, nil
}

func (c typeList) DataSource(name string) (*providerapi.Schema, error) {
	return &providerapi.Schema{}, nil
}

func has(name string, age time.Duration, patterns string, resources ...string) candidate {
	c := typeList{resources: resources, data: []string{resources[0]}}
	return candidate{
		name: name, created: time.Unix(1e9, 0).Add(-age), patterns: strings.Fields(patterns), catalog: c,
		all: schema.Names(c.resources, c.data), revision: "r",
	}
}

func kindsOf(t *table, group string) string {
	var kinds []string
	if s := t.byGroup[group]; s != nil {
		for _, n := range s.Kinds {
			kinds = append(kinds, n.Kind)
		}
	}
	return strings.Join(kinds, " ")
}

func TestTypesAreSelectedByNameAndPrefix(t *testing.T) {
	for patterns, want := range map[string]string{
		"*":                    "DataNetwork File FileSet Network",
		"demo_file":            "File",
		"demo_file*":           "File FileSet",
		"demo_network":         "DataNetwork Network",
		"demo_file demo_files": "File",
	} {
		got := newTable([]candidate{has("demo", 0, patterns, "demo_network", "demo_file", "demo_file_set")})
		if kinds := kindsOf(got, "demo.providers.atoll.dev"); kinds != want {
			t.Errorf("%s: %s, want %s", patterns, kinds, want)
		}
	}
	got := newTable([]candidate{has("demo", 0, "demo_file demo_flie", "demo_network", "demo_file")})
	if s := got.byGroup["demo.providers.atoll.dev"]; !slices.Equal(s.unmatched, []string{"demo_flie"}) || s.resources != 1 || s.data != 0 {
		t.Errorf("unmatched %v, %d resource types, %d data sources", s.unmatched, s.resources, s.data)
	}
}

// A kind keeps its name for any selection. Otherwise its objects would be lost.
func TestNamesDoNotDependOnSelection(t *testing.T) {
	one := newTable([]candidate{has("x", 0, "b_thing", "a_thing", "b_thing")})
	both := newTable([]candidate{has("x", 0, "*", "a_thing", "b_thing")})
	if got, all := kindsOf(one, "x.providers.atoll.dev"), kindsOf(both, "x.providers.atoll.dev"); !strings.Contains(all, got) || got == "" {
		t.Errorf("%q alone, %q with all", got, all)
	}
	if one.groups[0].Group.Revision == both.groups[0].Group.Revision {
		t.Error("two selections have the same revision")
	}
	if one.groups[0].candidate.revision != both.groups[0].candidate.revision {
		t.Error("the revision of the package depends on the selection")
	}
}

func TestOldestProviderServesAType(t *testing.T) {
	young, old := has("aaa", 0, "*", "demo_a", "demo_b"), has("zzz", time.Hour, "demo_b", "demo_b", "demo_c")
	for _, order := range [][]candidate{{young, old}, {old, young}} {
		got := newTable(order)
		if kindsOf(got, "zzz.providers.atoll.dev") == "" || kindsOf(got, "aaa.providers.atoll.dev") != "" {
			t.Fatal("the younger one is served")
		}
		why := got.denied["aaa"]
		for _, word := range []string{"zzz", "demo_b", "spec.types of aaa"} {
			if why.reason != v1alpha1.ReasonTypeTaken || !strings.Contains(why.message, word) {
				t.Errorf("%s: %s, want %s in the message", why.reason, why.message, word)
			}
		}
	}
	young.patterns = []string{"demo_a"}
	if got := newTable([]candidate{young, old}); len(got.groups) != 2 || len(got.denied) != 0 {
		t.Errorf("it is still denied after narrowing: %v", got.denied)
	}
}

func TestNoTypes(t *testing.T) {
	got := newTable([]candidate{has("demo", 0, "aws_*", "demo_a", "demo_b", "demo_c", "demo_d", "demo_e", "demo_f", "demo_g")})
	why := got.denied["demo"]
	if why.reason != v1alpha1.ReasonNoTypes || !strings.Contains(why.message, "demo_e and 2 more") || !strings.Contains(why.message, "aws_*") {
		t.Errorf("%s: %s", why.reason, why.message)
	}
}
