package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/atoll-dev/atoll/infra/cliview"
)

// applyFlags are the flags of commands that apply a plan.
type applyFlags struct {
	cliview.ApplyOptions
	wait bool
}

func (c *applyFlags) addFlags(flags *pflag.FlagSet) {
	flags.BoolVar(&c.AutoApprove, "auto-approve", false, "Skip the confirmation prompt. You still need permission to approve.")
	flags.Int32Var(&c.Parallelism, "parallelism", 10, "Maximum number of concurrent changes, in addition to each provider's own limit. If set, it also limits the plan that precedes them.")
	flags.BoolVar(&c.wait, "wait", true, "Wait until the apply has finished.")
}

func (c *applyFlags) check(format string) error {
	c.Detached, c.Format = !c.wait, format
	return parallelism(c.Parallelism).check()
}

// limit sets the parallelism of the preceding plan if the flag was set.
func (c *applyFlags) limit(flags *pflag.FlagSet, r *cliview.Request) *cliview.Request {
	if flags.Changed("parallelism") {
		r.Parallelism = c.Parallelism
	}
	return r
}

func newApplyCommand() *cobra.Command {
	var (
		c     infraCommand
		what  intent
		how   applyFlags
		files []string
	)
	cmd := &cobra.Command{
		Use:   "apply [PLAN]",
		Short: "Apply a plan",
		Long: `Apply an approved plan. Without a plan: create one, show it, ask for approval, approve
and apply it.

A resource that changed since it was planned is rejected; the others are applied, and
completed changes are not rolled back. The first interrupt stops gracefully: running
changes finish, and no more are started. A second interrupt exits at once; the apply
still stops gracefully on the server.`,
		Example: `  atoll apply -n shop
  atoll apply plan-x7k2f -n shop
  atoll apply -n shop --auto-approve --target network/main`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(files) > 0 {
				return fmt.Errorf("-f is not supported: apply plans the objects that are stored in Atoll. Store the files with `kubectl apply -f %s`, which changes no infrastructure, then run `%s`", files[0], cmd.CommandPath())
			}
			if err := how.check(c.output); err != nil {
				return err
			}
			r, err := what.request()
			if err != nil {
				return err
			}
			if len(args) == 0 {
				s, err := c.session(cmd)
				if err != nil {
					return err
				}
				return s.PlanAndApply(cmd.Context(), how.limit(cmd.Flags(), r), how.ApplyOptions)
			}
			if set := changedFlags(cmd.Flags(), "target", "exclude", "selector", "replace", "refresh", "refresh-only", "destroy"); len(set) > 0 {
				return fmt.Errorf("plan %s already determines the changes: omit %s, or omit the plan", args[0], strings.Join(set, ", "))
			}
			name, err := oneOf(args, "plan", "plans")
			if err != nil {
				return err
			}
			s, err := c.session(cmd)
			if err != nil {
				return err
			}
			return s.ApplyPlan(cmd.Context(), name, how.ApplyOptions)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	how.addFlags(flags)
	what.addFlags(flags)
	flags.StringSliceVarP(&files, "filename", "f", nil, "Not supported: store files with kubectl apply.")
	flags.Lookup("filename").Hidden = true
	c.addFlags(flags, "json", "yaml", "name")
	return cmd
}
