// Package names lists names in messages and suggests the name that was probably meant (pure). It
// imports nothing of Atoll.
package names

import (
	"fmt"
	"slices"
	"strings"
)

// List formats names in order, for a message, with at most ten of them.
func List(names []string) string {
	const most = 10
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	switch {
	case len(names) == 0:
		return "none"
	case len(names) > most:
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

// DidYouMean suggests the name that was probably meant, to append to an error message. It returns ""
// if none is similar.
func DidYouMean(name string, among []string) string {
	// Most short names are close to each other.
	best, distance := "", 2+min(len(name)/4, 2)
	for _, other := range slices.Sorted(slices.Values(among)) {
		if d := editDistance(name, other); d < distance {
			best, distance = other, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf(" (did you mean %s?)", best)
}

// NoSuchCluster returns an error for a cluster that has not joined. It lists the clusters that have,
// and suggests the name that was probably meant.
func NoSuchCluster(name string, joined []string) error {
	if len(joined) == 0 {
		return fmt.Errorf("no cluster has joined: run `atoll join %s --kubeconfig FILE` first", name)
	}
	return fmt.Errorf("cluster %q not found%s: the clusters are %s", name, DidYouMean(name, joined), List(joined))
}

// editDistance counts the insertions, deletions and replacements between two names.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
