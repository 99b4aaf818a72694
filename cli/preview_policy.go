package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/scheduler"
)

func (p *preview) policy() *cobra.Command {
	var file, namespace string
	cmd := &cobra.Command{
		Use:   "policy -f FILE",
		Short: "Show what would move if policies were applied",
		Long: `Show what would move if policies were applied: Placements, ClusterPlacements, VolumePolicies, and
ClusterTaintPolicies. For the last, the table follows a list of the taints that clusters would get or
lose by their current conditions. The list is written to standard error.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				return errors.New("no policies: pass them with -f FILE, or -f - for standard input")
			}
			objects, err := readObjects(file, cmd.InOrStdin())
			if err != nil {
				return err
			}
			for _, o := range objects {
				if o.GroupVersionKind().Group != v1alpha1.Group {
					return fmt.Errorf("%s %s is not a policy: use `atoll preview -f` for other objects", o.GetKind(), o.GetName())
				}
			}
			if namespace, err = p.atoll.namespace(namespace); err != nil {
				return err
			}
			return p.run(cmd, func(ctx context.Context, f *fleetReader, s *scheduler.State) ([]scheduler.Move, error) {
				var moves []scheduler.Move
				var err error
				moves, p.edits, err = f.previewObjects(ctx, s, objects, namespace, p.notes(cmd))
				return moves, err
			})
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVarP(&file, "filename", "f", "", "File with Placements, ClusterPlacements, VolumePolicies and ClusterTaintPolicies; - is standard input.")
	flags.StringVarP(&namespace, "namespace", "n", "", "Namespace of Placements that do not set one. The default is the kubeconfig context's namespace, or default.")
	p.addFlags(flags)
	return cmd
}
