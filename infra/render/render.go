// Package render writes changes for people, in OpenTofu's format. It imports only infra/change and
// the contract of providers, and its output depends on the change alone.
package render

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/atoll-dev/atoll/infra/change"
)

// Renderer writes changes for people.
type Renderer struct {
	// Color adds terminal colours.
	Color bool
	// Namespace is left out of addresses.
	Namespace string
}

// Change writes a change in OpenTofu's format. It writes nothing for a no-op.
func (r Renderer) Change(out io.Writer, c *change.Change) error {
	if c.Deferred != "" {
		_, err := fmt.Fprintf(out, "  # %s is deferred: %s\n", r.bold(r.address(c)), printable(c.Deferred))
		return err
	}
	if c.Action == change.NoOp {
		return nil
	}
	return r.write(out, c, c.Action, change.Difference{Before: c.Before, After: c.After, Fields: c.Fields}, r.headline(c))
}

// Drift writes the changes that were made outside of Atoll, if any.
func (r Renderer) Drift(out io.Writer, c *change.Change) error {
	if c.Drift == nil {
		return nil
	}
	action, what := change.Update, " has changed"
	if c.Drift.After == nil {
		action, what = change.Delete, " has been deleted"
	}
	return r.write(out, c, action, *c.Drift, "  # "+r.bold(r.address(c))+what+"\n")
}

func (r Renderer) write(out io.Writer, c *change.Change, action change.Action, values change.Difference, headline string) error {
	before, err := values.Before.Node(c.Shapes)
	if err != nil {
		return fmt.Errorf("%s: %w", c.Address, err)
	}
	after, err := values.After.Node(c.Shapes)
	if err != nil {
		return fmt.Errorf("%s: %w", c.Address, err)
	}
	p := &printer{Renderer: r, forcing: map[string]bool{}, from: map[string][]string{}, all: action == change.Import || action == change.Forget, plain: action == change.Forget}
	for _, f := range values.Fields {
		p.forcing[f.Path] = f.ForcesReplacement
		p.from[f.Path] = f.From
	}
	if action == change.Forget {
		after = before // it is not destroyed
	}
	d := change.Compare(before, after, "")
	if d == nil {
		d = &change.Delta{Sign: ' '}
	}
	addWriteOnly(d, values.Fields)
	kind, typeName := "resource", c.Address.Type
	if c.Address.Data {
		kind = "data"
	}
	if _, of, is := c.Address.Workload(); is {
		kind, typeName = "workload", of
	}
	p.text.WriteString(headline)
	fmt.Fprintf(&p.text, "%s %s %s %s {\n", r.symbol(action, c), kind, strconv.Quote(typeName), strconv.Quote(c.Address.Name))
	p.members(d, 1, true)
	p.text.WriteString("    }\n")
	_, err = io.WriteString(out, p.text.String())
	return err
}

// addWriteOnly adds attributes that change without a visible difference: write-only ones that force
// a replacement.
func addWriteOnly(d *change.Delta, fields []change.Field) {
	for _, f := range fields {
		if f.Action != change.FieldChanged || !f.Sensitive || f.Before != nil || f.After != nil || strings.ContainsAny(f.Path, ".[") {
			continue
		}
		if slices.ContainsFunc(d.Children, func(one *change.Delta) bool { return one.Path == f.Path }) {
			continue
		}
		hidden := &change.Node{Kind: change.SecretNode}
		d.Children = append(d.Children, &change.Delta{Sign: '~', Path: f.Path, Name: f.Path, Before: hidden, After: hidden})
	}
	slices.SortStableFunc(d.Children, func(a, b *change.Delta) int { return strings.Compare(a.Name, b.Name) })
}

func (r Renderer) address(c *change.Change) string {
	a := c.Address
	if a.Namespace == r.Namespace {
		a.Namespace = ""
	}
	return printable(a.String())
}

// other formats the address of another resource.
func (r Renderer) other(a *change.Address) string {
	if a == nil {
		return "another object"
	}
	return r.address(&change.Change{Address: *a})
}

