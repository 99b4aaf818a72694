package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/atoll-dev/atoll/infra/terminal"
)

func newPlanCommand() *cobra.Command {
	var (
		c       infraCommand
		what    intent
		atOnce  parallel
		wait    waiting
		sources manifests
	)
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Show what would be done to infrastructure",
		Long: `Show what would be done to the resources of a namespace, so that what is there
becomes what is written.

Nothing is changed. The plan is kept, under a name and with a digest that stands
for every detail of it: who approves, approves exactly that. With -f it says what
would be if the files were applied; such a plan cannot be carried out.`,
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
			return wait.run(cmd.Context(), c.output, func(ctx context.Context, how terminal.Planning) (bool, error) { return s.Plan(ctx, r, how) })
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	sources.addFlags(flags)
	what.addFlags(flags)
	atOnce.addFlags(flags)
	wait.addFlags(flags, "there is something to do")
	c.addFlags(flags, "json", "yaml", "name", "wide")
	return cmd
}
