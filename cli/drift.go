package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/atoll-dev/atoll/infra/cliview"
)

func newDriftCommand() *cobra.Command {
	var (
		c      infraCommand
		what   scope
		atOnce parallelism
		wait   planFlags
	)
	cmd := &cobra.Command{
		Use:   "drift",
		Short: "Detect changes made outside of Atoll",
		Long: `Read the resources of a namespace from their providers, and show what was changed outside
of Atoll.

The result is a plan. Applying it records the current state of the resources in Atoll and
changes no resource. To revert the outside changes instead, use "atoll apply --refresh".`,
		Example: `  atoll drift -n shop
  atoll drift -n shop -l tier=gold --detailed-exitcode`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r := what.request()
			r.Name = wait.name
			if err := r.Check(); err != nil {
				return err
			}
			if err := atOnce.request(r); err != nil {
				return err
			}
			s, err := c.session(cmd)
			if err != nil {
				return err
			}
			return wait.run(cmd.Context(), c.output, func(ctx context.Context, how cliview.PlanOptions) (bool, error) { return s.Drift(ctx, r, how) })
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	what.addFlags(flags)
	atOnce.addFlags(flags)
	wait.addFlags(flags, "something was changed outside of Atoll")
	c.addFlags(flags, "json", "yaml", "name", "wide")
	return cmd
}
