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

// Group is the API group in which the types of a Provider are served.
func Group(provider string) string { return provider + "." + v1alpha1.ProvidersDomain }

// A Name is what one type is called in the API.
type Name struct {
	// Type is the provider's own name, such as aws_s3_bucket.
	Type string
	// Data is of a data source, which is read and never changed.
	Data bool

	Kind, Plural, Singular string
}

// Names gives the kinds of a provider's types, sorted by kind. It reads nothing but names, and the
// same names give the same kinds, in whatever order they come.
func Names(resources, dataSources []string) []Name {
	types := make([]candidate, 0, len(resources)+len(dataSources))
	for _, t := range resources {
		types = append(types, candidate{typeName: t})
	}
	for _, t := range dataSources {
		types = append(types, candidate{typeName: t, data: true})
	}
	for raiseCollisions(types) {
		// Keeping a prefix can meet the name of a third type.
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

// A candidate is a type that looks for its name: the higher its level, the longer the name.
type candidate struct {
	typeName string
	data     bool
	level    int
}

// raiseCollisions has all types of one name try the next longer one, and tells whether there were any. A kind that is called like
// the lists of another gives way alone: PrefixList beside Prefix.
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

// Levels of names: without the provider's prefix, with it, and with more and more of the digest of the type's
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

// Plural is the resource of a kind, as Kubernetes guesses it. Names has no two kinds with the same one; so it is known of a kind
// alone, and of one that nobody serves any more.
func Plural(kind string) string {
	guessed, _ := meta.UnsafeGuessKindToResource(schema.GroupVersionKind{Kind: kind})
	return guessed.Resource
}

func startsWithDigit(word string) bool { return word[0] >= '0' && word[0] <= '9' }

// avoidAmbiguity fills in singulars. kubectl takes a word for the singular or the plural of a resource, whichever it learnt
// last: where DataSubnets would have for its singular what DataSubnet has for its plural, it goes by its plural alone.
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
