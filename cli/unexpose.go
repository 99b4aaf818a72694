package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

func newUnexposeCommand() *cobra.Command {
	var (
		atoll   target
		from    []string
		dryRun  = dryRunNone
		wait    = true
		timeout = 2 * time.Minute
	)
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
			config, err := atoll.config()
			if err != nil {
				return err
			}
			s, err := newSharing(config, dryRun, cmd.OutOrStdout(), progress(cmd))
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			return s.unexpose(ctx, groups, clusters, wait)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringSliceVar(&from, "from", nil, "Clusters to withdraw the groups from. The default is all.")
	flags.StringVar(&dryRun, "dry-run", dryRun, dryRunFlag)
	flags.BoolVar(&wait, "wait", wait, "Wait until the clusters are clean.")
	flags.DurationVar(&timeout, "timeout", timeout, "How long to wait. The removal continues afterwards.")
	atoll.addFlags(flags)
	return cmd
}

// unexpose narrows or deletes the SharedAPIs of groups, and waits until the clusters
// have removed them.
func (s *sharing) unexpose(ctx context.Context, groups, from []string, wait bool) error {
	what := strings.Join(groups, ", ")
	now, err := s.read(ctx)
	if err != nil {
		return fmt.Errorf("unexpose %s: %w", what, err)
	}
	changes, err := now.withdraw(groups, from)
	if err != nil {
		return fmt.Errorf("unexpose %s: %w", what, err)
	}
	type withdrawal struct {
		change
		await func() (string, error)
	}
	var all []withdrawal
	for _, c := range changes {
		written, err := s.write(ctx, c)
		if err != nil {
			return fmt.Errorf("unexpose %s: %w", what, err)
		}
		s.printResult(c)
		all = append(all, withdrawal{c, func() (string, error) { return s.await(ctx, c, written, true) }})
	}
	if s.dryRun != dryRunNone {
		return nil
	}
	s.progress("the objects stay in Atoll")
	if !wait {
		return nil
	}
	var reports []string
	for _, m := range all {
		report, err := m.await()
		switch {
		case errors.Is(err, errPending):
			reports = append(reports, report)
		case err != nil:
			return fmt.Errorf("unexpose %s: %w", what, err)
		}
	}
	if len(reports) > 0 {
		return fmt.Errorf("unexpose %s: not all clusters are clean yet\n%s\nThe removal continues in the background", what, strings.Join(reports, "\n"))
	}
	return nil
}
