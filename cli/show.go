package cli

import (
	"github.com/spf13/cobra"

	"github.com/atoll-dev/atoll/infra/cliview"
)

func newShowCommand() *cobra.Command {
	var (
		c      infraCommand
		filter cliview.Filter
	)
	cmd := &cobra.Command{
		Use:   "show PLAN|APPLY",
		Short: "Show a plan or an apply",
		Long: `Show a plan with its changes, or the progress and result of an apply.

-o wide prints one line for each change; -o json and -o yaml print the object, and for a
plan also its changes.`,
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
	flags.StringSliceVar(&filter.Actions, "action", nil, "Only changes with this action: create, update, replace, delete, read, import, forget, place, deferred or no-op. Can be repeated.")
	flags.BoolVar(&filter.Drift, "drift", false, "Only changes made outside of Atoll.")
	c.addFlags(flags, "json", "yaml", "name", "wide")
	return cmd
}
