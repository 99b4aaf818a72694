package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/moving"
	"github.com/atoll-dev/atoll/fleet/scheduler"
)

// drainer is `atoll drain`.
type drainer struct {
	atoll             target
	follow            following
	rate, maxInFlight int32
	pause, resume     bool
	dryRun            bool
}

func newDrainCommand() *cobra.Command {
	d := &drainer{follow: following{wait: true, timeout: time.Hour}}
	cmd := &cobra.Command{
		Use:   "drain CLUSTER",
		Short: "Move everything from a cluster to other clusters",
		Long: `Move everything from a cluster to other clusters, step by step: replicas leave it when others are
available, and a few objects move at the same time. The cluster gets no new objects meanwhile, nor
afterwards, until atoll uncordon ends the drain.

The command prints what moves and what cannot, and waits until nothing is left in the cluster. If
objects cannot leave it, it exits with 1 and names them: they keep running there. Ctrl-C ends the
wait, not the drain.`,
		Example: `  # Show what would move, and what cannot
  atoll drain east --dry-run

  # Drain it, one object after the other
  atoll drain east --max-in-flight 1

  # Stop for now, and go on later
  atoll drain east --pause
  atoll drain east --resume

  # End the drain, and let new objects in again
  atoll uncordon east`,
		Args: oneName("cluster"),
		RunE: func(cmd *cobra.Command, args []string) error {
			options, err := d.options(cmd)
			if err != nil {
				return err
			}
			return d.run(cmd, args[0], options)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.Int32Var(&d.rate, "rate", 0, "How many objects a second begin to leave. The default is 5, or the present value of a drained cluster.")
	flags.Int32Var(&d.maxInFlight, "max-in-flight", 0, "How many objects leave at the same time. The default is 10, or the present value of a drained cluster.")
	flags.BoolVar(&d.pause, "pause", false, "Pause the drain: no further object begins to leave.")
	flags.BoolVar(&d.resume, "resume", false, "Resume a paused drain.")
	addServerDryRun(flags, &d.dryRun)
	d.follow.addFlags(flags, "Wait until the cluster is drained.")
	d.atoll.addPlainFlags(flags)
	return cmd
}

// options returns the settings of the flags that are set.
func (d *drainer) options(cmd *cobra.Command) (o moving.DrainOptions, err error) {
	for _, f := range []struct {
		name  string
		value int32
		into  **int32
	}{{"rate", d.rate, &o.Rate}, {"max-in-flight", d.maxInFlight, &o.MaxInFlight}} {
		if !cmd.Flags().Changed(f.name) {
			continue
		}
		if f.value < 1 {
			return o, fmt.Errorf("--%s %d is less than 1: to stop a drain for a time, use --pause", f.name, f.value)
		}
		*f.into = &f.value
	}
	if d.pause && d.resume {
		return o, errors.New("--pause and --resume are mutually exclusive")
	}
	if d.pause || d.resume {
		o.Paused = &d.pause
	}
	return o, nil
}

func (d *drainer) run(cmd *cobra.Command, name string, options moving.DrainOptions) error {
	f, err := newFleetReader(&d.atoll)
	if err != nil {
		return err
	}
	client := &moving.Client{Dynamic: f.dynamic, DryRun: d.dryRun}
	if _, err := client.Cluster(cmd.Context(), name); err != nil {
		return err
	}
	if !d.pause && !d.resume {
		if err := f.printDrain(cmd, name, d.dryRun, d.dryRun); err != nil {
			return err
		}
	}
	drained, said, err := client.Drain(cmd.Context(), name, options)
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "cluster/%s %s%s\n", name, said, dryRunNote(d.dryRun))
	if d.dryRun || d.pause || !d.follow.wait {
		return nil
	}
	err = d.follow.drain(cmd, client, drained, "The drain goes on: `kubectl describe cluster "+name+"` shows how far it is, `atoll drain "+name+" --pause` stops it for a time, and `atoll uncordon "+name+"` ends it")
	var blocked *moving.BlockedError
	if errors.As(err, &blocked) {
		return fmt.Errorf("%w\nThese objects keep running there. Make room for them elsewhere, change their policies, or move them with `atoll move`; the drain then goes on by itself. `atoll explain KIND/NAME` shows why a cluster does not take an object, and `atoll uncordon %s` ends the drain", err, name)
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "cluster/%s drained\n", name)
	return nil
}

// printDrain prints what a drain moves, and what stays: everything if it is a dry run, and on request the steps. Users without the right to read
// all that decisions depend on get a warning instead.
func (f *fleetReader) printDrain(cmd *cobra.Command, name string, everything, steps bool) error {
	return f.printPlan(cmd, name, planDrain, "atoll preview drain "+name, everything, steps)
}

// printPlan prints a plan as printDrain does. all is the command that prints everything.
func (f *fleetReader) printPlan(cmd *cobra.Command, name string, plans func(*scheduler.State, string) (*drainPlan, error), all string, everything, steps bool) error {
	s, err := f.snapshot(cmd.Context(), cmd.ErrOrStderr())
	if apierrors.IsForbidden(err) {
		fmt.Fprintf(cmd.ErrOrStderr(), "warning: cannot show what moves: %v\n", err)
		return nil
	}
	if err != nil {
		return err
	}
	plan, err := plans(s, name)
	if err != nil {
		return err
	}
	most := shownMoves
	if everything {
		most = 0
	}
	if err := plan.print(cmd.OutOrStdout(), most, commandInWorkspace(cmd, all)); err != nil {
		return err
	}
	if steps {
		moved := stepsOfMoves(s, plan.moves)
		moved.print(cmd.OutOrStdout())
	}
	return nil
}

// drain follows the drain of a cluster. next is what a user can do after the wait ended early.
func (f *following) drain(cmd *cobra.Command, client *moving.Client, drained *v1alpha1.Cluster, next string) error {
	ctx, cancel := f.context(cmd.Context())
	defer cancel()
	shown := newProgressLine(cmd.ErrOrStderr())
	last := "waiting for Atoll's leader to begin"
	err := client.FollowDrain(ctx, drained, func(text string) {
		last = text
		shown.show(-1, "cluster "+drained.Name+": "+text)
	})
	shown.end()
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return stoppedWaiting(err, f.timeout, []string{"cluster " + drained.Name + ": " + last}, next)
	}
	return err
}
