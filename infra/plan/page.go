package plan

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"

	"github.com/atoll-dev/atoll/infra/contract"
)

// page is what is written of one resource.
type page struct {
	Rendering
	text    strings.Builder
	forcing map[string]bool     // paths that force a replacement
	from    map[string][]string // references that a value comes from
	all     bool                // also show what does not change
	plain   bool                // nothing is destroyed, whatever goes
}

// line begins one: four columns for each level, and the symbol.
func (p *page) line(indent int, sign byte) {
	p.text.WriteString(strings.Repeat("    ", indent))
	p.text.WriteString(p.sign(sign))
}

func (p *page) sign(sign byte) string {
	color := map[byte]string{'+': green, '-': red, '~': yellow}[sign]
	if color == "" {
		return "    "
	}
	return "  " + p.paint(color, string(sign)) + " "
}

func (p *page) hidden(indent, n int, what string) {
	if n == 0 {
		return
	}
	if n > 1 {
		what += "s"
	}
	p.line(indent, ' ')
	p.text.WriteString(p.paint(gray, fmt.Sprintf("# (%d unchanged %s hidden)", n, what)) + "\n")
}

// members writes attributes, and then blocks. Those by which people know a resource are always shown.
func (p *page) members(d *delta, indent int, inBlock bool) {
	width, unchanged := 0, 0
	for _, one := range d.of {
		if !one.isBlock() {
			width = max(width, len(key(one.name)))
		}
	}
	attributes := false
	for _, one := range d.of {
		if one.isBlock() {
			continue
		}
		attributes = true
		known := inBlock && (one.name == "id" || one.name == "name" || one.name == "tags")
		if one.sign == ' ' && !p.all && !known {
			unchanged++
			continue
		}
		p.line(indent, one.sign)
		fmt.Fprintf(&p.text, "%-*s = ", width, key(one.name))
		p.value(one, indent, false, known)
		p.origin(one)
		p.text.WriteByte('\n')
	}
	p.hidden(indent, unchanged, "attribute")
	p.blocks(d, indent, attributes)
}

func (p *page) blocks(d *delta, indent int, afterAttributes bool) {
	unchanged := 0
	block := func(one *delta, label string, first bool) {
		if one.sign == ' ' && !p.all {
			unchanged++
			return
		}
		if first && afterAttributes {
			p.text.WriteByte('\n')
		}
		p.line(indent, one.sign)
		p.text.WriteString(key(label))
		if one.name != label {
			p.text.WriteString(" " + strconv.Quote(one.name))
		}
		p.text.WriteString(" {" + p.suffix(one) + "\n")
		p.members(one, indent+1, true)
		p.text.WriteString(strings.Repeat("    ", indent) + "    }\n")
	}
	for _, one := range d.of {
		if !one.isBlock() {
			continue
		}
		before := p.text.Len()
		if one.shape() == ShapeBlock {
			block(one, one.name, true)
			continue
		}
		for _, element := range one.of {
			labelled := *element
			if one.shape() != ShapeBlockMap {
				labelled.name = one.name
			}
			block(&labelled, one.name, p.text.Len() == before)
		}
	}
	if unchanged > 0 {
		p.text.WriteByte('\n')
		p.hidden(indent, unchanged, "block")
	}
}

func (d *delta) shape() Shape {
	if d.after.null() || d.after.kind == unknownNode {
		return d.before.shapeOr()
	}
	return d.after.shape
}

func (n *node) shapeOr() Shape {
	if n == nil {
		return ""
	}
	return n.shape
}

// isBlock tells whether it is shown as a block. Blocks of which nothing can be seen look like attributes.
func (d *delta) isBlock() bool {
	seen := func(n *node) bool { return n.null() || n.kind == objectNode || n.kind == listNode }
	return d.shape().block() && seen(d.before) && seen(d.after)
}

func (p *page) suffix(d *delta) string {
	if p.forcing[d.path] {
		return " " + p.paint(red, "# forces replacement")
	}
	return ""
}

func (p *page) origin(d *delta) {
	if from := p.from[d.path]; len(from) > 0 && d.sign != ' ' {
		p.text.WriteString(" " + p.paint(gray, "# from "+printable(strings.Join(strings.Fields(strings.Join(from, ", ")), " "))))
	}
}

// value writes what becomes of one. Within a collection, what goes needs no words for it.
func (p *page) value(d *delta, indent int, element, whole bool) {
	gone := ""
	if d.sign == '-' && !element && !p.plain {
		gone = " " + p.paint(gray, "-> null")
	}
	switch {
	case len(d.of) > 0 && !d.isLeaf():
		p.composite(d, indent, whole)
		if d.after != nil && d.after.kind == unknownNode {
			gone = " -> (known after apply)" + p.suffix(d)
		}
		p.text.WriteString(gone)
		return
	case d.sign == '~' && p.lines(d, indent):
		return
	case d.sign == '~' && d.before.kind == secretNode && d.after.kind == secretNode:
		p.text.WriteString("(sensitive value)")
	case d.sign == '~':
		p.leaf(d.before, indent)
		p.text.WriteString(" " + p.paint(yellow, "->") + " ")
		p.leaf(d.after, indent)
	case d.sign == '-':
		p.leaf(d.before, indent)
		p.text.WriteString(gone)
	default:
		p.leaf(d.after, indent)
	}
	p.text.WriteString(p.suffix(d))
}

