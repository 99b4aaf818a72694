package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/atoll-dev/atoll/infra/cliview"
)

func newRollbackCommand() *cobra.Command {
	var (
		c       infraCommand
		wait    planFlags
		atOnce  parallelism
		targets []string
	)
	cmd := &cobra.Command{
		Use:   "rollback [APPLY|PLAN]",
		Short: "Plan a rollback to the configuration of an earlier apply",
		Long: `Plan a rollback to the configuration at the end of an earlier apply, and show the plan.
Nothing is changed until the plan is approved and applied. That restores the objects, with
the permissions of the user who applies it, and then changes the resources. Objects that
were first applied later are deleted.

Without a name, list the last hundred applies.`,
		Example: `  atoll rollback -n shop
  atoll rollback apply-9q4vd -n shop
  atoll rollback apply-9q4vd -n shop --target file/motd`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				if set := changedFlags(cmd.Flags(), "target", "parallelism", "name", "wait", "timeout", "detailed-exitcode", "output"); len(set) > 0 {
					return fmt.Errorf("%s requires an apply to roll back to: run `%s` to list them", set[0], cmd.CommandPath())
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
			r := &cliview.Request{Name: wait.name, Targets: targets}
			if err := atOnce.request(r); err != nil {
				return err
			}
			s, err := c.session(cmd)
			if err != nil {
				return err
			}
			return wait.run(cmd.Context(), c.output, func(ctx context.Context, how cliview.PlanOptions) (bool, error) {
				return s.Rollback(ctx, name, r, how)
			})
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringArrayVar(&targets, "target", nil, "Only this resource: KIND/NAME, or the address shown in plans. Can be repeated.")
	atOnce.addFlags(flags)
	wait.addFlags(flags, "the plan has changes")
	c.addFlags(flags, "json", "yaml", "name", "wide")
	return cmd
}

// applyOrPlan parses the name of an apply or a plan.
func applyOrPlan(args []string) (string, error) {
	if word, _, _ := strings.Cut(args[0], "."); strings.HasPrefix(word, "plan") && strings.Contains(args[0], "/") {
		return oneOf(args, "plan", "plans")
	}
	return oneOf(args, "apply", "applies")
}
