package differential

import (
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// kind describes a resource type of the test providers, except how to generate its arguments.
type kind struct {
	typ string
	// apiKind is the kind of its objects in Atoll's API.
	apiKind string
	// sets are the attributes that are sets or contain sets: the order of their elements does not matter.
	sets []string
	// texts are string attributes that always have a value. others maps such attributes of another type to that type.
	texts  []string
	others map[string]string
	// secret are sensitive string attributes. number is an integer attribute that always has a small value.
	secret []string
	number string
}

// kinds returns the resource types that are generated.
func kinds() []kind {
	return []kind{
		{typ: "demo_network", apiKind: "Network", texts: []string{"id", "gateway", "cidr"}},
		{typ: "demo_file", apiKind: "File", texts: []string{"id", "sha256", "content", "path"}},
		{typ: "demo_server", apiKind: "Server", sets: []string{"peers", "allow", "rule"}, texts: []string{"id", "address", "image", "size"}, others: map[string]string{"revision": "number"}, number: "revision"},
		{typ: "demo_secret", apiKind: "Secret", texts: []string{"id", "fingerprint"}, secret: []string{"token"}},
		{typ: "demo_collection", apiKind: "Collection", sets: []string{"set", "object_set", "sets_by_name"}, texts: []string{"id", "name"},
			others: map[string]string{"chosen": "list"}},
		{typ: "demo_legacy", apiKind: "Legacy", texts: []string{"id", "name"}},
		{typ: "demo_slow", apiKind: "Slow", texts: []string{"id"}},
		{typ: "demo_flaky", apiKind: "Flaky", texts: []string{"id", "made"}},
		{typ: "demo_private", apiKind: "Private", texts: []string{"id"}},
		{typ: "demo_identity", apiKind: "Identity", texts: []string{"id", "realm"}},
		{typ: "demo_unknown", apiKind: "Unknown", sets: []string{"set", "nested_set"}, texts: []string{"id", "text"},
			others: map[string]string{"int64": "number", "truth": "bool", "list": "list", "map": "map", "set": "set"}},
		{typ: "demo_cross", apiKind: "Cross", sets: []string{"others"}, texts: []string{"id", "joined"}},
		{typ: "demo5_network", apiKind: "Network", texts: []string{"id", "gateway"}, others: map[string]string{"mtu": "number"}, number: "mtu"},
		{typ: "demo5_server", apiKind: "Server", sets: []string{"tags", "rule"}, texts: []string{"id", "address", "image"}, secret: []string{"token"}},
		{typ: "demo5_legacy", apiKind: "Legacy", texts: []string{"id", "name"}},
	}
}

// kindOf returns the kind of a resource type; for a type that is not generated it has no attributes.
func kindOf(typ string) kind {
	for _, k := range kinds() {
		if k.typ == typ {
			return k
		}
	}
	return kind{typ: typ}
}

// provider returns the name of the Provider of a resource type.
func provider(typ string) string {
	name, _, _ := strings.Cut(typ, "_")
	return name
}

// dataKinds maps the types of data sources to their kinds in the API.
func dataKinds() map[string]string {
	return map[string]string{"demo_lookup": "DataLookup", "demo_file": "DataFile", "demo5_lookup": "DataLookup"}
}

func (a Address) kind() string {
	if a.Data {
		return dataKinds()[a.Type]
	}
	return kindOf(a.Type).apiKind
}

// plural returns the name of the API resource of the kind.
func (a Address) plural() string {
	guessed, _ := meta.UnsafeGuessKindToResource(schema.GroupVersionKind{Kind: a.kind()})
	return guessed.Resource
}
