package cli

import (
	"github.com/spf13/cobra"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

func newDestroyCommand() *cobra.Command {
	var (
		c    infraCommand
		what scope
		how  applyFlags
	)
	cmd := &cobra.Command{
		Use:   "destroy",
		Short: "Destroy infrastructure",
		Long: `Destroy the resources of a namespace: create a plan, show it, ask for approval, approve
and apply it.

The objects are kept, so the next apply creates the resources again. To remove resources
permanently, delete their objects: the next plan destroys the resources.`,
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
			return s.PlanAndApply(cmd.Context(), how.limit(cmd.Flags(), r), how.ApplyOptions)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	how.addFlags(flags)
	what.addFlags(flags)
	c.addFlags(flags, "json", "yaml", "name")
	return cmd
}