func (r Renderer) headline(c *change.Change) string {
	var b strings.Builder
	b.WriteString("  # " + r.bold(r.address(c)))
	note := func(format string, args ...any) { fmt.Fprintf(&b, "\n  # ("+format+")", args...) }
	switch c.Action {
	case change.Create:
		b.WriteString(" will be created")
	case change.Update:
		b.WriteString(" will be updated in-place")
		if c.Reason == change.Sensitivity {
			note("only the sensitivity of values changes")
		}
	case change.Replace:
		switch c.Reason {
		case change.Tainted:
			b.WriteString(" is tainted, so it must be " + r.red("replaced"))
		case change.Requested:
			b.WriteString(" will be " + r.red("replaced") + ", as requested")
		case change.Triggered:
			b.WriteString(" will be " + r.red("replaced") + " due to changes in replace_triggered_by")
			note("because of %s", printable(c.Detail))
		default:
			b.WriteString(" must be " + r.red("replaced"))
		}
		if c.KeepOld {
			note("the current resource will be removed from the state " + r.red("but will not be destroyed"))
		}
	case change.Delete:
		b.WriteString(" will be " + r.red("destroyed"))
		switch c.Reason {
		case change.NotWritten:
			note("because it has no object")
		case change.ObjectDeleted:
			note("because its object is being deleted")
		case change.LeftOver:
			note("left over from a partially-failed replacement of this instance")
		case change.LeavesClusters:
			note("%s", printable(c.Detail))
		}
	case change.Read:
		b.WriteString(" will be read during apply")
		switch c.Reason {
		case change.ConfigUnknown:
			note("its arguments refer to values not yet known")
		case change.DependencyPending:
			note("depends on a resource with changes pending")
		}
	case change.Import:
		b.WriteString(" will be imported")
	case change.Place:
		b.WriteString(" will be " + r.placing(c))
		note("%s", printable(c.Detail))
	case change.Move:
		b.WriteString(" will continue a resource under another name")
	case change.Forget:
		switch c.Reason {
		case change.MovedAway:
			b.WriteString(" will be removed from the state")
			note("%s continues the resource", r.other(c.MovedTo))
		case change.Released:
			b.WriteString(" will be released for another namespace " + r.red("but will not be destroyed"))
			note("%s can take it over with spec.movedFrom", r.other(c.MovedTo))
		default:
			b.WriteString(" will be removed from the state " + r.red("but will not be destroyed"))
		}
	}
	if c.MovedFrom != nil {
		note("moved from %s", r.other(c.MovedFrom))
	}
	if c.Importing != "" {
		note("imported from %s", strconv.Quote(c.Importing))
		if c.Action == change.Replace && !c.KeepOld {
			b.WriteString("\n  # " + r.paint(yellow, "Warning: this will destroy the imported resource"))
		}
	}
	return b.String() + "\n"
}

// Legend explains the symbols of the actions that occur.
func (r Renderer) Legend(c change.Counts) string {
	var b strings.Builder
	for _, l := range []struct {
		count  int
		action change.Action
		text   string
	}{
		{c.Create, change.Create, "create"}, {c.Update, change.Update, "update in-place (current -> planned)"}, {c.Delete, change.Delete, "destroy"},
		{c.Replace, change.Replace, "destroy and then create replacement (+/-: create replacement and then destroy)"}, {c.Read, change.Read, "read (data sources)"}, {c.Forget, change.Forget, "forget"},
		{c.Place, change.Place, "place in member clusters"},
	} {
		if l.count > 0 {
			b.WriteString(r.symbol(l.action, &change.Change{}) + " " + l.text + "\n")
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
func (r Renderer) symbol(action change.Action, c *change.Change) string {
	plus, minus := r.paint(green, "+"), r.paint(red, "-")
	if c.KeepOld {
		minus = r.paint(red, ".")
	}
	switch action {
	case change.Create:
		return "  " + plus
	case change.Update:
		return "  " + r.paint(yellow, "~")
	case change.Delete:
		return "  " + minus
	case change.Replace:
		if c.CreateFirst {
			return plus + "/" + minus
		}
		return minus + "/" + plus
	case change.Read:
		return " " + r.paint(cyan, "<=")
	case change.Forget:
		return "  " + r.paint(red, ".")
	case change.Place:
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

// placing describes a Place in a few words.
func (r Renderer) placing(c *change.Change) string {
	if c.Before == nil {
		return "placed in clusters"
	}
	return "changed in clusters"
}
