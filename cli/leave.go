package cli

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/join"
	"github.com/atoll-dev/atoll/fleet/moving"
	"github.com/atoll-dev/atoll/infra/cliview"
)

// leaver is `atoll leave`.
type leaver struct {
	atoll               target
	options             join.LeaveOptions
	follow              following
	keep, force, dryRun bool
	// yes skips the prompt.
	yes bool
}

func newLeaveCommand() *cobra.Command {
	l := &leaver{follow: following{wait: true, timeout: time.Hour}}
	cmd := &cobra.Command{
		Use:   "leave NAME",
		Short: "Remove a cluster from the fleet",
		Long: `Remove a cluster from the fleet, and wait until it has left.

First the cluster is drained: its share of every workload moves to the other clusters, step by
step (see atoll drain). If objects cannot move, the cluster stays in the fleet, and the
command names them. --force removes them all the same. Then the fleet's objects are removed
from the cluster.

With --keep-workloads they keep running there as ordinary objects, and other clusters take
over without a drain. A cluster that does not respond can only leave with --keep-workloads.
The same is true of a cluster with a share of a suspended workload, because nothing makes
that up elsewhere.

A cluster that cannot be used, because it does not respond for example, is not drained: other
clusters get its shares at once. The command shows what moves, and asks first.`,
		Example: `  # Show what would move, and what cannot
  atoll leave east --dry-run

  atoll leave east

  # A cluster that does not respond, or whose objects are to keep running there
  atoll leave lost --keep-workloads`,
		Args: oneName("cluster"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if c := l.options.Cascade; c != v1alpha1.LeaveDelete && c != v1alpha1.LeaveOrphan {
				return fmt.Errorf("invalid --cascade %q: must be delete or orphan", c)
			}
			if l.keep && cmd.Flags().Changed("cascade") && l.options.Cascade != v1alpha1.LeaveOrphan {
				return fmt.Errorf("--keep-workloads and --cascade=%s are mutually exclusive", l.options.Cascade)
			}
			if l.keep {
				l.options.Cascade = v1alpha1.LeaveOrphan
			}
			l.options.Name, l.options.Progress = args[0], progress(cmd)
			return l.run(cmd)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.BoolVar(&l.keep, "keep-workloads", false, "Leave the fleet's objects running in the cluster as ordinary ones. The same as --cascade=orphan.")
	flags.StringVar(&l.options.Cascade, "cascade", v1alpha1.LeaveDelete, "What happens to the fleet's objects in the cluster: delete or orphan.")
	flags.BoolVar(&l.force, "force", false, "Do not drain the cluster first: remove also objects that no other cluster takes.")
	flags.BoolVar(&l.yes, "yes", false, "Skip the confirmation prompt.")
	addServerDryRun(flags, &l.dryRun)
	flags.DurationVar(&l.follow.timeout, "timeout", l.follow.timeout, "How long to wait until the cluster has left; 0 is without limit. The drain or the removal continues afterwards.")
	l.atoll.addFlags(flags)
	return cmd
}

func (l *leaver) run(cmd *cobra.Command) error {
	config, err := l.atoll.config()
	if err != nil {
		return err
	}
	began := time.Now()
	if err := l.prepare(cmd, config); err != nil || l.dryRun {
		return err
	}
	if l.follow.timeout > 0 { // the drain took a part of it
		l.follow.timeout = max(l.follow.timeout-time.Since(began), time.Second)
	}
	ctx, cancel := l.follow.context(cmd.Context())
	defer cancel()
	if err := join.Leave(ctx, config, l.options); err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "cluster/%s left\n", l.options.Name)
	// The cluster has left. If the user has no right to read the bindings, there is no report about them.
	if rights, err := join.RightsOf(ctx, config, l.options.Name); err == nil && len(rights) > 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "The users of %s still have rights in Atoll. Delete these bindings, or the users of another cluster that joins as %s get them:\n", l.options.Name, l.options.Name)
		for _, b := range rights {
			fmt.Fprintf(cmd.ErrOrStderr(), "- %s\n", b)
		}
	}
	return nil
}

