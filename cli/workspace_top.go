package cli

import (
	"cmp"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
)

// workspaceUse is the usage of a workspace, with its limits. An unknown usage is nil.
type workspaceUse struct {
	Name    string `json:"name"`
	Objects *int64 `json:"objects,omitempty"`
	Bytes   *int64 `json:"bytes,omitempty"`
	// Workspaces are those in it.
	Workspaces  *int64                    `json:"workspaces,omitempty"`
	Definitions *int64                    `json:"definitions,omitempty"`
	Expressions *int64                    `json:"expressions,omitempty"`
	Limits      *v1alpha1.WorkspaceLimits `json:"limits,omitempty"`
}

func newWorkspaceTopCommand() *cobra.Command {
	var (
		atoll          target
		output, sortBy string
	)
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show what workspaces use, and their limits",
		Long: `Show how many objects and bytes the workspaces directly below the current one have stored, how many workspaces, CustomResourceDefinitions and
expressions are in them, and their limits. A workspace with others in it also uses the limits of those.

The server refreshes the usage every ten minutes while a workspace is in use, after its last request, and when its limits change.`,
		Example: `  atoll workspace top -w root
  atoll workspace top -w team-a --sort-by bytes`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFormat(output, "table", "json", "yaml"); err != nil {
				return err
			}
			if !slices.Contains([]string{"name", "objects", "bytes", "workspaces"}, sortBy) {
				return fmt.Errorf("invalid order %q: --sort-by must be name, objects, bytes or workspaces", sortBy)
			}
			all, err := atoll.listWorkspaces(cmd.Context(), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			return printUse(cmd.OutOrStdout(), output, usesOf(all, sortBy))
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&sortBy, "sort-by", "name", "Order of the workspaces: name, objects, bytes or workspaces; the largest first.")
	flags.StringVarP(&output, "output", "o", "table", outputFlag("table", "json", "yaml"))
	atoll.addPlainFlags(flags)
	return cmd
}

// usesOf returns what workspaces use, in an order.
func usesOf(all []v1alpha1.Workspace, sortBy string) []workspaceUse {
	out := []workspaceUse{}
	for _, w := range all {
		use := workspaceUse{Name: w.Name, Limits: w.Spec.Limits}
		if w.Status.Usage != nil {
			bytes := w.Status.Usage.Bytes.Value()
			use.Objects, use.Bytes, use.Workspaces = &w.Status.Usage.Objects, &bytes, &w.Status.Usage.Workspaces
			use.Definitions, use.Expressions = &w.Status.Usage.Definitions, &w.Status.Usage.Expressions
		}
		out = append(out, use)
	}
	number := func(n *int64) int64 {
		if n == nil {
			return -1
		}
		return *n
	}
	slices.SortFunc(out, func(a, b workspaceUse) int {
		order := 0
		switch sortBy {
		case "objects":
			order = cmp.Compare(number(b.Objects), number(a.Objects))
		case "bytes":
			order = cmp.Compare(number(b.Bytes), number(a.Bytes))
		case "workspaces":
			order = cmp.Compare(number(b.Workspaces), number(a.Workspaces))
		}
		return cmp.Or(order, cmp.Compare(a.Name, b.Name))
	})
	return out
}

// printUse prints a table as kubectl top does, or a structure.
func printUse(out io.Writer, format string, all []workspaceUse) error {
	if format != "table" {
		return printStructured(out, format, map[string]any{"workspaces": all})
	}
	if len(all) == 0 {
		_, err := fmt.Fprintln(out, "No workspaces found")
		return err
	}
	table := newTable(out)
	fmt.Fprintln(table, "NAME\tOBJECTS\tOBJECTS(limit)\tOBJECTS(%)\tBYTES\tBYTES(limit)\tBYTES(%)\tWORKSPACES\tWORKSPACES(limit)\tDEFINITIONS\tDEFINITIONS(limit)\tEXPRESSIONS\tEXPRESSIONS(limit)")
	for _, use := range all {
		var objects, bytes, workspaces *int64
		definitions, expressions := int64(v1alpha1.DefaultDefinitions), int64(v1alpha1.DefaultExpressions)
		bytesLimit := "<none>"
		if use.Limits != nil {
			objects, workspaces = use.Limits.Objects, use.Limits.Workspaces
			definitions, expressions = *cmp.Or(use.Limits.Definitions, &definitions), *cmp.Or(use.Limits.Expressions, &expressions)
			if limit := use.Limits.Bytes; limit != nil {
				value := limit.Value()
				bytes, bytesLimit = &value, bytesText(value)
			}
		}
		usedBytes := "<unknown>"
		if use.Bytes != nil {
			usedBytes = bytesText(*use.Bytes)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\t%d\n", use.Name, numberText(use.Objects, "<unknown>"), numberText(objects, "<none>"), percentText(use.Objects, objects),
			usedBytes, bytesLimit, percentText(use.Bytes, bytes),
			numberText(use.Workspaces, "<unknown>"), numberText(workspaces, "<none>"),
			numberText(use.Definitions, "<unknown>"), definitions, numberText(use.Expressions, "<unknown>"), expressions)
	}
	return table.Flush()
}

func numberText(n *int64, none string) string {
	if n == nil {
		return none
	}
	return fmt.Sprint(*n)
}

// percentText is how much of a limit is used. It is above 100 % if a limit was lowered below the usage.
func percentText(used, limit *int64) string {
	switch {
	case limit == nil:
		return "<none>"
	case used == nil:
		return "<unknown>"
	case *limit <= 0:
		return "100%"
	}
	return fmt.Sprintf("%d%%", int64(float64(*used)/float64(*limit)*100))
}
