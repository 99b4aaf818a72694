package test

import (
	"fmt"
	"slices"
	"strings"
)

// comparisonResult is what one look found.
type comparisonResult struct {
	order []string
	sets  map[string]*setResult
}

type setResult struct {
	kinds         map[string]bool
	objects, same int
	pods          podsResult
	exceptions    []exception
}

type podsResult struct {
	direct, members               int
	directPerNode, membersPerNode int
	why                           string
}

func (p podsResult) same() bool {
	return p.why == "" && p.direct == p.members && p.membersPerNode == p.directPerNode*len(members)
}

// exception is an object that is not as it would be in one cluster.
type exception struct{ id, why string }

// complaints are about exceptions that are not known, and about known ones that are
// none.
func (r *comparisonResult) complaints(known map[string]string) []string {
	var out []string
	seen := map[string]bool{}
	for _, name := range r.order {
		set := r.sets[name]
		for _, e := range set.exceptions {
			seen[e.id] = true
			if _, ok := known[e.id]; !ok {
				out = append(out, e.id+": "+e.why)
			}
		}
		if _, ok := known[name+" pods"]; !set.pods.same() && !ok {
			out = append(out, fmt.Sprintf("%s: pods: %+v", name, set.pods))
		} else if ok && !set.pods.same() {
			seen[name+" pods"] = true
		}
	}
	for id := range known {
		if !seen[id] {
			out = append(out, "an exception is listed that is none: "+id)
		}
	}
	slices.Sort(out)
	return out
}

// total counts all sets.
func (r *comparisonResult) total() (objects, same int, kinds map[string]bool) {
	kinds = map[string]bool{}
	for _, set := range r.sets {
		objects, same = objects+set.objects, same+set.same
		for kind := range set.kinds {
			kinds[kind] = true
		}
	}
	return objects, same, kinds
}

func (r *comparisonResult) String() string {
	var out strings.Builder
	fmt.Fprintf(&out, "%-12s %5s %7s %5s %14s %15s\n", "set", "kinds", "objects", "same", "pods directly", "pods in members")
	for _, name := range r.order {
		s := r.sets[name]
		fmt.Fprintf(&out, "%-12s %5d %7d %5d %14s %15s %s\n", name, len(s.kinds), s.objects, s.same,
			podCount(s.pods.direct, s.pods.directPerNode), podCount(s.pods.members, s.pods.membersPerNode), s.pods.why)
		for _, e := range s.exceptions {
			fmt.Fprintf(&out, "    %s: %s\n", strings.TrimPrefix(e.id, name+" "), e.why)
		}
	}
	objects, same, kinds := r.total()
	fmt.Fprintf(&out, "%d of %d objects of %d kinds are the same: %.1f %%\n", same, objects, len(kinds), 100*float64(same)/float64(objects))
	return out.String()
}

func podCount(n, perNode int) string {
	if perNode == 0 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%d + %d", n, perNode)
}

// markdown is the table of docs/apps.md.
func (r *comparisonResult) markdown() string {
	var out strings.Builder
	out.WriteString("| set | kinds | objects | same | pods directly | pods in three members |\n|---|---|---|---|---|---|\n")
	for _, name := range r.order {
		s := r.sets[name]
		fmt.Fprintf(&out, "| `%s` | %d | %d | %d | %s | %s |\n", name, len(s.kinds), s.objects, s.same,
			podCount(s.pods.direct, s.pods.directPerNode), podCount(s.pods.members, s.pods.membersPerNode))
	}
	objects, same, kinds := r.total()
	fmt.Fprintf(&out, "| all | %d | %d | %d, %.1f %% | | |\n", len(kinds), objects, same, 100*float64(same)/float64(objects))
	return out.String()
}
