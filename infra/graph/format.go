package graph

import (
	"bufio"
	"io"
	"strconv"
	"strings"
)

// Path formats a cycle: a → b → a for the cycle a, b.
func Path(cycle []int32, name func(int32) string) string {
	var out strings.Builder
	for _, n := range cycle {
		out.WriteString(name(n) + " → ")
	}
	if len(cycle) > 0 {
		out.WriteString(name(cycle[0]))
	}
	return out.String()
}

// DOT writes the graph in the Graphviz language. A non-nil set limits it to those nodes.
func (g *Graph) DOT(w io.Writer, in *Set, name func(int32) string) error {
	out := bufio.NewWriter(w)
	out.WriteString("digraph {\n  rankdir = RL\n")
	g.each(in, func(n int32) {
		out.WriteString("  " + strconv.Itoa(int(n)) + " [label=" + quote(name(n)) + "]\n")
	})
	g.each(in, func(n int32) {
		for _, d := range g.Dependencies(n) {
			if in == nil || in.Has(d) {
				out.WriteString("  " + strconv.Itoa(int(n)) + " -> " + strconv.Itoa(int(d)) + "\n")
			}
		}
	})
	out.WriteString("}\n")
	return out.Flush()
}

// Text writes each node on a line, with its dependencies below it. A non-nil set limits it to those
// nodes.
func (g *Graph) Text(w io.Writer, in *Set, name func(int32) string) error {
	out := bufio.NewWriter(w)
	g.each(in, func(n int32) {
		out.WriteString(name(n) + "\n")
		for _, d := range g.Dependencies(n) {
			if in == nil || in.Has(d) {
				out.WriteString("  → " + name(d) + "\n")
			}
		}
	})
	return out.Flush()
}

func (g *Graph) each(in *Set, do func(int32)) {
	if in != nil {
		in.All()(func(n int32) bool { do(n); return true })
		return
	}
	for n := range g.Len() {
		do(int32(n))
	}
}

// quote quotes a DOT string, which has only these escapes.
func quote(text string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(text) + `"`
}
