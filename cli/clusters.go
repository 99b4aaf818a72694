package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/atoll-dev/atoll/fleet"
)

func newClustersCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "clusters",
		Short: "Look after the clusters of the fleet",
		Args:  cobra.NoArgs,
	}
	cmd.AddCommand(newAllowDeletionsCommand())
	return cmd
}

func newAllowDeletionsCommand() *cobra.Command {
	var (
		atoll  target
		period = 10 * time.Minute
	)
	cmd := &cobra.Command{
		Use:   "allow-deletions NAME",
		Short: "Let a cluster's syncer remove as much at once as decisions say",
		Long: `Let a cluster's syncer remove as much at once as decisions say.

When changed decisions would take more out of a cluster at once than its
spec.syncer.maxDeletePercent, its syncer removes none of it, and the condition
DeletionsHalted of the Cluster says what and how much that is. This command lets
it through, for a while.`,
		Example: `  kubectl describe cluster east
  atoll clusters allow-deletions east`,
		Args: oneName("cluster"),
		RunE: func(cmd *cobra.Command, args []string) error {
			config, err := atoll.config()
			if err != nil {
				return err
			}
			if period <= 0 {
				return fmt.Errorf("--for %s allows nothing: give a time such as 10m", period)
			}
			until := time.Now().Add(period)
			if err := fleet.AllowDeletions(cmd.Context(), config, args[0], until); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "cluster/%s may lose objects until %s\n", args[0], until.UTC().Format(time.RFC3339))
			return nil
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.DurationVar(&period, "for", period, "How long.")
	atoll.addFlags(flags)
	return cmd
}
