package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/atoll-dev/atoll/infra/terminal"
)

// carrying is how a plan is carried out.
type carrying struct {
	terminal.Carrying
	wait bool
}

func (c *carrying) addFlags(flags *pflag.FlagSet) {
	flags.BoolVar(&c.AutoApprove, "auto-approve", false, "Approve without a question. You need the right to approve all the same.")
	flags.Int32Var(&c.Parallelism, "parallelism", 10, "How many changes are carried out at a time, besides what each provider allows. Given, it is also how many the plan before them looks at.")
	flags.BoolVar(&c.wait, "wait", true, "Wait until it is done.")
}

func (c *carrying) check(format string) error {
	c.Detached, c.Format = !c.wait, format
	return parallel(c.Parallelism).check()
}

// limit has the plan before the changes look at as many at a time, if somebody said how many.
func (c *carrying) limit(flags *pflag.FlagSet, r *terminal.Request) *terminal.Request {
	if flags.Changed("parallelism") {
		r.Parallelism = c.Parallelism
	}
	return r
}

func newApplyCommand() *cobra.Command {
	var (
		c     infraCommand
		what  intent
		how   carrying
		files []string
	)
	cmd := &cobra.Command{
		Use:   "apply [PLAN]",
		Short: "Carry out a plan",
		Long: `Carry out a plan that was approved. Without one: plan, show it, ask, approve and
carry it out.

What moved since the plan is refused, each resource for itself, and what is done
stays done. Interrupting once ends it in good order: what runs comes to its end,
and nothing else begins. Interrupting twice leaves; it ends without you.`,
		Example: `  atoll apply -n shop
  atoll apply plan-x7k2f -n shop
  atoll apply -n shop --auto-approve --target network/main`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(files) > 0 {
				return fmt.Errorf("what is applied is what is written in Atoll: write the files with `kubectl apply -f %s`, which changes nothing by itself, and then `%s`", files[0], cmd.CommandPath())
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
				return s.PlanAndApply(cmd.Context(), how.limit(cmd.Flags(), r), how.Carrying)
			}
			if set := given(cmd.Flags(), "target", "exclude", "selector", "replace", "refresh", "refresh-only", "destroy"); len(set) > 0 {
				return fmt.Errorf("plan %s says already what is done: leave out %s, or the plan", args[0], strings.Join(set, ", "))
			}
			name, err := oneOf(args, "plan", "plans")
			if err != nil {
				return err
			}
			s, err := c.session(cmd)
			if err != nil {
				return err
			}
			return s.ApplyPlan(cmd.Context(), name, how.Carrying)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	how.addFlags(flags)
	what.addFlags(flags)
	flags.StringSliceVarP(&files, "filename", "f", nil, "Not taken: write files with kubectl apply.")
	flags.Lookup("filename").Hidden = true
	c.addFlags(flags, "json", "yaml", "name")
	return cmd
}
