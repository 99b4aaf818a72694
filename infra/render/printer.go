package render

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"

	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/providerapi"
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
func (p *printer) members(d *change.Delta, indent int, inBlock bool) {
	width, unchanged := 0, 0
	for _, one := range d.Children {
		if !isBlock(one) {
			width = max(width, len(key(one.Name)))
		}
	}
	attributes := false
	for _, one := range d.Children {
		if isBlock(one) {
			continue
		}
		attributes = true
		known := inBlock && (one.Name == "id" || one.Name == "name" || one.Name == "tags")
		if one.Sign == ' ' && !p.all && !known {
			unchanged++
			continue
		}
		p.line(indent, one.Sign)
		fmt.Fprintf(&p.text, "%-*s = ", width, key(one.Name))
		p.value(one, indent, false, known)
		p.origin(one)
		p.text.WriteByte('\n')
	}
	p.hidden(indent, unchanged, "attribute")
	p.blocks(d, indent, attributes)
}

func (p *printer) blocks(d *change.Delta, indent int, afterAttributes bool) {
	unchanged := 0
	block := func(one *change.Delta, label string, first bool) {
		if one.Sign == ' ' && !p.all {
			unchanged++
			return
		}
		if first && afterAttributes {
			p.text.WriteByte('\n')
		}
		p.line(indent, one.Sign)
		p.text.WriteString(key(label))
		if one.Name != label {
			p.text.WriteString(" " + strconv.Quote(one.Name))
		}
		p.text.WriteString(" {" + p.suffix(one) + "\n")
		p.members(one, indent+1, true)
		p.text.WriteString(strings.Repeat("    ", indent) + "    }\n")
	}
	for _, one := range d.Children {
		if !isBlock(one) {
			continue
		}
		before := p.text.Len()
		if shapeOf(one) == change.ShapeBlock {
			block(one, one.Name, true)
			continue
		}
		for _, element := range one.Children {
			labelled := *element
			if shapeOf(one) != change.ShapeBlockMap {
				labelled.Name = one.Name
			}
			block(&labelled, one.Name, p.text.Len() == before)
		}
	}
	if unchanged > 0 {
		p.text.WriteByte('\n')
		p.hidden(indent, unchanged, "block")
	}
}

// shapeOf returns the shape of the planned value, or of the prior one if nothing is planned or known.
func shapeOf(d *change.Delta) change.Shape {
	if d.After.IsNull() || d.After.Kind == change.UnknownNode {
		return shapeOrNone(d.Before)
	}
	return d.After.Shape
}

func shapeOrNone(n *change.Node) change.Shape {
	if n == nil {
		return ""
	}
	return n.Shape
}

// isBlock reports whether the difference is shown as a block. Masked or unknown blocks are shown as
// attributes.
func isBlock(d *change.Delta) bool {
	seen := func(n *change.Node) bool {
		return n.IsNull() || n.Kind == change.ObjectNode || n.Kind == change.ListNode
	}
	return shapeOf(d).IsBlock() && seen(d.Before) && seen(d.After)
}

func (p *printer) suffix(d *change.Delta) string {
	if p.forcing[d.Path] {
		return " " + p.paint(red, "# forces replacement")
	}
	return ""
}

func (p *printer) origin(d *change.Delta) {
	if from := p.from[d.Path]; len(from) > 0 && d.Sign != ' ' {
		p.text.WriteString(" " + p.paint(gray, "# from "+printable(strings.Join(strings.Fields(strings.Join(from, ", ")), " "))))
	}
}

// value writes a changed value. Elements that are removed from a collection need no "-> null".
func (p *printer) value(d *change.Delta, indent int, element, whole bool) {
	suffix := ""
	if d.Sign == '-' && !element && !p.plain {
		suffix = " " + p.paint(gray, "-> null")
	}
	switch {
	case len(d.Children) > 0 && !isLeaf(d):
		p.composite(d, indent, whole)
		if d.After != nil && d.After.Kind == change.UnknownNode {
			suffix = " -> (known after apply)" + p.suffix(d)
		}
		p.text.WriteString(suffix)
		return
	case d.Sign == '~' && p.lines(d, indent):
		return
	case d.Sign == '~' && d.Before.Kind == change.SecretNode && d.After.Kind == change.SecretNode:
		p.text.WriteString("(sensitive value)")
	case d.Sign == '~':
		p.leaf(d.Before, indent)
		p.text.WriteString(" " + p.paint(yellow, "->") + " ")
		p.leaf(d.After, indent)
	case d.Sign == '-':
		p.leaf(d.Before, indent)
		p.text.WriteString(suffix)
	default:
		p.leaf(d.After, indent)
	}
	p.text.WriteString(p.suffix(d))
}

func isLeaf(d *change.Delta) bool {
	n := d.After
	if n.IsNull() || n.Kind == change.UnknownNode {
		n = d.Before
	}
	return n.IsNull() || n.Kind != change.ListNode && n.Kind != change.ObjectNode
}

