package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/atoll-dev/atoll/infra/terminal"
)

func newRollbackCommand() *cobra.Command {
	var (
		c    infraCommand
		wait waiting
	)
	cmd := &cobra.Command{
		Use:   "rollback APPLY",
		Short: "Plan what was written when an apply had ended",
		Long: `Plan what was written when an apply had ended, and show it. Nothing is changed until
the plan is approved and applied.`,
		Example: `  kubectl get applies -n shop
  atoll rollback apply-9q4vd -n shop`,
		Args: oneName("apply"),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := oneOf(args, "apply", "applies")
			if err != nil {
				return err
			}
			s, err := c.session(cmd)
			if err != nil {
				return err
			}
			r := &terminal.Request{Name: wait.name, Rollback: name}
			return wait.run(cmd.Context(), c.output, func(ctx context.Context, how terminal.Planning) (bool, error) { return s.Plan(ctx, r, how) })
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	wait.addFlags(flags, "there is something to do")
	c.addFlags(flags, "json", "yaml", "name", "wide")
	return cmd
}
