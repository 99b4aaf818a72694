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
		Short:   "End an apply: nothing else begins",
		Long:    "End an apply: what runs comes to its end, and nothing else begins. What is done stays done.",
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
	flags.BoolVar(&wait, "wait", true, "Wait until it has ended.")
	c.addFlags(flags, "json", "yaml", "name")
	return cmd
}
