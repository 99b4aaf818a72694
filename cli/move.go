package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/moving"
	"github.com/atoll-dev/atoll/fleet/scheduler"
)

// destination is where `atoll move` and its preview move an object.
type destination struct {
	to        string
	anywhere  bool
	namespace string
}

func (d *destination) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&d.to, "to", "", "Cluster to run the object in.")
	flags.BoolVar(&d.anywhere, "anywhere", false, "Instead of --to: remove the label, so that the object's policy decides again.")
	flags.StringVarP(&d.namespace, "namespace", "n", "", "Namespace of the object. The default is the kubeconfig context's namespace, or default.")
}

// argument checks the flags and returns KIND/NAME.
func (d *destination) argument(args []string) (string, error) {
	switch {
	case len(args) == 0:
		return "", errors.New("no object specified: name one as KIND/NAME, such as deployment/web, or a namespace with all objects in it as ns/NAME")
	case len(args) > 2 || len(args) == 2 && strings.Contains(args[0]+args[1], "/"):
		return "", fmt.Errorf("expected one object, got %d arguments: move objects one by one, or their namespace with ns/NAME", len(args))
	case d.anywhere && d.to != "":
		return "", errors.New("--to and --anywhere are mutually exclusive")
	case !d.anywhere && d.to == "":
		return "", errors.New("no destination: set --to to a cluster, or use --anywhere to let the object's policy decide. `kubectl get clusters` lists all clusters")
	}
	return strings.Join(args, "/"), nil
}

const moveLong = `
The object gets the label fleet.atoll.dev/cluster, which takes precedence over the cluster
selection of policies. A namespace gets it for all objects in it that have no such label
themselves. Objects that others need, such as ConfigMaps, go along.`

func (p *preview) move() *cobra.Command {
	var where destination
	cmd := &cobra.Command{
		Use:   "move (KIND/NAME | KIND NAME) --to CLUSTER",
		Short: "Show what would move if an object or a namespace were moved to a cluster",
		Long:  "Show what would move if an object or a namespace were moved to a cluster.\n" + moveLong,
		Example: `  atoll preview move deployment/web -n shop --to west
  atoll preview move ns/shop --to west`,
		RunE: func(cmd *cobra.Command, args []string) error {
			arg, err := where.argument(args)
			if err != nil {
				return err
			}
			if where.namespace, err = p.atoll.namespace(where.namespace); err != nil {
				return err
			}
			return p.run(cmd, func(ctx context.Context, f *fleetReader, s *scheduler.State) ([]scheduler.Move, error) {
				o, err := f.object(arg, where.namespace)
				if err != nil {
					return nil, err
				}
				if _, err := f.movable(ctx, o); err != nil {
					return nil, err
				}
				if where.to != "" {
					if err := checkDestination(s, where.to); err != nil {
						return nil, err
					}
				}
				plan, err := planMove(s, o, where.to)
				if err != nil {
					return nil, err
				}
				for _, b := range plan.blocked {
					fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s would not move: %s\n", b.object, b.why)
				}
				p.steps = plan.steps
				return plan.moves, nil
			})
		},
	}
	cmd.Flags().SortFlags = false
	where.addFlags(cmd.Flags())
	p.addFlags(cmd.Flags())
	return cmd
}

// mover is `atoll move`.
type mover struct {
	atoll  target
	where  destination
	follow following
	dryRun bool
	force  bool
}

