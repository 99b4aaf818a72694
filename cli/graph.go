package cli

import (
	"github.com/spf13/cobra"
)

func newGraphCommand() *cobra.Command {
	var (
		c       infraCommand
		targets []string
	)
	cmd := &cobra.Command{
		Use:   "graph",
		Short: "Show the dependency graph of resources",
		Long: `Show the references between the resources of a namespace, which determine the order in
which they are created. -o dot is for Graphviz.`,
		Example: `  atoll graph -n shop
  atoll graph -n shop --target 'demo_server["web"]' -o dot | dot -Tsvg >shop.svg`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := c.session(cmd)
			if err != nil {
				return err
			}
			return s.Graph(cmd.Context(), targets, c.output)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringArrayVar(&targets, "target", nil, "Only this resource and its dependencies: KIND/NAME, or the address shown in plans. Can be repeated.")
	c.addFlags(flags, "text", "dot")
	return cmd
}
