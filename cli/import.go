package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/atoll-dev/atoll/infra/terminal"
)

func newImportCommand() *cobra.Command {
	var (
		c    infraCommand
		wait waiting
	)
	cmd := &cobra.Command{
		Use:   "import KIND NAME ID",
		Short: "Have an object take over a resource that there is",
		Long: `Have an object take over a resource that there is, and plan that.

The object is annotated with the ID by which the provider knows the resource. If it
is not written yet, it is made with nothing in it, if its kind allows that; the plan
shows what the resource is like. Nothing is taken over until the plan is approved and
applied.`,
		Example: `  atoll import network main net-4711 -n shop`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 3 {
				return fmt.Errorf("%d words given: write KIND NAME ID, as in network main net-4711", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := c.session(cmd)
			if err != nil {
				return err
			}
			return wait.run(cmd.Context(), c.output, func(ctx context.Context, how terminal.Planning) (bool, error) {
				return s.Import(ctx, args[0], args[1], args[2], wait.name, how)
			})
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	wait.addFlags(flags, "there is something to do")
	c.addFlags(flags, "json", "yaml", "name", "wide")
	return cmd
}
