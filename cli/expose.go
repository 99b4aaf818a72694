package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

func newExposeCommand() *cobra.Command {
	var (
		atoll    target
		ask      exposure
		to       []string
		selector string
		dryRun   = dryRunNone
		output   string
		wait     = true
		timeout  = 2 * time.Minute
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
			if ask.groups, err = readGroups(args); err != nil {
				return err
			}
			if ask.clusters, ask.selector, err = readClusters(cmd.Flags().Changed("to"), to, cmd.Flags().Changed("selector"), selector); err != nil {
				return err
			}
			if err := ask.checkPolicies(); err != nil {
				return err
			}
			if problems := validation.IsDNS1123Subdomain(ask.name); ask.name != "" && len(problems) > 0 {
				return fmt.Errorf("%q is not a valid name for a SharedAPI: %s", ask.name, problems[0])
			}
			if output != "" {
				if err := checkFormat(output, "name", "yaml", "json"); err != nil {
					return err
				}
			}
			config, err := atoll.config()
			if err != nil {
				return err
			}
			s, err := newSharing(config, dryRun, cmd.OutOrStdout(), progress(cmd))
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			return s.expose(ctx, ask, output, wait)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringSliceVar(&to, "to", nil, "Clusters to expose the groups to.")
	flags.StringVarP(&selector, "selector", "l", "", "Label selector, such as tier=prod, instead of --to; clusters that match later are included. '' selects all.")
	flags.StringVar(&ask.name, "name", "", "Name of the SharedAPI. The default is the existing SharedAPI of these groups, or the first group.")
	flags.StringVar((*string)(&ask.namespaces), "namespaces", "", "What happens when a cluster's user creates an object in a namespace that does not exist in Atoll: Provide creates the namespace, Require rejects the object. The default is Provide, or the SharedAPI's current value.")
	flags.StringVar((*string)(&ask.authorization), "authorization", "", "Who authorizes clusters' users: Atoll, by its RBAC; or Member, which also allows what the user's own cluster allows. The default is Atoll, or the SharedAPI's current value.")
	flags.StringVar(&dryRun, "dry-run", dryRun, dryRunFlag)
	flags.StringVarP(&output, "output", "o", "", outputFlag("name", "yaml", "json"))
	flags.BoolVar(&wait, "wait", wait, "Wait until the clusters serve the groups.")
	flags.DurationVar(&timeout, "timeout", timeout, "How long to wait. The change continues afterwards.")
	atoll.addFlags(flags)
	return cmd
}

func (e exposure) checkPolicies() error {
	switch e.namespaces {
	case "", v1alpha1.NamespacesProvide, v1alpha1.NamespacesRequire:
	default:
		return fmt.Errorf("invalid --namespaces %q: must be %s or %s", e.namespaces, v1alpha1.NamespacesProvide, v1alpha1.NamespacesRequire)
	}
	switch e.authorization {
	case "", v1alpha1.AuthorizationAtoll, v1alpha1.AuthorizationMember:
	default:
		return fmt.Errorf("invalid --authorization %q: must be %s or %s", e.authorization, v1alpha1.AuthorizationAtoll, v1alpha1.AuthorizationMember)
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

// expose creates or extends a SharedAPI, and waits until its clusters serve it.
func (s *sharing) expose(ctx context.Context, ask exposure, output string, wait bool) error {
	what := strings.Join(ask.groups, ", ")
	now, err := s.read(ctx)
	if err != nil {
		return fmt.Errorf("expose %s: %w", what, err)
	}
	c, err := now.expose(ask)
	if err != nil {
		return fmt.Errorf("expose %s: %w", what, err)
	}
	doubts, waits := now.warnings(c)
	for _, doubt := range doubts {
		s.progress("warning: " + doubt)
	}
	written, err := s.write(ctx, c)
	if err != nil {
		return fmt.Errorf("expose %s: %w", what, err)
	}
	if err := s.print(c, written, output); err != nil {
		return err
	}
	if s.dryRun != dryRunNone || !wait || !waits {
		return nil
	}
	report, err := s.await(ctx, c, written, false)
	if errors.Is(err, errPending) {
		return fmt.Errorf("expose %s: not all clusters serve it yet\n%s\nSharedAPI %s remains and is still being rolled out; run `kubectl describe sharedapi %s` to see its progress",
			what, report, c.name, c.name)
	}
	if err != nil {
		return fmt.Errorf("expose %s: %w", what, err)
	}
	return nil
}

// print prints the result in the requested format.
func (s *sharing) print(c change, written *unstructured.Unstructured, output string) error {
	switch output {
	case "":
		s.printResult(c)
		return nil
	case "name":
		_, err := fmt.Fprintf(s.out, "%s/%s\n", "sharedapi."+v1alpha1.Group, c.name)
		return err
	}
	shown := written.DeepCopy()
	shown.SetManagedFields(nil) // as kubectl does
	return printStructured(s.out, output, shown.Object)
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
