package cli

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/join"
)

func newClustersCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "clusters",
		Short: "Manage the clusters of the fleet",
		Args:  cobra.NoArgs,
	}
	cmd.AddCommand(newAllowDeletionsCommand(), newTakeOverCommand())
	return cmd
}

func newTakeOverCommand() *cobra.Command {
	var (
		atoll       target
		all, dryRun bool
	)
	cmd := &cobra.Command{
		Use:   "take-over (NAME... | --all)",
		Short: "Take over clusters that belong to another control plane",
		Long: `Take over clusters that belong to another control plane.

A cluster belongs to one control plane, which renews a Lease in it. If the data of a control
plane is restored from a backup or copied, the result is another control plane: it writes
nothing to the clusters of the first one, and their condition Ready has the reason
OtherControlPlane. Use this command if the first control plane is gone or is to be
replaced. If it still runs, it writes nothing to these clusters from then on.`,
		Example: `  kubectl get clusters -o wide
  atoll clusters take-over --all --dry-run
  atoll clusters take-over east west`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if all == (len(args) > 0) {
				return errors.New("which clusters: name them, or use --all for all that belong to another control plane")
			}
			config, err := atoll.config()
			if err != nil {
				return err
			}
			count := 0
			_, workspace := splitWorkspaceURL(config.Host)
			err = join.TakeOver(cmd.Context(), config, join.TakeOverOptions{Names: args, Preview: dryRun, InWorkspace: workspace != "",
				Report: func(cluster string, from *v1alpha1.ClusterClaim) {
					count++
					other := "control plane " + from.Holder
					if from.Server != "" {
						other += " (" + from.Server + ")"
					}
					done := "will be taken over"
					if dryRun {
						done = "would be taken over (dry run)"
					}
					fmt.Fprintf(cmd.OutOrStdout(), "cluster/%s %s from %s\n", cluster, done, other)
				}})
			if err == nil && count == 0 {
				fmt.Fprintln(cmd.ErrOrStderr(), "no cluster belongs to another control plane")
			}
			return err
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.BoolVar(&all, "all", false, "All clusters that belong to another control plane.")
	flags.BoolVar(&dryRun, "dry-run", false, "Only print what would be done.")
	atoll.addPlainFlags(flags)
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
	atoll.addPlainFlags(flags)
	return cmd
}
