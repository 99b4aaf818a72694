package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/atoll-dev/atoll/fleet/join"
)

func newClustersCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "clusters",
		Short: "Manage the clusters of the fleet",
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
		Short: "Allow a cluster's syncer to exceed its deletion limit",
		Long: `Allow a cluster's syncer to exceed its deletion limit for a limited time.

If new placement decisions would remove more objects from a cluster at once than its
spec.syncer.maxDeletePercent, the syncer removes none of them. The Cluster's condition
DeletionsHalted then shows which and how many objects are affected. This command allows
the deletions.`,
		Example: `  kubectl describe cluster east
  atoll clusters allow-deletions east`,
		Args: oneName("cluster"),
		RunE: func(cmd *cobra.Command, args []string) error {
			config, err := atoll.config()
			if err != nil {
				return err
			}
			if period <= 0 {
				return fmt.Errorf("--for %s is not a positive duration: use one such as 10m", period)
			}
			until := time.Now().Add(period)
			if err := join.AllowDeletions(cmd.Context(), config, args[0], until); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "cluster/%s deletions allowed until %s\n", args[0], until.UTC().Format(time.RFC3339))
			return nil
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.DurationVar(&period, "for", period, "How long to allow the deletions.")
	atoll.addFlags(flags)
	return cmd
}
