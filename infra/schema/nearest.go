package schema

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"

	"github.com/atoll-dev/atoll/infra/providerapi"
)

// unknownField returns the error message for a field that does not exist.
func unknownField(name string, known []string) string {
	if nearest := nearestName(name, known); nearest != "" {
		return fmt.Sprintf("unknown field; did you mean %s?", nearest)
	}
	if len(known) == 0 {
		return "unknown field; no fields are allowed here"
	}
	if len(known) > 12 {
		return "unknown field; see kubectl explain for the valid fields"
	}
	return "unknown field; valid fields: " + strings.Join(known, ", ")
}

// nearestName returns the known name that is closest to a misspelled one, or "".
func nearestName(name string, known []string) string {
	name = snakeCase(name)
	best, distance := "", max(1, len(name)/3)+1
	for _, candidate := range known {
		if d := editDistance(name, candidate, distance); d < distance {
			best, distance = candidate, d
		}
	}
	return best
}

// snakeCase converts Kubernetes' camelCase to the snake_case of providers.
func snakeCase(name string) string {
	var b strings.Builder
	for i, r := range name {
		if unicode.IsUpper(r) && i > 0 {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// editDistance returns the Levenshtein distance, or limit if it is that or more.
func editDistance(a, b string, limit int) int {
	if len(a)-len(b) >= limit || len(b)-len(a) >= limit {
		return limit
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			changed := diagonal
			if a[i-1] != b[j-1] {
				changed++
			}
			diagonal = row[j]
			row[j] = min(changed, row[j]+1, row[j-1]+1)
		}
	}
	return min(row[len(b)], limit)
}

// argumentNames returns the names of the arguments and blocks that can be set.
func argumentNames(b *providerapi.Block) []string {
	names := make([]string, 0, len(b.Attributes)+len(b.Blocks))
	for i := range b.Attributes {
		if settable(&b.Attributes[i]) {
			names = append(names, b.Attributes[i].Name)
		}
	}
	for i := range b.Blocks {
		names = append(names, b.Blocks[i].Name)
	}
	slices.Sort(names)
	return names
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
