package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/sharing"
)

func newExposeCommand() *cobra.Command {
	var (
		common   = newSharingFlags()
		ask      sharing.Exposure
		to       []string
		selector string
		output   string
	)
	cmd := &cobra.Command{
		Use:   "expose GROUP[,GROUP...] --to CLUSTER[,CLUSTER...]",
		Short: "Expose API groups of Atoll in clusters",
		Long: `Expose API groups of Atoll in clusters, and wait until the clusters serve them.

The groups are those of Atoll's CustomResourceDefinitions. Each cluster's API server
proxies requests for them to Atoll, so programs use local and shared objects through one
connection. The configuration is stored in a SharedAPI; exposing the same groups to more
clusters extends it.`,
		Example: `  atoll expose shop.example.org --to east,west

  # Every cluster with this label, now or later
  atoll expose shop.example.org --selector tier=prod

  # Print the SharedAPI, for a Git repository
  atoll expose shop.example.org --to east --dry-run=client -o yaml`,
		Args: atLeastOne("API group"),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if ask.Groups, err = readGroups(args); err != nil {
				return err
			}
			if ask.Clusters, ask.Selector, err = readClusters(cmd.Flags().Changed("to"), to, cmd.Flags().Changed("selector"), selector); err != nil {
				return err
			}
			if err := checkPolicies(ask); err != nil {
				return err
			}
			if problems := validation.IsDNS1123Subdomain(ask.Name); ask.Name != "" && len(problems) > 0 {
				return fmt.Errorf("%q is not a valid name for a SharedAPI: %s", ask.Name, problems[0])
			}
			if output != "" {
				if err := checkFormat(output, "name", "yaml", "json"); err != nil {
					return err
				}
			}
			return common.run(cmd, output, func(ctx context.Context, client *sharing.Client, o sharing.Options) error {
				return client.Expose(ctx, ask, o)
			})
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringSliceVar(&to, "to", nil, "Clusters to expose the groups to.")
	flags.StringVarP(&selector, "selector", "l", "", "Label selector, such as tier=prod, instead of --to; clusters that match later are included. '' selects all.")
	flags.StringVar(&ask.Name, "name", "", "Name of the SharedAPI. The default is the existing SharedAPI of these groups, or the first group.")
	flags.StringVar((*string)(&ask.Namespaces), "namespaces", "", "What happens when a cluster's user creates an object in a namespace that does not exist in Atoll: Provide creates the namespace, Require rejects the object. The default is Provide, or the SharedAPI's current value.")
	flags.StringVar((*string)(&ask.Authorization), "authorization", "", "Who authorizes clusters' users: Atoll, by its RBAC; or Member, which also allows what the user's own cluster allows. The default is Atoll, or the SharedAPI's current value.")
	common.addDryRun(flags)
	flags.StringVarP(&output, "output", "o", "", outputFlag("name", "yaml", "json"))
	common.addWait(flags, "Wait until the clusters serve the groups.", "How long to wait. The change continues afterwards.")
	return cmd
}

func checkPolicies(ask sharing.Exposure) error {
	switch ask.Namespaces {
	case "", v1alpha1.NamespacesProvide, v1alpha1.NamespacesRequire:
	default:
		return fmt.Errorf("invalid --namespaces %q: must be %s or %s", ask.Namespaces, v1alpha1.NamespacesProvide, v1alpha1.NamespacesRequire)
	}
	switch ask.Authorization {
	case "", v1alpha1.AuthorizationAtoll, v1alpha1.AuthorizationMember:
	default:
		return fmt.Errorf("invalid --authorization %q: must be %s or %s", ask.Authorization, v1alpha1.AuthorizationAtoll, v1alpha1.AuthorizationMember)
	}
	return nil
}

func readClusters(named bool, to []string, selected bool, selector string) ([]string, *metav1.LabelSelector, error) {
	switch {
	case named && selected:
		return nil, nil, errors.New("--to and --selector are mutually exclusive")
	case selected:
		parsed, err := metav1.ParseToLabelSelector(selector)
		if err != nil {
			return nil, nil, fmt.Errorf("--selector: %w", err)
		}
		return nil, parsed, nil
	case !named:
		return nil, nil, errors.New("no clusters: set --to or --selector")
	}
	clusters, err := readNames("--to", to)
	return clusters, nil, err
}

// atLeastOne requires at least one argument; what describes the arguments.
func atLeastOne(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return fmt.Errorf("no %s specified. Usage: %s", what, cmd.UseLine())
		}
		return nil
	}
}
