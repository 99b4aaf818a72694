package cli

import (
	"github.com/spf13/cobra"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

func newDestroyCommand() *cobra.Command {
	var (
		c    infraCommand
		what scope
		how  carrying
	)
	cmd := &cobra.Command{
		Use:   "destroy",
		Short: "Destroy infrastructure",
		Long: `Destroy the resources of a namespace: plan, show it, ask, approve and carry it out.

Their objects stay written, so that the next apply makes the resources again. To
have them go for good, delete the objects: the next plan destroys the resources.`,
		Example: `  atoll destroy -n shop
  atoll destroy -n shop --target 'demo_server["web"]'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := how.check(c.output); err != nil {
				return err
			}
			r := what.request()
			r.Mode = v1alpha1.PlanDestroy
			if err := r.Check(); err != nil {
				return err
			}
			s, err := c.session(cmd)
			if err != nil {
				return err
			}
			return s.PlanAndApply(cmd.Context(), how.limit(cmd.Flags(), r), how.Carrying)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	how.addFlags(flags)
	what.addFlags(flags)
	c.addFlags(flags, "json", "yaml", "name")
	return cmd
}
