package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/moving"
)

// replacer is `atoll replace`.
type replacer struct {
	atoll  target
	follow following
	by     string
	rate   int32
	dryRun bool
	force  bool
}

func newReplaceCommand() *cobra.Command {
	r := &replacer{follow: following{wait: true, timeout: time.Hour}, rate: v1alpha1.DefaultDrainRate}
	cmd := &cobra.Command{
		Use:   "replace CLUSTER --by CLUSTER",
		Short: "Replace a cluster by another one",
		Long: `Replace a cluster by another one that has joined: objects and namespaces whose label
fleet.atoll.dev/cluster names the old cluster get the new one, and then the old cluster is drained.
Where the other objects go is the decision of their policies, for which a new cluster is as good as
the old one if it has the same labels.

Policies are not edited: the command lists those that name the old cluster and not the new one.
Objects that no cluster takes stay in the old one, and it exits with 1. It can be repeated. Then
atoll leave removes the old cluster from the fleet.`,
		Example: `  atoll join east-2 --kubeconfig east-2.kubeconfig
  atoll replace east --by east-2 --dry-run
  atoll replace east --by east-2
  atoll leave east`,
		Args: oneName("cluster"),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case r.by == "":
				return errors.New("no replacement: set --by to a cluster that has joined")
			case r.by == args[0]:
				return fmt.Errorf("--by %s is the cluster itself: set it to another one", r.by)
			case r.rate < 1:
				return fmt.Errorf("--rate %d is less than 1", r.rate)
			}
			return r.run(cmd, args[0])
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&r.by, "by", "", "The cluster that replaces it.")
	flags.Int32Var(&r.rate, "rate", r.rate, "How many objects a second begin to move.")
	flags.BoolVar(&r.force, "force", false, "Begin also if objects would stay in the old cluster.")
	addServerDryRun(flags, &r.dryRun)
	r.follow.addFlags(flags, "Wait until the old cluster is drained.")
	r.atoll.addPlainFlags(flags)
	return cmd
}

func (r *replacer) run(cmd *cobra.Command, old string) error {
	ctx := cmd.Context()
	f, err := newFleetReader(&r.atoll)
	if err != nil {
		return err
	}
	s, err := f.snapshot(ctx, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	if !hasCluster(s, old) {
		return noCluster(s, old)
	}
	if err := checkDestination(s, r.by); err != nil {
		return err
	}
	plan, err := planReplace(s, old, r.by)
	if err != nil {
		return err
	}
	for _, text := range plan.warnings(old, r.by) {
		fmt.Fprintln(cmd.ErrOrStderr(), "warning: "+text)
	}
	most := shownMoves
	if r.dryRun {
		most = 0
	}
	if err := plan.drain.print(cmd.OutOrStdout(), most, commandInWorkspace(cmd, "atoll replace "+old+" --by "+r.by+" --dry-run")); err != nil {
		return err
	}
	if len(plan.drain.stay) > 0 && !r.force && !r.dryRun {
		return fmt.Errorf("cluster %s would keep %d of its objects: edit their policies or make room first, or use --force to move all others", old, len(plan.drain.stay))
	}
	client := &moving.Client{Dynamic: f.dynamic, DryRun: r.dryRun}
	if err := r.relabel(cmd, client, plan); err != nil {
		return err
	}
	drained, said, err := client.Drain(ctx, old, moving.DrainOptions{Rate: &r.rate})
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "cluster/%s %s%s\n", old, said, dryRunNote(r.dryRun))
	if r.dryRun || !r.follow.wait {
		return nil
	}
	if err := r.follow.drain(cmd, client, drained, "The drain goes on: `atoll replace "+old+" --by "+r.by+"` waits again, and `atoll uncordon "+old+"` ends it"); err != nil {
		return err
	}
	fmt.Fprint(cmd.OutOrStdout(), inSameWorkspace(cmd, fmt.Sprintf("cluster/%s replaced by %s: `atoll leave %s` removes it from the fleet\n", old, r.by, old)))
	return nil
}

// relabel labels the objects, a few a second: each one begins to move.
func (r *replacer) relabel(cmd *cobra.Command, client *moving.Client, plan *replacePlan) error {
	pause := time.Second / time.Duration(r.rate)
	for i, o := range plan.relabel {
		if i > 0 && !r.dryRun {
			if err := sleep(cmd.Context(), pause); err != nil {
				return fmt.Errorf("stopped after %d of %d objects: run the command again to go on", i, len(plan.relabel))
			}
		}
		if err := client.Label(cmd.Context(), o.Object, o.uid, v1alpha1.ClusterLabel, r.by); err != nil {
			return fmt.Errorf("%w. Run the command again to go on", err)
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s%s moves to %s%s\n", o.Argument(), o.InNamespace(), r.by, dryRunNote(r.dryRun))
	}
	return nil
}

// sleep waits, or returns ctx's error.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
