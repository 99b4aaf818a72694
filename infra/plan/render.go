package plan

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// Renderer writes changes for people.
type Renderer struct {
	// Color adds terminal colours.
	Color bool
	// Namespace is left out of addresses.
	Namespace string
}

// Change writes a change in OpenTofu's format. It writes nothing for a no-op.
func (r Renderer) Change(out io.Writer, c *Change) error {
	if c.Deferred != "" {
		_, err := fmt.Fprintf(out, "  # %s is deferred: %s\n", r.bold(r.address(c)), printable(c.Deferred))
		return err
	}
	if c.Action == NoOp {
		return nil
	}
	return r.write(out, c, c.Action, Difference{Before: c.Before, After: c.After, Fields: c.Fields}, r.headline(c))
}

// Drift writes the changes that were made outside of Atoll, if any.
func (r Renderer) Drift(out io.Writer, c *Change) error {
	if c.Drift == nil {
		return nil
	}
	action, what := Update, " has changed"
	if c.Drift.After == nil {
		action, what = Delete, " has been deleted"
	}
	return r.write(out, c, action, *c.Drift, "  # "+r.bold(r.address(c))+what+"\n")
}

func (r Renderer) write(out io.Writer, c *Change, action Action, values Difference, headline string) error {
	before, err := values.Before.node(c.Shapes)
	if err != nil {
		return fmt.Errorf("%s: %w", c.Address, err)
	}
	after, err := values.After.node(c.Shapes)
	if err != nil {
		return fmt.Errorf("%s: %w", c.Address, err)
	}
	p := &printer{Renderer: r, forcing: map[string]bool{}, from: map[string][]string{}, all: action == Import || action == Forget, plain: action == Forget}
	for _, f := range values.Fields {
		p.forcing[f.Path] = f.ForcesReplacement
		p.from[f.Path] = f.From
	}
	if action == Forget {
		after = before // it is not destroyed
	}
	d := diff(before, after, "")
	if d == nil {
		d = &delta{sign: ' '}
	}
	d.addWriteOnly(values.Fields)
	kind, typeName := "resource", c.Address.Type
	if c.Address.Data {
		kind = "data"
	}
	if _, of, is := c.Address.Workload(); is {
		kind, typeName = "workload", of
	}
	p.text.WriteString(headline)
	fmt.Fprintf(&p.text, "%s %s %s %s {\n", r.symbol(action, c.CreateFirst), kind, strconv.Quote(typeName), strconv.Quote(c.Address.Name))
	p.members(d, 1, true)
	p.text.WriteString("    }\n")
	_, err = io.WriteString(out, p.text.String())
	return err
}

// addWriteOnly adds attributes that change without a visible difference: write-only ones that force
// a replacement.
func (d *delta) addWriteOnly(fields []Field) {
	for _, f := range fields {
		if f.Action != FieldChanged || !f.Sensitive || f.Before != nil || f.After != nil || strings.ContainsAny(f.Path, ".[") {
			continue
		}
		if slices.ContainsFunc(d.children, func(one *delta) bool { return one.path == f.Path }) {
			continue
		}
		hidden := &node{kind: secretNode}
		d.children = append(d.children, &delta{sign: '~', path: f.Path, name: f.Path, before: hidden, after: hidden})
	}
	slices.SortStableFunc(d.children, func(a, b *delta) int { return strings.Compare(a.name, b.name) })
}

func (r Renderer) address(c *Change) string {
	a := c.Address
	if a.Namespace == r.Namespace {
		a.Namespace = ""
	}
	return printable(a.String())
}

func (r Renderer) headline(c *Change) string {
	var b strings.Builder
	b.WriteString("  # " + r.bold(r.address(c)))
	note := func(format string, args ...any) { fmt.Fprintf(&b, "\n  # ("+format+")", args...) }
	switch c.Action {
	case Create:
		b.WriteString(" will be created")
	case Update:
		b.WriteString(" will be updated in-place")
		if c.Reason == Sensitivity {
			note("only the sensitivity of values changes")
		}
	case Replace:
		switch c.Reason {
		case Tainted:
			b.WriteString(" is tainted, so it must be " + r.red("replaced"))
		case Requested:
			b.WriteString(" will be " + r.red("replaced") + ", as requested")
		case Triggered:
			b.WriteString(" will be " + r.red("replaced") + " due to changes in replace_triggered_by")
			note("because of %s", printable(c.Detail))
		default:
			b.WriteString(" must be " + r.red("replaced"))
		}
	case Delete:
		b.WriteString(" will be " + r.red("destroyed"))
		switch c.Reason {
		case NotWritten:
			note("because it has no object")
		case ObjectDeleted:
			note("because its object is being deleted")
		case LeftOver:
			note("left over from a partially-failed replacement of this instance")
		case LeavesClusters:
			note("%s", printable(c.Detail))
		}
	case Read:
		b.WriteString(" will be read during apply")
		switch c.Reason {
		case ConfigUnknown:
			note("its arguments refer to values not yet known")
		case DependencyPending:
			note("depends on a resource with changes pending")
		}
	case Import:
		b.WriteString(" will be imported")
	case Place:
		b.WriteString(" will be " + r.placing(c))
		note("%s", printable(c.Detail))
	case Forget:
		b.WriteString(" will be removed from the state " + r.red("but will not be destroyed"))
	}
	if c.Importing != "" {
		note("imported from %s", strconv.Quote(c.Importing))
		if c.Action == Replace {
			b.WriteString("\n  # " + r.paint(yellow, "Warning: this will destroy the imported resource"))
		}
	}
	return b.String() + "\n"
}

// Legend explains the symbols of the actions that occur.
func (r Renderer) Legend(c Counts) string {
	var b strings.Builder
	for _, l := range []struct {
		count  int
		action Action
		text   string
	}{
		{c.Create, Create, "create"}, {c.Update, Update, "update in-place (current -> planned)"}, {c.Delete, Delete, "destroy"},
		{c.Replace, Replace, "destroy and then create replacement (+/-: create replacement and then destroy)"}, {c.Read, Read, "read (data sources)"}, {c.Forget, Forget, "forget"},
		{c.Place, Place, "place in member clusters"},
	} {
		if l.count > 0 {
			b.WriteString(r.symbol(l.action, false) + " " + l.text + "\n")
		}
	}
	return b.String()
}

const (
	red    = "31"
	green  = "32"
	yellow = "33"
	cyan   = "36"
	gray   = "90"
)

func (r Renderer) paint(color, text string) string {
	if !r.Color {
		return text
	}
	return "\x1b[" + color + "m" + text + "\x1b[0m"
}

func (r Renderer) bold(text string) string { return r.paint("1", text) }

func (r Renderer) red(text string) string { return r.paint("1;"+red, text) }

// symbol returns the three columns before a resource.
func (r Renderer) symbol(action Action, createFirst bool) string {
	plus, minus := r.paint(green, "+"), r.paint(red, "-")
	switch action {
	case Create:
		return "  " + plus
	case Update:
		return "  " + r.paint(yellow, "~")
	case Delete:
		return "  " + minus
	case Replace:
		if createFirst {
			return plus + "/" + minus
		}
		return minus + "/" + plus
	case Read:
		return " " + r.paint(cyan, "<=")
	case Forget:
		return "  " + r.paint(red, ".")
	case Place:
		return " " + r.paint(cyan, "->")
	}
	return "   "
}

// printable replaces control characters in user-supplied text, so that it cannot control the
// terminal.
func printable(text string) string {
	return strings.Map(func(c rune) rune {
		if unicode.IsPrint(c) {
			return c
		}
		return unicode.ReplacementChar
	}, text)
}
