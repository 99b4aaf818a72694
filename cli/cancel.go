package cli

import (
	"github.com/spf13/cobra"
)

func newCancelCommand() *cobra.Command {
	var (
		c    infraCommand
		wait bool
	)
	cmd := &cobra.Command{
		Use:     "cancel APPLY",
		Short:   "Cancel an apply",
		Long:    "Cancel an apply: running changes finish, and no more are started. Completed changes are not rolled back.",
		Example: `  atoll cancel apply-9q4vd -n shop`,
		Args:    oneName("apply"),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := oneOf(args, "apply", "applies")
			if err != nil {
				return err
			}
			s, err := c.session(cmd)
			if err != nil {
				return err
			}
			return s.Cancel(cmd.Context(), name, !wait, c.output)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.BoolVar(&wait, "wait", true, "Wait until the apply has stopped.")
	c.addFlags(flags, "json", "yaml", "name")
	return cmd
}