func (d *delta) isLeaf() bool {
	n := d.after
	if n.null() || n.kind == unknownNode {
		n = d.before
	}
	return n.null() || n.kind != listNode && n.kind != objectNode
}

func (p *page) composite(d *delta, indent int, whole bool) {
	n := d.after
	if n.null() || n.kind == unknownNode {
		n = d.before
	}
	all := p.all
	p.all = all || whole || d.sign == ' '
	defer func() { p.all = all }()
	suffix := p.suffix(d)
	if d.after != nil && d.after.kind == unknownNode {
		p.all, suffix = true, ""
	}
	switch {
	case n.kind == objectNode && n.shape.keyed():
		p.text.WriteString("{" + suffix + "\n")
		p.entries(d, indent+1)
		p.text.WriteString(strings.Repeat("    ", indent) + "    }")
	case n.kind == objectNode:
		p.text.WriteString("{" + suffix + "\n")
		p.members(d, indent+1, false)
		p.text.WriteString(strings.Repeat("    ", indent) + "    }")
	default:
		p.text.WriteString("[" + suffix + "\n")
		p.elements(d, indent+1, n.shape.set())
		p.text.WriteString(strings.Repeat("    ", indent) + "    ]")
	}
}

func (p *page) entries(d *delta, indent int) {
	width, unchanged := 0, 0
	for _, one := range d.of {
		width = max(width, len(strconv.Quote(one.name)))
	}
	for _, one := range d.of {
		if one.sign == ' ' && !p.all {
			unchanged++
			continue
		}
		p.line(indent, one.sign)
		fmt.Fprintf(&p.text, "%-*s = ", width, strconv.Quote(one.name))
		p.value(one, indent, d.sign == '-', false)
		p.text.WriteByte('\n')
	}
	p.hidden(indent, unchanged, "element")
}

// elements writes those of a list with their neighbours, because order matters; of a set only
// what comes and goes.
func (p *page) elements(d *delta, indent int, set bool) {
	unchanged := 0
	for i, one := range d.of {
		near := !set && (i > 0 && d.of[i-1].sign != ' ' || i+1 < len(d.of) && d.of[i+1].sign != ' ')
		if one.sign == ' ' && !p.all && !near {
			unchanged++
			continue
		}
		p.hidden(indent, unchanged, "element")
		unchanged = 0
		p.line(indent, one.sign)
		p.value(one, indent, true, one.sign == ' ')
		p.text.WriteString(",\n")
	}
	p.hidden(indent, unchanged, "element")
}

// leaf writes a value that nothing becomes of, or all of it.
func (p *page) leaf(n *node, indent int) {
	switch {
	case n.null():
		p.text.WriteString("null")
	case n.kind == unknownNode:
		p.text.WriteString("(known after apply)")
	case n.kind == secretNode:
		p.text.WriteString("(sensitive value)")
	case n.kind == objectNode && len(n.of) == 0:
		p.text.WriteString("{}")
	case n.kind == listNode && len(n.of) == 0:
		p.text.WriteString("[]")
	case n.kind == objectNode || n.kind == listNode:
		p.composite(compared(n, n, ""), indent, true)
	default:
		p.scalar(n, indent)
	}
}

func (p *page) scalar(n *node, indent int) {
	text, is := n.text()
	if !is {
		p.text.Write(n.raw)
		return
	}
	if !multiline(text) {
		p.text.WriteString(strconv.Quote(text))
		return
	}
	p.heredoc(indent, func() {
		for _, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
			p.line(indent+1, ' ')
			p.text.WriteString(line + "\n")
		}
	})
}

func (p *page) heredoc(indent int, body func()) {
	p.text.WriteString("<<-EOT\n")
	body()
	p.text.WriteString(strings.Repeat("    ", indent) + "    EOT")
}

// multiline tells whether a text is better read in lines: it has several, and nothing that would
// do something to a terminal.
func multiline(text string) bool {
	if !strings.Contains(strings.TrimSuffix(text, "\n"), "\n") {
		return false
	}
	for _, c := range text {
		if c != '\n' && c != '\t' && !unicode.IsPrint(c) {
			return false
		}
	}
	return true
}

// lines writes a changed text of several lines line by line, if both are such.
func (p *page) lines(d *delta, indent int) bool {
	before, is := d.before.text()
	after, also := d.after.text()
	if !is || !also || !multiline(before) && !multiline(after) || strings.ContainsFunc(before+after, func(c rune) bool {
		return c != '\n' && c != '\t' && !unicode.IsPrint(c)
	}) {
		return false
	}
	was, now := lineNodes(before), lineNodes(after)
	changes := &delta{before: &node{kind: listNode, of: was}, after: &node{kind: listNode, of: now}}
	changes.elements()
	p.text.WriteString(p.suffixed(d, "<<-EOT") + "\n")
	for _, one := range changes.of {
		p.line(indent+1, one.sign)
		n := one.after
		if one.sign == '-' {
			n = one.before
		}
		p.text.WriteString(string(n.raw) + "\n")
	}
	p.text.WriteString(strings.Repeat("    ", indent) + "    EOT")
	return true
}

func (p *page) suffixed(d *delta, text string) string { return text + p.suffix(d) }

func lineNodes(text string) []*node {
	var out []*node
	for _, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		out = append(out, &node{kind: leafNode, raw: []byte(line)})
	}
	return out
}

// key is a name as it stands before an equals sign: in quotes if it is not a word.
func key(name string) string { return contract.NameText(name) }