func (p *printer) composite(d *change.Delta, indent int, whole bool) {
	n := d.After
	if n.IsNull() || n.Kind == change.UnknownNode {
		n = d.Before
	}
	all := p.all
	p.all = all || whole || d.Sign == ' '
	defer func() { p.all = all }()
	suffix := p.suffix(d)
	if d.After != nil && d.After.Kind == change.UnknownNode {
		p.all, suffix = true, ""
	}
	switch {
	case n.Kind == change.ObjectNode && n.Shape.IsKeyed():
		p.text.WriteString("{" + suffix + "\n")
		p.entries(d, indent+1)
		p.text.WriteString(strings.Repeat("    ", indent) + "    }")
	case n.Kind == change.ObjectNode:
		p.text.WriteString("{" + suffix + "\n")
		p.members(d, indent+1, false)
		p.text.WriteString(strings.Repeat("    ", indent) + "    }")
	default:
		p.text.WriteString("[" + suffix + "\n")
		p.elements(d, indent+1, n.Shape.IsSet())
		p.text.WriteString(strings.Repeat("    ", indent) + "    ]")
	}
}

func (p *printer) entries(d *change.Delta, indent int) {
	width, unchanged := 0, 0
	for _, one := range d.Children {
		width = max(width, len(strconv.Quote(one.Name)))
	}
	for _, one := range d.Children {
		if one.Sign == ' ' && !p.all {
			unchanged++
			continue
		}
		p.line(indent, one.Sign)
		fmt.Fprintf(&p.text, "%-*s = ", width, strconv.Quote(one.Name))
		p.value(one, indent, d.Sign == '-', false)
		p.text.WriteByte('\n')
	}
	p.hidden(indent, unchanged, "element")
}

// elements writes the elements of a list with their neighbours, because order matters, and only the
// changed elements of a set.
func (p *printer) elements(d *change.Delta, indent int, set bool) {
	unchanged := 0
	for i, one := range d.Children {
		near := !set && (i > 0 && d.Children[i-1].Sign != ' ' || i+1 < len(d.Children) && d.Children[i+1].Sign != ' ')
		if one.Sign == ' ' && !p.all && !near {
			unchanged++
			continue
		}
		p.hidden(indent, unchanged, "element")
		unchanged = 0
		p.line(indent, one.Sign)
		p.value(one, indent, true, one.Sign == ' ')
		p.text.WriteString(",\n")
	}
	p.hidden(indent, unchanged, "element")
}

// leaf writes a whole value without changes in it.
func (p *printer) leaf(n *change.Node, indent int) {
	switch {
	case n.IsNull():
		p.text.WriteString("null")
	case n.Kind == change.UnknownNode:
		p.text.WriteString("(known after apply)")
	case n.Kind == change.SecretNode:
		p.text.WriteString("(sensitive value)")
	case n.Kind == change.ObjectNode && len(n.Children) == 0:
		p.text.WriteString("{}")
	case n.Kind == change.ListNode && len(n.Children) == 0:
		p.text.WriteString("[]")
	case n.Kind == change.ObjectNode || n.Kind == change.ListNode:
		p.composite(change.Compare(n, n, ""), indent, true)
	default:
		p.scalar(n, indent)
	}
}

func (p *printer) scalar(n *change.Node, indent int) {
	text, is := n.Text()
	if !is {
		p.text.Write(n.Raw)
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
func (p *printer) lines(d *change.Delta, indent int) bool {
	before, is := d.Before.Text()
	after, also := d.After.Text()
	if !is || !also || !multiline(before) && !multiline(after) || strings.ContainsFunc(before+after, func(c rune) bool {
		return c != '\n' && c != '\t' && !unicode.IsPrint(c)
	}) {
		return false
	}
	was, now := lineNodes(before), lineNodes(after)
	changes := change.Compare(&change.Node{Kind: change.ListNode, Children: was}, &change.Node{Kind: change.ListNode, Children: now}, "")
	p.text.WriteString(p.suffixed(d, "<<-EOT") + "\n")
	for _, one := range changes.Children {
		p.line(indent+1, one.Sign)
		n := one.After
		if one.Sign == '-' {
			n = one.Before
		}
		p.text.WriteString(string(n.Raw) + "\n")
	}
	p.text.WriteString(strings.Repeat("    ", indent) + "    EOT")
	return true
}

func (p *printer) suffixed(d *change.Delta, text string) string { return text + p.suffix(d) }

func lineNodes(text string) []*change.Node {
	var out []*change.Node
	for _, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		out = append(out, &change.Node{Kind: change.LeafNode, Raw: []byte(line)})
	}
	return out
}

// key formats a name for the left side of an equals sign: quoted if it is not an identifier.
func key(name string) string { return providerapi.NameText(name) }
