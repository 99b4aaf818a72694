package alike

import (
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// kind is what is to be known of a type of the test providers besides how its arguments are made.
type kind struct {
	typ string
	// as is its kind in the API.
	as string
	// sets are attributes that are sets, or have sets in them: the order of their elements says nothing.
	sets []string
	// texts are attributes that are text and always there, others those of another type.
	texts  []string
	others map[string]string
	// secret are texts that are secret, and number is a small whole number that is always there.
	secret []string
	number string
}

// kinds are those that are generated.
func kinds() []kind {
	return []kind{
		{typ: "demo_network", as: "Network", texts: []string{"id", "gateway", "cidr"}},
		{typ: "demo_file", as: "File", texts: []string{"id", "sha256", "content", "path"}},
		{typ: "demo_server", as: "Server", sets: []string{"peers", "allow", "rule"}, texts: []string{"id", "address", "image", "size"}, others: map[string]string{"revision": "number"}, number: "revision"},
		{typ: "demo_secret", as: "Secret", texts: []string{"id", "fingerprint"}, secret: []string{"token"}},
		{typ: "demo_collection", as: "Collection", sets: []string{"set", "object_set", "sets_by_name"}, texts: []string{"id", "name"},
			others: map[string]string{"chosen": "list"}},
		{typ: "demo_legacy", as: "Legacy", texts: []string{"id", "name"}},
		{typ: "demo_slow", as: "Slow", texts: []string{"id"}},
		{typ: "demo_flaky", as: "Flaky", texts: []string{"id", "made"}},
		{typ: "demo_private", as: "Private", texts: []string{"id"}},
		{typ: "demo_identity", as: "Identity", texts: []string{"id", "realm"}},
		{typ: "demo_unknown", as: "Unknown", sets: []string{"set", "nested_set"}, texts: []string{"id", "text"},
			others: map[string]string{"int64": "number", "truth": "bool", "list": "list", "map": "map", "set": "set"}},
		{typ: "demo_cross", as: "Cross", sets: []string{"others"}, texts: []string{"id", "joined"}},
		{typ: "demo5_network", as: "Network", texts: []string{"id", "gateway"}, others: map[string]string{"mtu": "number"}, number: "mtu"},
		{typ: "demo5_server", as: "Server", sets: []string{"tags", "rule"}, texts: []string{"id", "address", "image"}, secret: []string{"token"}},
		{typ: "demo5_legacy", as: "Legacy", texts: []string{"id", "name"}},
	}
}

// kindOf is the zero value for what is not generated.
func kindOf(typ string) kind {
	for _, k := range kinds() {
		if k.typ == typ {
			return k
		}
	}
	return kind{typ: typ}
}

// provider is the name of the Provider that has a type.
func provider(typ string) string {
	name, _, _ := strings.Cut(typ, "_")
	return name
}

// dataKinds are the data sources.
func dataKinds() map[string]string {
	return map[string]string{"demo_lookup": "DataLookup", "demo_file": "DataFile", "demo5_lookup": "DataLookup"}
}

func (a Address) kind() string {
	if a.Data {
		return dataKinds()[a.Type]
	}
	return kindOf(a.Type).as
}

// plural is what the kind's resource is called.
func (a Address) plural() string {
	guessed, _ := meta.UnsafeGuessKindToResource(schema.GroupVersionKind{Kind: a.kind()})
	return guessed.Resource
}
