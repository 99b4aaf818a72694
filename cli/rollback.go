package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/atoll-dev/atoll/infra/terminal"
)

func newRollbackCommand() *cobra.Command {
	var (
		c       infraCommand
		wait    waiting
		atOnce  parallel
		targets []string
	)
	cmd := &cobra.Command{
		Use:   "rollback [APPLY|PLAN]",
		Short: "Plan what was written when an apply had ended",
		Long: `Plan what was written when an apply had ended, and show it. Nothing is changed until
the plan is approved and applied: then the objects are written as they were, with the
rights of who applies, and the resources follow. Objects that were first applied later
are deleted.

Without a name, it shows what was carried out: the last hundred applies.`,
		Example: `  atoll rollback -n shop
  atoll rollback apply-9q4vd -n shop
  atoll rollback apply-9q4vd -n shop --target file/motd`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				if set := given(cmd.Flags(), "target", "parallelism", "name", "wait", "timeout", "detailed-exitcode", "output"); len(set) > 0 {
					return fmt.Errorf("%s is of a plan: name the apply to go back to; `%s` lists them", set[0], cmd.CommandPath())
				}
				s, err := c.session(cmd)
				if err != nil {
					return err
				}
				return s.History(cmd.Context())
			}
			name, err := applyOrPlan(args)
			if err != nil {
				return err
			}
			r := &terminal.Request{Name: wait.name, Targets: targets}
			if err := atOnce.request(r); err != nil {
				return err
			}
			s, err := c.session(cmd)
			if err != nil {
				return err
			}
			return wait.run(cmd.Context(), c.output, func(ctx context.Context, how terminal.Planning) (bool, error) { return s.Rollback(ctx, name, r, how) })
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringArrayVar(&targets, "target", nil, "Only this resource: KIND/NAME, or the address that plans show. Can be given again.")
	atOnce.addFlags(flags)
	wait.addFlags(flags, "there is something to do")
	c.addFlags(flags, "json", "yaml", "name", "wide")
	return cmd
}

// applyOrPlan takes the name of either.
func applyOrPlan(args []string) (string, error) {
	if word, _, _ := strings.Cut(args[0], "."); strings.HasPrefix(word, "plan") && strings.Contains(args[0], "/") {
		return oneOf(args, "plan", "plans")
	}
	return oneOf(args, "apply", "applies")
}
