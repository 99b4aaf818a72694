package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/atoll-dev/atoll/infra/terminal"
)

func newDriftCommand() *cobra.Command {
	var (
		c      infraCommand
		what   scope
		atOnce parallel
		wait   waiting
	)
	cmd := &cobra.Command{
		Use:   "drift",
		Short: "Look what became of infrastructure",
		Long: `Ask the providers what became of the resources of a namespace, and show what was
changed by others.

What it finds is a plan: carried out, it takes into Atoll's knowledge what became of
the resources, and changes none of them. "atoll apply --refresh" undoes what others
did instead.`,
		Example: `  atoll drift -n shop
  atoll drift -n shop -l tier=gold --detailed-exitcode`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r := what.request()
			r.Name = wait.name
			if err := r.Check(); err != nil {
				return err
			}
			if err := atOnce.request(r); err != nil {
				return err
			}
			s, err := c.session(cmd)
			if err != nil {
				return err
			}
			return wait.run(cmd.Context(), c.output, func(ctx context.Context, how terminal.Planning) (bool, error) { return s.Drift(ctx, r, how) })
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	what.addFlags(flags)
	atOnce.addFlags(flags)
	wait.addFlags(flags, "something was changed")
	c.addFlags(flags, "json", "yaml", "name", "wide")
	return cmd
}
