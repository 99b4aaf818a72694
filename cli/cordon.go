package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/atoll-dev/atoll/fleet/moving"
)

func newCordonCommand() *cobra.Command {
	return cordonCommand("cordon", "Keep new objects out of clusters", `Keep new objects out of clusters. Objects that run there stay, and are updated. atoll drain also moves
them to other clusters.`,
		(*moving.Client).Cordon)
}

func newUncordonCommand() *cobra.Command {
	return cordonCommand("uncordon", "Let new objects into clusters again", `Let new objects into clusters again, and end their drains. Objects that run in every cluster of their policy,
whole or divided, return. The others stay where they are: atoll rebalance decides about them again.`,
		(*moving.Client).Uncordon)
}

func cordonCommand(use, short, long string, do func(*moving.Client, context.Context, string) (string, error)) *cobra.Command {
	var (
		atoll  target
		dryRun bool
	)
	cmd := &cobra.Command{
		Use:     use + " CLUSTER...",
		Short:   short,
		Long:    long,
		Example: "  atoll " + use + " east",
		Args:    atLeastOne("cluster"),
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := newFleetReader(&atoll)
			if err != nil {
				return err
			}
			client := &moving.Client{Dynamic: f.dynamic, DryRun: dryRun}
			var failed []error
			for _, name := range args {
				said, err := do(client, cmd.Context(), name)
				if err == nil {
					fmt.Fprintf(cmd.OutOrStdout(), "cluster/%s %s%s\n", name, said, dryRunNote(dryRun))
				}
				failed = append(failed, err)
			}
			return errors.Join(failed...)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	addServerDryRun(flags, &dryRun)
	atoll.addPlainFlags(flags)
	return cmd
}
