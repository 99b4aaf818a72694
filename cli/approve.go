package cli

import (
	"github.com/spf13/cobra"

	"github.com/atoll-dev/atoll/infra/cliview"
)

func newApproveCommand() *cobra.Command {
	var (
		c   infraCommand
		how cliview.ApproveOptions
	)
	cmd := &cobra.Command{
		Use:   "approve PLAN",
		Short: "Approve a plan",
		Long: `Approve a plan. The approval is for the digest of all its changes, and for no other plan.

Creating approvals requires its own permission. A policy can require several approvals,
or approvals by users other than the plan's author. To revoke one, delete the Approval.`,
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
	flags.StringVar(&how.Digest, "digest", "", "Digest of the plan that you reviewed. If it matches, there is no confirmation prompt; if it does not, the plan is not approved.")
	flags.StringVar(&how.Reason, "reason", "", "Reason to record in the Approval.")
	flags.BoolVar(&how.Yes, "yes", false, "Skip the confirmation prompt.")
	c.addFlags(flags)
	return cmd
}
