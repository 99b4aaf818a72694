package cli

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/atoll-dev/atoll/infra/cliview"
)

func newApproveCommand() *cobra.Command {
	var (
		c   infraCommand
		how cliview.ApproveOptions
	)
	cmd := &cobra.Command{
		Use:   "approve PLAN | placement/NAME | clusterplacement/NAME",
		Short: "Approve a plan, or the edit of a placement policy",
		Long: `Approve a plan, or the edit of a placement policy.

The approval of a plan is for the digest of all its changes, and for no other plan. Creating
approvals requires its own permission. A policy can require several approvals, or approvals
by users other than the plan's author. To revoke one, delete the Approval.

The approval of a Placement or ClusterPlacement is for its current generation: the edit takes
effect at once for all objects that still follow earlier content. A later edit is not covered.
It requires the permission to patch the policy.`,
		Example: `  atoll approve plan-x7k2f -n shop --reason "ticket 1234"
  atoll approve plan-x7k2f -n shop --digest sha256:…
  atoll approve placement/web -n shop`,
		Args: oneName("plan or policy"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if kind, name, is := policyArgument(args[0]); is {
				if how.Digest != "" || how.Reason != "" {
					return errors.New("--digest and --reason are for plans: the approval of a policy is for its current generation")
				}
				return approvePolicy(cmd, &c, kind, name, how.Yes)
			}
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
