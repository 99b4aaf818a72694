package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/atoll-dev/atoll/infra/cliview"
)

func newMoveStateCommand() *cobra.Command {
	var (
		c    infraCommand
		wait planFlags
		move cliview.Move
	)
	cmd := &cobra.Command{
		Use:   "move-state SOURCE DESTINATION",
		Short: "Give a resource's object another name",
		Long: `Give an object of a provider's kind another name, namespace or type, and plan that.
The resource itself is not touched.

SOURCE is KIND/NAME or an address as in plans. DESTINATION is a name, KIND/NAME or an
address. If DESTINATION does not exist, it is created with the spec of SOURCE, and
spec.movedFrom; otherwise only spec.movedFrom is set. SOURCE is deleted. Its finalizer keeps
it until the plan is approved and applied, so that nothing is lost if you do neither.

Into another namespace, both namespaces apply: the first releases the resource, the second
takes it over. Into another type, the provider converts the state, if it can; use addresses.`,
		Example: `  atoll move-state network/main backbone -n shop
  atoll move-state network/main main -n shop --to-namespace platform
  atoll move-state 'demo_network["main"]' 'demo_vpc["main"]' -n shop`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return fmt.Errorf("expected 2 arguments, got %d: use SOURCE DESTINATION, as in network/main backbone", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			move.From, move.To = args[0], args[1]
			s, err := c.session(cmd)
			if err != nil {
				return err
			}
			return wait.run(cmd.Context(), c.output, func(ctx context.Context, how cliview.PlanOptions) (bool, error) {
				return s.MoveState(ctx, &move, wait.name, how)
			})
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&move.Namespace, "to-namespace", "", "The namespace of DESTINATION. Defaults to that of SOURCE.")
	flags.BoolVar(&move.DryRun, "dry-run", false, "Show what would be done, without doing it.")
	wait.addFlags(flags, "the plan has changes")
	c.addFlags(flags, "json", "yaml", "name", "wide")
	return cmd
}
