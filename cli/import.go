package cli

import (
	"fmt"

	"github.com/spf13/cobra"
)

func newImportCommand() *cobra.Command {
	var (
		c     infraCommand
		wait  waiting
		state stateFile
	)
	cmd := &cobra.Command{
		Use:   "import KIND NAME ID | import -f STATEFILE",
		Short: "Have objects take over resources that there are",
		Long: `Have an object take over a resource that there is, and plan that.

The object is annotated with the ID by which the provider knows the resource. If it
is not written yet, it is made with nothing in it, if its kind allows that; the plan
shows what the resource is like. Nothing is taken over until the plan is approved and
applied.

With -f, all resources of a state file of OpenTofu or Terraform are taken over: objects
are written, with references where they can be recovered, Secrets for what is
sensitive, and what is known of each resource. No resource is touched. A plan shows
afterwards that there is nothing to do. Interrupted, the same command goes on.`,
		Example: `  atoll import network main net-4711 -n shop
  tofu state pull | atoll import -f - -n shop --dry-run
  atoll import -f terraform.tfstate -n shop --provider hashicorp/aws.west=aws/west`,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case state.file != "" && len(args) > 0:
				return fmt.Errorf("%d words given beside -f, which takes over all of the file: leave them out", len(args))
			case state.file == "" && len(args) != 3:
				return fmt.Errorf("%d words given: write KIND NAME ID, as in network main net-4711, or name a state file with -f", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if state.file != "" {
				return state.run(cmd, &c)
			}
			return importOne(&c, &wait, cmd, args)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	state.addFlags(flags)
	wait.addFlags(flags, "there is something to do")
	c.addFlags(flags, "json", "yaml", "name", "wide")
	return cmd
}
