package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/atoll-dev/atoll/fleet/sharing"
)

func newUnexposeCommand() *cobra.Command {
	common := newSharingFlags()
	var from []string
	cmd := &cobra.Command{
		Use:   "unexpose GROUP[,GROUP...] [--from CLUSTER[,CLUSTER...]]",
		Short: "Stop exposing API groups of Atoll in clusters",
		Long: `Stop exposing API groups of Atoll in clusters, and wait until the clusters are clean.

The APIServices and other helper objects are removed from the clusters. The groups'
objects and CustomResourceDefinitions stay in Atoll and in other clusters.`,
		Example: `  # Everywhere
  atoll unexpose shop.example.org

  atoll unexpose shop.example.org --from east`,
		Args: atLeastOne("API group"),
		RunE: func(cmd *cobra.Command, args []string) error {
			groups, err := readGroups(args)
			if err != nil {
				return err
			}
			var clusters []string
			if cmd.Flags().Changed("from") {
				if clusters, err = readNames("--from", from); err != nil {
					return err
				}
			}
			return common.run(cmd, "", func(ctx context.Context, client *sharing.Client, o sharing.Options) error {
				return client.Unexpose(ctx, groups, clusters, o)
			})
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringSliceVar(&from, "from", nil, "Clusters to withdraw the groups from. The default is all.")
	common.addDryRun(flags)
	common.addWait(flags, "Wait until the clusters are clean.", "How long to wait. The removal continues afterwards.")
	return cmd
}
