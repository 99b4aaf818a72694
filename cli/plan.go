package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/atoll-dev/atoll/infra/cliview"
)

func newPlanCommand() *cobra.Command {
	var (
		c       infraCommand
		what    intent
		atOnce  parallelism
		wait    planFlags
		sources manifests
	)
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Show the changes required by the configuration",
		Long: `Show the changes that would make the resources of a namespace match their objects.

Nothing is changed. The plan is stored, with a name and a digest of all its details: an
approval is for exactly these. With -f, show the changes that applying the files would
cause; such a plan cannot be applied.`,
		Example: `  atoll plan -n shop
  atoll plan -n shop -f infra/ --detailed-exitcode
  atoll plan -n shop --target network/main --replace 'demo_server["web"]'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := what.request()
			if err != nil {
				return err
			}
			r.Name = wait.name
			if err := atOnce.request(r); err != nil {
				return err
			}
			if r.Objects, err = sources.read(cmd.InOrStdin()); err != nil {
				return err
			}
			s, err := c.session(cmd)
			if err != nil {
				return err
			}
			return wait.run(cmd.Context(), c.output, func(ctx context.Context, how cliview.PlanOptions) (bool, error) { return s.Plan(ctx, r, how) })
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	sources.addFlags(flags)
	what.addFlags(flags)
	atOnce.addFlags(flags)
	wait.addFlags(flags, "the plan has changes")
	c.addFlags(flags, "json", "yaml", "name", "wide")
	return cmd
}
