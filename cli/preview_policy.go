package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
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
			return p.runFile(cmd, file, namespace, func(o *unstructured.Unstructured) error {
				if o.GroupVersionKind().Group != v1alpha1.Group {
					return fmt.Errorf("%s %s is not a policy: use `atoll preview -f` for other objects", o.GetKind(), o.GetName())
				}
				return nil
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
