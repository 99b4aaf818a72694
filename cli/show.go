package cli

import (
	"github.com/spf13/cobra"

	"github.com/atoll-dev/atoll/infra/terminal"
)

func newShowCommand() *cobra.Command {
	var (
		c      infraCommand
		filter terminal.Filter
	)
	cmd := &cobra.Command{
		Use:   "show PLAN|APPLY",
		Short: "Show a plan, or how an apply went",
		Long: `Show a plan with its changes, or how far an apply is or how it went.

-o wide has one line for each change; -o json and -o yaml have the object, and of
a plan its changes.`,
		Example: `  atoll show plan-x7k2f -n shop
  atoll show plan-x7k2f -n shop --action delete,replace
  atoll show apply/apply-9q4vd -n shop -o json`,
		Args: oneName("plan or apply"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := filter.Check(); err != nil {
				return err
			}
			s, err := c.session(cmd)
			if err != nil {
				return err
			}
			return s.Show(cmd.Context(), args[0], filter, c.output)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringSliceVar(&filter.Actions, "action", nil, "Only changes that do this: create, update, replace, delete, read, import, forget, place, deferred or no-op. Can be given again.")
	flags.BoolVar(&filter.Drift, "drift", false, "Only what was changed outside.")
	c.addFlags(flags, "json", "yaml", "name", "wide")
	return cmd
}
