package cli

import (
	"fmt"

	"github.com/spf13/cobra"
)

func newImportCommand() *cobra.Command {
	var (
		c     infraCommand
		wait  planFlags
		state stateFile
	)
	cmd := &cobra.Command{
		Use:   "import KIND NAME ID | import -f STATEFILE",
		Short: "Import existing resources",
		Long: `Import an existing resource into an object, and plan that.

The object is annotated with the ID by which the provider identifies the resource. If the
object does not exist, an empty one is created, if its kind allows that; the plan shows
the resource's attributes. Nothing is imported until the plan is approved and applied.

With -f, import all resources of an OpenTofu or Terraform state file: create the objects,
with references where they can be recovered, Secrets for sensitive values, and the state of
each resource. No resource is changed, and a plan afterwards shows no changes. If the import
is interrupted, run the same command again to continue.`,
		Example: `  atoll import network main net-4711 -n shop
  tofu state pull | atoll import -f - -n shop --dry-run
  atoll import -f terraform.tfstate -n shop --provider hashicorp/aws.west=aws/west`,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case state.file != "" && len(args) > 0:
				return fmt.Errorf("%d arguments with -f, which imports the whole file: omit them", len(args))
			case state.file == "" && len(args) != 3:
				return fmt.Errorf("expected 3 arguments, got %d: use KIND NAME ID, as in network main net-4711, or set a state file with -f", len(args))
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
	wait.addFlags(flags, "the plan has changes")
	c.addFlags(flags, "json", "yaml", "name", "wide")
	return cmd
}
