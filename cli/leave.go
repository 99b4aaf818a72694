package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/atoll-dev/atoll/fleet/join"
)

func newLeaveCommand() *cobra.Command {
	var (
		atoll   target
		options join.LeaveOptions
		timeout = 5 * time.Minute
	)
	cmd := &cobra.Command{
		Use:   "leave NAME",
		Short: "Remove a cluster from the fleet",
		Long: `Remove a cluster from the fleet, and wait until it has left.

Its share of every workload moves to the other clusters, and the fleet's objects are
removed from it. With --cascade=orphan they keep running there as ordinary objects. A
cluster that does not respond can only leave with --cascade=orphan. The same is true of a
cluster with a share of a suspended workload, because nothing makes that up elsewhere.`,
		Example: `  atoll leave east
  atoll leave lost --cascade=orphan`,
		Args: oneName("cluster"),
		RunE: func(cmd *cobra.Command, args []string) error {
			config, err := atoll.config()
			if err != nil {
				return err
			}
			options.Name, options.Progress = args[0], progress(cmd)
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			if err := join.Leave(ctx, config, options); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "cluster/%s left\n", args[0])
			return nil
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&options.Cascade, "cascade", "delete", "What happens to the fleet's objects in the cluster: delete or orphan.")
	flags.DurationVar(&timeout, "timeout", timeout, "How long to wait until the cluster has left. The removal continues afterwards.")
	atoll.addFlags(flags)
	return cmd
}