// prepare drains the cluster, or says why it leaves without a drain. In a dry run, it only shows what leaving moves.
func (l *leaver) prepare(cmd *cobra.Command, config *rest.Config) error {
	ctx, name := cmd.Context(), l.options.Name
	f, err := newFleetReader(&l.atoll)
	if err != nil {
		return err
	}
	client := &moving.Client{Dynamic: f.dynamic}
	cluster, err := client.Cluster(ctx, name)
	if err != nil {
		return fmt.Errorf("leave %s: %w", name, err)
	}
	drains, why := drainsFirst(cluster, l.options.Cascade, l.force)
	if cluster.DeletionTimestamp == nil && l.options.Cascade == v1alpha1.LeaveDelete {
		if err := join.CheckLeave(ctx, config, name); err != nil {
			return err
		}
	}
	if l.dryRun {
		note, plans := "leaves after a drain", planDrain
		if !drains {
			note, plans = "leaves without a drain, because "+why, planLeave
		}
		if err := f.printPlan(cmd, name, plans, "", true, drains); err != nil {
			return err
		}
		fmt.Fprintf(cmd.OutOrStdout(), "cluster/%s %s%s\n", name, note, dryRunNote(true))
		return nil
	}
	if drains {
		return l.drain(cmd, f, client, cluster)
	}
	if !l.force && isUnusable(cluster) && cluster.DeletionTimestamp == nil && l.options.Cascade == v1alpha1.LeaveDelete {
		return l.confirm(cmd, f, why)
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "cluster/%s leaves without a drain, because %s\n", name, why)
	return nil
}

// confirm shows what moves when a cluster that cannot be used leaves, and asks whether it is to leave.
func (l *leaver) confirm(cmd *cobra.Command, f *fleetReader, why string) error {
	name := l.options.Name
	if err := f.printPlan(cmd, name, planLeave, "atoll leave "+name+" --dry-run", false, false); err != nil {
		return err
	}
	fmt.Fprintf(cmd.ErrOrStderr(), `cluster/%s leaves without a drain, because %s. This cannot be undone:
- Other clusters get its shares at once.
- Its objects are removed when it can be used again, and may run twice until then. The command waits for that.
  With --keep-workloads it does not wait, and the objects stay there.
`, name, why)
	if l.yes {
		return nil
	}
	s := cliview.Session{In: cmd.InOrStdin(), Err: cmd.ErrOrStderr()}
	s.Interactive = isTerminal(s.In)
	return s.Ask(cmd.Context(), "Remove cluster "+name+" from the fleet?", "leave "+name, "use --yes")
}

// isUnusable reports whether Atoll had access to a cluster, and has none now.
func isUnusable(c *v1alpha1.Cluster) bool {
	ready := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ClusterReady)
	return ready != nil && ready.Status != metav1.ConditionTrue && ready.Reason != v1alpha1.ReasonClusterNotReady
}

// drainsFirst reports whether a cluster is drained before it leaves, or why not.
func drainsFirst(c *v1alpha1.Cluster, cascade string, force bool) (drains bool, why string) {
	ready := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ClusterReady)
	switch {
	case c.DeletionTimestamp != nil:
		return false, "it is leaving already"
	case cascade == v1alpha1.LeaveOrphan:
		return false, "its workloads keep running there"
	case force:
		return false, "of --force"
	case ready == nil:
		return false, "it has never answered"
	case isUnusable(c):
		return false, fmt.Sprintf("it cannot be used (%s)", ready.Reason)
	}
	return true, ""
}

func (l *leaver) drain(cmd *cobra.Command, f *fleetReader, client *moving.Client, cluster *v1alpha1.Cluster) error {
	name, options := l.options.Name, moving.DrainOptions{}
	if err := f.printDrain(cmd, name, false, false); err != nil {
		return err
	}
	if cluster.Spec.Drain != nil && cluster.Spec.Drain.Paused {
		options.Paused = new(bool)
	}
	drained, said, err := client.Drain(cmd.Context(), name, options)
	if errors.Is(err, moving.ErrUnknownDrain) {
		return fmt.Errorf("%w, or use --force to leave without a drain", err)
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "cluster/%s %s\n", name, said)
	err = l.follow.drain(cmd, client, drained, fmt.Sprintf("The cluster has not left the fleet. The drain goes on: run `atoll leave %s` again to wait for it and leave, or `atoll uncordon %s` to keep the cluster", name, name))
	var blocked *moving.BlockedError
	if errors.As(err, &blocked) {
		return fmt.Errorf("cluster %s stays in the fleet, because it cannot be drained completely: %s\nMake room elsewhere or change the objects' policies, and run this command again. Use --force to remove them all the same, --keep-workloads to leave all objects running there, or `atoll uncordon %s` to keep the cluster",
			name, strings.TrimSuffix(blocked.Message, "."), name)
	}
	return err
}
