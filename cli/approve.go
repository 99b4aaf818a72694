package cli

import (
	"github.com/spf13/cobra"

	"github.com/atoll-dev/atoll/infra/terminal"
)

func newApproveCommand() *cobra.Command {
	var (
		c   infraCommand
		how terminal.Consent
	)
	cmd := &cobra.Command{
		Use:   "approve PLAN",
		Short: "Approve a plan, exactly as it is",
		Long: `Approve a plan, exactly as it is: the approval names the digest of all its changes.

It is a right of its own to create approvals. A policy can ask for several of them,
or for those of others than the plan's author. Deleting the Approval takes it back.`,
		Example: `  atoll approve plan-x7k2f -n shop --reason "ticket 1234"
  atoll approve plan-x7k2f -n shop --digest sha256:…`,
		Args: oneName("plan"),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := oneOf(args, "plan", "plans")
			if err != nil {
				return err
			}
			s, err := c.session(cmd)
			if err != nil {
				return err
			}
			return s.Approve(cmd.Context(), name, how)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&how.Digest, "digest", "", "The digest that you looked at. If it is that of the plan, nobody is asked; if it is not, nothing is approved.")
	flags.StringVar(&how.Reason, "reason", "", "Why, for those who read it later.")
	flags.BoolVar(&how.Yes, "yes", false, "Approve without a question.")
	c.addFlags(flags)
	return cmd
}