func newMoveCommand() *cobra.Command {
	m := &mover{follow: following{wait: true, timeout: 30 * time.Minute}}
	cmd := &cobra.Command{
		Use:   "move (KIND/NAME | KIND NAME) --to CLUSTER",
		Short: "Move an object, or a namespace, to a cluster",
		Long: `Move an object, or all objects of a namespace, to a cluster, step by step: replicas leave a
cluster when others are available. The command prints what moves, and waits until it has.
If the objects do not become available in the cluster, they return, and it exits with 1.
Ctrl-C ends the wait, not the move.
` + moveLong,
		Example: `  # Show what would move
  atoll move deployment/web -n shop --to west --dry-run

  # Move it, and wait until it has moved
  atoll move deployment/web -n shop --to west

  # A namespace with everything in it
  atoll move ns/shop --to west

  # Let the policy decide again
  atoll move deployment/web -n shop --anywhere`,
		RunE: func(cmd *cobra.Command, args []string) error {
			arg, err := m.where.argument(args)
			if err != nil {
				return err
			}
			return m.run(cmd, arg)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	m.where.addFlags(flags)
	addServerDryRun(flags, &m.dryRun)
	flags.BoolVar(&m.force, "force", false, "Set the label also if the cluster does not accept the objects now. They wait, or stay where they are.")
	m.follow.addFlags(flags, "Wait until the objects have moved.")
	m.atoll.addPlainFlags(flags)
	return cmd
}

func (m *mover) run(cmd *cobra.Command, arg string) error {
	ctx := cmd.Context()
	f, err := newFleetReader(&m.atoll)
	if err != nil {
		return err
	}
	if m.where.namespace, err = m.atoll.namespace(m.where.namespace); err != nil {
		return err
	}
	o, err := f.object(arg, m.where.namespace)
	if err != nil {
		return err
	}
	live, err := f.movable(ctx, o)
	if err != nil {
		return err
	}
	if m.where.anywhere && live.GetLabels()[v1alpha1.ClusterLabel] == "" {
		fmt.Fprintf(cmd.OutOrStdout(), "%s has no label %s: its policy decides already\n", o.Argument(), v1alpha1.ClusterLabel)
		return nil
	}
	plan, err := m.plan(cmd, f, o)
	if err != nil {
		return err
	}
	client := &moving.Client{Dynamic: f.dynamic, DryRun: m.dryRun}
	if m.dryRun {
		if err := client.Label(ctx, o, live.GetUID(), v1alpha1.ClusterLabel, m.where.to); err != nil {
			return err
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s %s%s\n", o.Argument(), m.where.text(plan), dryRunNote(true))
		return nil
	}
	follower, err := client.Follow(ctx, plan.targets)
	if err != nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "warning: cannot follow the move: %v\n", err)
	}
	if err := client.Label(ctx, o, live.GetUID(), v1alpha1.ClusterLabel, m.where.to); err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s %s\n", o.Argument(), m.where.text(plan))
	if follower == nil || !m.follow.wait {
		return nil
	}
	return m.follow.objects(cmd, follower, o)
}

// movable reads an object that is to move.
func (f *fleetReader) movable(ctx context.Context, o moving.Object) (*unstructured.Unstructured, error) {
	live, err := f.dynamic.Resource(o.Resource).Namespace(o.Namespace).Get(ctx, o.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, f.noSuchObject(ctx, o.Resource, o.Kind.Kind, o.Namespace, o.Name)
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", o, err)
	case live.GetDeletionTimestamp() != nil:
		return nil, fmt.Errorf("%s is being deleted, and does not move", o)
	}
	return live, nil
}

// text says what the command does with the object.
func (d *destination) text(plan *movePlan) string {
	switch {
	case d.anywhere:
		return "runs where its policy says"
	case len(plan.targets) == 0: // it runs there, or cannot move now
		return "is labelled for " + d.to
	}
	return "moves to " + d.to
}

// plan prints what moves. Without the right to read all that decisions depend on, the object moves unseen.
func (m *mover) plan(cmd *cobra.Command, f *fleetReader, o moving.Object) (*movePlan, error) {
	s, err := f.snapshot(cmd.Context(), cmd.ErrOrStderr())
	if apierrors.IsForbidden(err) && !interpret.IsNamespace(o.Kind) {
		fmt.Fprintf(cmd.ErrOrStderr(), "warning: cannot check whether the move is possible: %v\n", err)
		plan := &movePlan{}
		if m.where.to != "" {
			plan.targets = []moving.Target{{Object: o, Clusters: []string{m.where.to}}}
		}
		return plan, nil
	}
	if err != nil {
		return nil, err
	}
	if m.where.to != "" {
		if err := checkDestination(s, m.where.to); err != nil && !(m.force && hasCluster(s, m.where.to)) {
			return nil, err
		}
	}
	plan, err := planMove(s, o, m.where.to)
	if err != nil {
		return nil, err
	}
	if len(plan.blocked) > 0 && !m.force {
		return nil, plan.blockedError(fmt.Sprintf("Choose another cluster, or correct this first. To set the label all the same, use --force; `atoll explain %s%s` shows all clusters",
			o.Argument(), o.InNamespace()))
	}
	for _, b := range plan.blocked {
		fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s does not move now: %s\n", b.object, b.why)
	}
	if len(plan.moves) > 0 {
		if err := printMoves(cmd.OutOrStdout(), "table", plan.moves); err != nil {
			return nil, err
		}
		printSteps(cmd.OutOrStdout(), plan.steps)
		return plan, nil
	}
	if len(plan.blocked) == 0 && len(plan.targets) == 0 {
		fmt.Fprintln(cmd.OutOrStdout(), "Nothing has to move.")
	}
	return plan, nil
}

func hasCluster(s *scheduler.State, name string) bool {
	for _, c := range s.Clusters {
		if c.Name == name {
			return true
		}
	}
	return false
}
