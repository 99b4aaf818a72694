package plan

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"

	"github.com/atoll-dev/atoll/infra/contract"
)

// printer writes one resource.
type printer struct {
	Renderer
	text    strings.Builder
	forcing map[string]bool     // paths that force a replacement
	from    map[string][]string // references that a value comes from
	all     bool                // also show unchanged values
	plain   bool                // nothing is destroyed: omit "-> null"
}

// line starts a line with four columns per level and the symbol.
func (p *printer) line(indent int, sign byte) {
	p.text.WriteString(strings.Repeat("    ", indent))
	p.text.WriteString(p.sign(sign))
}

func (p *printer) sign(sign byte) string {
	color := map[byte]string{'+': green, '-': red, '~': yellow}[sign]
	if color == "" {
		return "    "
	}
	return "  " + p.paint(color, string(sign)) + " "
}

func (p *printer) hidden(indent, n int, what string) {
	if n == 0 {
		return
	}
	if n > 1 {
		what += "s"
	}
	p.line(indent, ' ')
	p.text.WriteString(p.paint(gray, fmt.Sprintf("# (%d unchanged %s hidden)", n, what)) + "\n")
}

// members writes attributes, then blocks. Identifying attributes are always shown.
func (p *printer) members(d *delta, indent int, inBlock bool) {
	width, unchanged := 0, 0
	for _, one := range d.children {
		if !one.isBlock() {
			width = max(width, len(key(one.name)))
		}
	}
	attributes := false
	for _, one := range d.children {
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

func (p *printer) blocks(d *delta, indent int, afterAttributes bool) {
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
	for _, one := range d.children {
		if !one.isBlock() {
			continue
		}
		before := p.text.Len()
		if one.shape() == ShapeBlock {
			block(one, one.name, true)
			continue
		}
		for _, element := range one.children {
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
		return d.before.shapeOrNone()
	}
	return d.after.shape
}

func (n *node) shapeOrNone() Shape {
	if n == nil {
		return ""
	}
	return n.shape
}

// isBlock reports whether the difference is shown as a block. Masked or unknown blocks are shown as
// attributes.
func (d *delta) isBlock() bool {
	seen := func(n *node) bool { return n.null() || n.kind == objectNode || n.kind == listNode }
	return d.shape().block() && seen(d.before) && seen(d.after)
}

func (p *printer) suffix(d *delta) string {
	if p.forcing[d.path] {
		return " " + p.paint(red, "# forces replacement")
	}
	return ""
}

func (p *printer) origin(d *delta) {
	if from := p.from[d.path]; len(from) > 0 && d.sign != ' ' {
		p.text.WriteString(" " + p.paint(gray, "# from "+printable(strings.Join(strings.Fields(strings.Join(from, ", ")), " "))))
	}
}

// value writes a changed value. Elements that are removed from a collection need no "-> null".
func (p *printer) value(d *delta, indent int, element, whole bool) {
	suffix := ""
	if d.sign == '-' && !element && !p.plain {
		suffix = " " + p.paint(gray, "-> null")
	}
	switch {
	case len(d.children) > 0 && !d.isLeaf():
		p.composite(d, indent, whole)
		if d.after != nil && d.after.kind == unknownNode {
			suffix = " -> (known after apply)" + p.suffix(d)
		}
		p.text.WriteString(suffix)
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
		p.text.WriteString(suffix)
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

func (p *printer) composite(d *delta, indent int, whole bool) {
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

func (p *printer) entries(d *delta, indent int) {
	width, unchanged := 0, 0
	for _, one := range d.children {
		width = max(width, len(strconv.Quote(one.name)))
	}
	for _, one := range d.children {
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

// elements writes the elements of a list with their neighbours, because order matters, and only the
// changed elements of a set.
func (p *printer) elements(d *delta, indent int, set bool) {
	unchanged := 0
	for i, one := range d.children {
		near := !set && (i > 0 && d.children[i-1].sign != ' ' || i+1 < len(d.children) && d.children[i+1].sign != ' ')
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

// leaf writes a whole value without changes in it.
func (p *printer) leaf(n *node, indent int) {
	switch {
	case n.null():
		p.text.WriteString("null")
	case n.kind == unknownNode:
		p.text.WriteString("(known after apply)")
	case n.kind == secretNode:
		p.text.WriteString("(sensitive value)")
	case n.kind == objectNode && len(n.children) == 0:
		p.text.WriteString("{}")
	case n.kind == listNode && len(n.children) == 0:
		p.text.WriteString("[]")
	case n.kind == objectNode || n.kind == listNode:
		p.composite(diff(n, n, ""), indent, true)
	default:
		p.scalar(n, indent)
	}
}

func (p *printer) scalar(n *node, indent int) {
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

func (p *printer) heredoc(indent int, body func()) {
	p.text.WriteString("<<-EOT\n")
	body()
	p.text.WriteString(strings.Repeat("    ", indent) + "    EOT")
}

// multiline reports whether a text is shown line by line: it has several lines and no control
// characters that a terminal would interpret.
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

// lines writes a changed multi-line text line by line, and reports whether it did.
func (p *printer) lines(d *delta, indent int) bool {
	before, is := d.before.text()
	after, also := d.after.text()
	if !is || !also || !multiline(before) && !multiline(after) || strings.ContainsFunc(before+after, func(c rune) bool {
		return c != '\n' && c != '\t' && !unicode.IsPrint(c)
	}) {
		return false
	}
	was, now := lineNodes(before), lineNodes(after)
	changes := &delta{before: &node{kind: listNode, children: was}, after: &node{kind: listNode, children: now}}
	changes.diffElements()
	p.text.WriteString(p.suffixed(d, "<<-EOT") + "\n")
	for _, one := range changes.children {
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

func (p *printer) suffixed(d *delta, text string) string { return text + p.suffix(d) }

func lineNodes(text string) []*node {
	var out []*node
	for _, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		out = append(out, &node{kind: leafNode, raw: []byte(line)})
	}
	return out
}

// key formats a name for the left side of an equals sign: quoted if it is not an identifier.
func key(name string) string { return contract.NameText(name) }
