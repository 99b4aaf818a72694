package schema

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

// Group returns the API group that serves the types of a Provider.
func Group(provider string) string { return provider + "." + v1alpha1.ProvidersDomain }

// A Name is the name of one type in the API.
type Name struct {
	// Type is the provider's own name, such as aws_s3_bucket.
	Type string
	// Data marks a data source, which is only read.
	Data bool

	Kind, Plural, Singular string
}

// Names returns the names for a provider's types, sorted by kind. They depend only on the set of
// type names, not on schemas or order.
func Names(resources, dataSources []string) []Name {
	types := make([]candidate, 0, len(resources)+len(dataSources))
	for _, t := range resources {
		types = append(types, candidate{typeName: t})
	}
	for _, t := range dataSources {
		types = append(types, candidate{typeName: t, data: true})
	}
	for raiseCollisions(types) {
		// A longer name can collide with that of a third type.
	}
	names := make([]Name, len(types))
	for i, c := range types {
		kind, plural := c.name()
		names[i] = Name{Type: c.typeName, Data: c.data, Kind: kind, Plural: plural}
	}
	slices.SortFunc(names, func(a, b Name) int { return cmp.Compare(a.Kind, b.Kind) })
	avoidAmbiguity(names)
	return names
}

// A candidate is a type whose name is being chosen. A higher level means a longer name.
type candidate struct {
	typeName string
	data     bool
	level    int
}

// raiseCollisions raises the level of all types that share a name, and reports whether there were
// any. A kind with the name of another's list, such as PrefixList beside Prefix, is raised alone.
func raiseCollisions(types []candidate) bool {
	kinds, plurals := map[string]int{}, map[string]int{}
	for _, c := range types {
		kind, plural := c.name()
		kinds[strings.ToLower(kind)]++
		plurals[plural]++
	}
	raised := false
	next := slices.Clone(types)
	for i, c := range types {
		kind, plural := c.name()
		lower := strings.ToLower(kind)
		listOf, isList := strings.CutSuffix(lower, "list")
		if (kinds[lower] > 1 || plurals[plural] > 1 || isList && kinds[listOf] > 0) && c.level < maxLevel {
			next[i].level++
			raised = true
		}
	}
	copy(types, next)
	return raised
}

// Levels of names: without the provider's prefix, with it, and with a growing digest of the type's
// name.
const (
	withPrefix = 1
	withDigest = 2
	maxLevel   = withDigest + 3
)

func (c candidate) name() (kind, plural string) {
	words := strings.FieldsFunc(c.typeName, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9')
	})
	short := c.level < withPrefix && len(words) > 1 && !startsWithDigit(words[1])
	if short {
		words = words[1:]
	}
	var b strings.Builder
	if c.data {
		b.WriteString("Data")
	}
	if len(words) == 0 || startsWithDigit(words[0]) {
		b.WriteString("Type")
	}
	for _, word := range words {
		b.WriteString(strings.ToUpper(word[:1]))
		b.WriteString(word[1:])
	}
	if c.level >= withDigest {
		sum := sha256.Sum256([]byte(c.typeName))
		b.WriteString("X" + hex.EncodeToString(sum[:])[:8<<(c.level-withDigest)])
	}
	kind = b.String()
	return kind, Plural(kind)
}

// Plural returns the resource name of a kind, as Kubernetes derives it. Names are unique in it, so
// it can be derived from the kind alone, even if the type is no longer served.
func Plural(kind string) string {
	guessed, _ := meta.UnsafeGuessKindToResource(schema.GroupVersionKind{Kind: kind})
	return guessed.Resource
}

func startsWithDigit(word string) bool { return word[0] >= '0' && word[0] <= '9' }

// avoidAmbiguity sets the singulars. kubectl resolves a word to either the singular or the plural
// of a resource, whichever it saw last. Where the singular of one kind, such as DataSubnets, is the
// plural of another, DataSubnet, the former uses its plural as singular.
func avoidAmbiguity(names []Name) {
	plurals := map[string]bool{}
	for _, n := range names {
		plurals[n.Plural] = true
	}
	for i := range names {
		n := &names[i]
		n.Singular = strings.ToLower(n.Kind)
		if plurals[n.Singular] {
			n.Singular = n.Plural
		}
	}
}
