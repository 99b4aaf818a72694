package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/fleet/join"
)

// adoption has the flags of `atoll adopt`.
type adoption struct {
	atoll                                target
	namespace, selector, cluster, dryRun string
	all, allNamespaces                   bool
	copying                              copying
}

func newAdoptCommand() *cobra.Command {
	var a adoption
	cmd := &cobra.Command{
		Use:   "adopt [KIND/NAME...] [--from CLUSTER]",
		Short: "Take over objects that already exist in clusters",
		Long: `Take over objects that already exist in clusters.

Atoll never touches an object in a cluster that it did not create. If you apply an object of
the same name, its ResourceBinding reports a conflict. This command resolves such conflicts:
Atoll applies the object that you wrote to the existing one, and manages it from then on.

A namespace that a cluster had before gets no objects, because it may have accounts and rights of
its own. To adopt the namespace in the clusters that report it, name it: namespace/NAME.

It annotates the objects in Atoll, with your permissions. To take over what this Atoll itself
left in a cluster, join the cluster with --adopt.

With --from, it copies objects that Atoll does not have from a cluster, together with what they
need: ConfigMaps, Secrets, claims, accounts with their roles, and autoscalers. Atoll takes over the
objects there without a restart of their pods, and keeps them in this cluster until you
remove their label fleet.atoll.dev/cluster. The cluster is read with the kubeconfig in Atoll, if you
may read its Secret, or with --member-kubeconfig.`,
		Example: `  atoll adopt -l app=web -n shop --dry-run=client    # list the conflicts
  atoll adopt deployment/web service/web -n shop
  atoll adopt namespace/shop
  atoll adopt --all -A --cluster east

  atoll adopt deployment/web service/web -n shop --from east --dry-run=client
  atoll adopt deployments,services -l app=web -n shop --from east`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.check(cmd, args); err != nil {
				return err
			}
			if a.copying.from != "" {
				return a.copying.run(cmd, &a, args)
			}
			fleet, err := newFleetReader(&a.atoll)
			if err != nil {
				return err
			}
			filter, err := a.filter(fleet, args)
			if err != nil {
				return err
			}
			conflicts, err := join.Conflicts(cmd.Context(), fleet.dynamic, fleet.mapper, filter)
			if err != nil {
				return err
			}
			return a.run(cmd, fleet, filter, conflicts)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVarP(&a.selector, "selector", "l", "", "Label selector of the objects in Atoll. With --from, of the objects in the cluster.")
	flags.BoolVar(&a.all, "all", false, "Select all objects with a conflict.")
	flags.StringVarP(&a.namespace, "namespace", "n", "", "Namespace. The default is the kubeconfig context's namespace, or default.")
	flags.BoolVarP(&a.allNamespaces, "all-namespaces", "A", false, "All namespaces, and objects without one.")
	flags.StringVar(&a.cluster, "cluster", "", "Only conflicts in this cluster.")
	flags.StringVar(&a.dryRun, "dry-run", "none", "none, client (only list the objects) or server (submit the changes without storing them).")
	flags.StringVar(&a.copying.from, "from", "", "Copy the objects from this cluster to Atoll, and take them over there.")
	flags.BoolVar(&a.copying.dependencies, "dependencies", true, "With --from: also copy what the objects need, unless Atoll has it.")
	flags.StringVar(&a.copying.memberKubeconfig, "member-kubeconfig", "", "With --from: kubeconfig for the cluster. The default is the one in Atoll.")
	flags.StringVar(&a.copying.memberContext, "member-context", "", "Context in that kubeconfig. The default is the current context.")
	flags.StringVarP(&a.copying.output, "output", "o", "", "With --from and --dry-run=client: print the manifests as json or yaml.")
	a.atoll.addPlainFlags(flags)
	return cmd
}

func (a *adoption) check(cmd *cobra.Command, args []string) error {
	if err := a.copying.check(cmd, a, args); err != nil {
		return err
	}
	switch {
	case !slices.Contains([]string{"none", "client", "server"}, a.dryRun):
		return fmt.Errorf("--dry-run=%s is not supported: use none, client or server", a.dryRun)
	case len(args) == 0 && a.selector == "" && !a.all:
		return errors.New("no objects specified: name them as KIND/NAME, select them with -l, or use --all")
	case a.copying.from != "":
		return nil // it has its own rules
	case len(args) > 0 && (a.selector != "" || a.all):
		return errors.New("names cannot be combined with -l or --all")
	case len(args) > 0 && a.allNamespaces:
		return errors.New("names cannot be combined with -A: set the namespace with -n")
	case a.allNamespaces && a.namespace != "":
		return errors.New("-A cannot be combined with -n")
	}
	return nil
}

func (a *adoption) filter(fleet *fleetReader, args []string) (join.ConflictFilter, error) {
	f := join.ConflictFilter{Namespace: a.namespace, Cluster: a.cluster}
	var err error
	if f.Namespace == "" && !a.allNamespaces {
		if f.Namespace, err = a.atoll.namespace(""); err != nil {
			return f, err
		}
	}
	if a.selector != "" {
		if f.Selector, err = labels.Parse(a.selector); err != nil {
			return f, fmt.Errorf("-l %s: %w", a.selector, err)
		}
	}
	for _, arg := range args {
		_, gvk, namespaced, name, err := fleet.resolve(arg)
		if err != nil {
			return f, err
		}
		if f.Named == nil {
			f.Named = map[join.Name]bool{}
		}
		one := join.Name{GroupKind: gvk.GroupKind(), NamespacedName: types.NamespacedName{Namespace: f.Namespace, Name: name}}
		if !namespaced {
			one.Namespace, f.ClusterScoped = "", true
		}
		f.Named[one] = true
	}
	return f, nil
}

// run adopts the objects of all conflicts. Of named objects, each must have one.
func (a *adoption) run(cmd *cobra.Command, fleet *fleetReader, f join.ConflictFilter, conflicts []join.Conflict) error {
	if len(conflicts) == 0 && f.Named == nil {
		fmt.Fprintln(cmd.ErrOrStderr(), "No conflicts found: no cluster reports an object of the same name that Atoll did not create.")
		return nil
	}
	var failed error
	for _, c := range conflicts {
		delete(f.Named, c.Name)
		suffix := ""
		switch a.dryRun {
		case "client":
			suffix = " (dry run)"
		case "server":
			suffix = " (server dry run)"
		}
		if a.dryRun != "client" {
			var dryRun []string
			if a.dryRun == "server" {
				dryRun = []string{metav1.DryRunAll}
			}
			if err := c.Adopt(cmd.Context(), fleet.dynamic, dryRun); err != nil {
				failed = errors.Join(failed, fmt.Errorf("adopt %s: %w", c.Name, err))
				continue
			}
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s adopted in %s%s\n", c.Name, strings.Join(c.Clusters, ", "), suffix)
	}
	for name := range f.Named {
		failed = errors.Join(failed, a.noConflict(name))
	}
	return failed
}

// noConflict returns the error for a named object without a conflict.
func (a *adoption) noConflict(name join.Name) error {
	where, list := "in any cluster", "-n "+name.Namespace
	if name.Namespace == "" {
		list = "-A"
	}
	if a.cluster != "" {
		where, list = "in cluster "+a.cluster, list+" --cluster "+a.cluster
	}
	return fmt.Errorf("%s has no conflict %s: run `atoll adopt --all %s --dry-run=client` to list the conflicts, or `atoll explain` to see where the object is; "+
		"to copy an object that Atoll does not have from a cluster, set --from", name, where, list)
}
