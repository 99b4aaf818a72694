package cli

import (
	"fmt"
	"io"

	"github.com/atoll-dev/atoll/fleet/scheduler"
)

// printPreview prints what would move at once, and then what edits of policies would move later.
func printPreview(out io.Writer, format string, moves []scheduler.Move, edits []scheduler.Edit) error {
	if len(edits) == 0 {
		return printMoves(out, format, moves)
	}
	if format != "table" {
		if moves == nil {
			moves = []scheduler.Move{}
		}
		return printStructured(out, format, map[string]any{"moves": moves, "edits": edits})
	}
	if len(moves) == 0 {
		fmt.Fprintln(out, "Nothing would move at once.")
	} else if err := printMoves(out, format, moves); err != nil {
		return err
	}
	for _, e := range edits {
		fmt.Fprintf(out, "\n%s %s would not be in effect for all objects at once (%s):\n%s.\n", e.Kind, policyName(e.Namespace, e.Name), e.Reason, e.Message)
		if e.Invalid {
			continue
		}
		fmt.Fprint(out, "\nOnce it is in effect for all of them:\n")
		if err := printMoves(out, format, e.Moves); err != nil {
			return err
		}
	}
	return nil
}

func policyName(namespace, name string) string {
	if namespace == "" {
		return name
	}
	return namespace + "/" + name
}

func printMoves(out io.Writer, format string, moves []scheduler.Move) error {
	if format != "table" {
		if moves == nil {
			moves = []scheduler.Move{}
		}
		return printStructured(out, format, map[string]any{"moves": moves})
	}
	if len(moves) == 0 {
		fmt.Fprintln(out, "Nothing would move.")
		return nil
	}
	table := newTable(out)
	fmt.Fprintln(table, "OBJECT\tCLUSTER\tBEFORE\tAFTER\tWHY")
	for _, m := range moves {
		name := m.Name
		if m.Namespace != "" {
			name = m.Namespace + "/" + name
		}
		cluster := m.Cluster
		if cluster == "" {
			cluster = "-"
		}
		fmt.Fprintf(table, "%s %s\t%s\t%s\t%s\t%s\n", m.Kind, name, cluster, m.Before, m.After, m.Why)
	}
	return table.Flush()
}
