package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/atoll-dev/atoll/fleet/search"
)

const allClusters = "all"

func newGetCommand() *cobra.Command {
	var (
		atoll    target
		query    = search.Query{Timeout: 2 * time.Second}
		all      bool
		clusters = []string{allClusters}
		output   string
	)
	cmd := &cobra.Command{
		Use:   "get KIND [NAME]",
		Short: "Get objects of all clusters",
		Long: `Get objects of all clusters, also those that Atoll did not place, with the columns that each cluster prints.

The kind has any form that kubectl accepts, and clusters that do not serve it are left out. The command
needs the right to get clusters/proxy, of all clusters or of those that it names, and reads them with the
kubeconfigs that they joined with. A cluster that does not answer is named, and the exit code is 1.

With -o yaml and json, the annotation fleet.atoll.dev/cluster of each object is its cluster.`,
		Example: `  atoll get configmaps -n shop
  atoll get deploy -A -l app=web -o wide
  atoll get nodes --clusters east,west
  atoll get certificates.cert-manager.io web-tls -A -o yaml`,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if query.Kind, query.Name, err = kindAndName(args); err != nil {
				return err
			}
			if err := checkGet(&query, all, clusters, output); err != nil {
				return err
			}
			if !all {
				if query.Namespace, err = atoll.namespace(query.Namespace); err != nil {
					return err
				}
			}
			config, err := atoll.config()
			if err != nil {
				return err
			}
			if err := checkOwnPlacement(config); err != nil {
				return err
			}
			if _, path := splitWorkspaceURL(config.Host); path != "" {
				return errors.New(unreachedClusters(path))
			}
			found, err := search.Run(cmd.Context(), config, query)
			if err != nil {
				return err
			}
			return printFound(cmd.OutOrStdout(), cmd.ErrOrStderr(), output, query, found)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVarP(&query.Namespace, "namespace", "n", "", "Namespace of the objects. The default is the kubeconfig context's namespace, or default.")
	flags.BoolVarP(&all, "all-namespaces", "A", false, "Get the objects of all namespaces.")
	flags.StringVarP(&query.Selector, "selector", "l", "", "Label selector of the objects, such as app=web,tier!=test.")
	flags.StringSliceVar(&clusters, "clusters", clusters, "Clusters to ask: all, or names separated by commas.")
	flags.DurationVar(&query.Timeout, "timeout", query.Timeout, "How long each cluster may take to answer.")
	flags.StringVarP(&output, "output", "o", "table", outputFlag("table", "wide", "yaml", "json", "name"))
	atoll.addPlainFlags(flags)
	return cmd
}

// kindAndName parses KIND, KIND NAME and KIND/NAME.
func kindAndName(args []string) (kind, name string, err error) {
	if len(args) == 0 {
		return "", "", errors.New("no kind specified. Usage: atoll get KIND [NAME], such as atoll get configmaps -A")
	}
	kind, name, both := strings.Cut(args[0], "/")
	if both && len(args) == 1 && kind != "" && name != "" {
		return kind, name, nil
	}
	if both || len(args) > 2 {
		return "", "", fmt.Errorf("%q is not KIND, KIND NAME or KIND/NAME: get one kind, and one object or all", strings.Join(args, " "))
	}
	if strings.Contains(kind, ",") {
		return "", "", fmt.Errorf("%q has several kinds: get one after the other", kind)
	}
	if len(args) == 2 {
		name = args[1]
	}
	return kind, name, nil
}

// checkGet checks flags, and completes the query.
func checkGet(query *search.Query, all bool, clusters []string, output string) error {
	if err := checkFormat(output, "table", "wide", "yaml", "json", "name"); err != nil {
		return err
	}
	if all && query.Namespace != "" {
		return errBothNamespaces
	}
	if _, err := labels.Parse(query.Selector); err != nil {
		return fmt.Errorf("invalid label selector %q: %w: use one such as app=web,tier!=test", query.Selector, err)
	}
	if query.Timeout <= 0 {
		return fmt.Errorf("--timeout %s is not a positive duration: use one such as 5s", query.Timeout)
	}
	switch {
	case !slices.Contains(clusters, allClusters):
		query.Clusters = clusters
	case len(clusters) > 1:
		return errors.New("--clusters has all and names: use one of them")
	}
	if slices.Contains(clusters, "") || len(clusters) == 0 {
		return errors.New("--clusters has an empty name: use all, or names such as east,west")
	}
	query.Objects = output == "yaml" || output == "json"
	return nil
}
