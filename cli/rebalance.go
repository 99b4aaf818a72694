package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/scheduler"
)

// rebalanced are the objects that `atoll rebalance` and its preview are about.
type rebalanced struct {
	namespace string
	all       bool // of the namespace
	fleet     bool // of all namespaces
}

func (r *rebalanced) addFlags(flags *pflag.FlagSet) {
	flags.StringVarP(&r.namespace, "namespace", "n", "", "Namespace of the objects. The default is the kubeconfig context's namespace, or default.")
	flags.BoolVar(&r.all, "all", false, "Rebalance all workloads of the namespace.")
	flags.BoolVarP(&r.fleet, "all-namespaces", "A", false, "Rebalance all workloads of all namespaces.")
}

const rebalanceLong = `
Atoll moves nothing just because there is more room somewhere: replicas that went to a cluster
because another one was full stay there. A rebalance decides again as if the objects were new, by the
policy of each object and by the room that the nodes of the clusters have now. Pods, Jobs, custom
resources and workloads with volume claims keep their clusters.`

func (p *preview) rebalance() *cobra.Command {
	var which rebalanced
	cmd := &cobra.Command{
		Use:   "rebalance [KIND/NAME...]",
		Short: "Show what would move if workloads were rebalanced",
		Long:  "Show what would move if workloads were rebalanced.\n" + rebalanceLong,
		Example: `  atoll preview rebalance deployment/web -n shop
  atoll preview rebalance -A`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := which.check(args); err != nil {
				return err
			}
			namespace, err := p.atoll.namespace(which.namespace)
			if err != nil {
				return err
			}
			return p.run(cmd, func(_ context.Context, f *fleetReader, s *scheduler.State) ([]scheduler.Move, error) {
				_, moves, err := which.moves(f, s, namespace, args)
				p.moved = stepsOfMoves(s, moves)
				return moves, err
			})
		},
	}
	cmd.Flags().SortFlags = false
	which.addFlags(cmd.Flags())
	p.addFlags(cmd.Flags())
	return cmd
}

func newRebalanceCommand() *cobra.Command {
	var (
		atoll target
		which rebalanced
	)
	cmd := &cobra.Command{
		Use:   "rebalance [KIND/NAME...]",
		Short: "Place workloads again as if they were new",
		Long: `Place workloads again as if they were new, by their policies and by the room that there is now.
` + rebalanceLong + `

It prints what moves. To see that without moving anything, use atoll preview rebalance.`,
		Example: `  atoll rebalance deployment/web -n shop
  atoll rebalance --all -n shop`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := which.check(args); err != nil {
				return err
			}
			namespace, err := atoll.namespace(which.namespace)
			if err != nil {
				return err
			}
			f, err := newFleetReader(&atoll)
			if err != nil {
				return err
			}
			s, err := f.snapshot(cmd.Context(), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			objects, moves, err := which.moves(f, s, namespace, args)
			if err != nil {
				return err
			}
			if err := printMoves(cmd.OutOrStdout(), "table", moves); err != nil {
				return err
			}
			moved := stepsOfMoves(s, moves)
			moved.print(cmd.OutOrStdout())
			return f.requestRebalance(cmd.Context(), cmd.OutOrStdout(), objects, moves)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	which.addFlags(flags)
	atoll.addPlainFlags(flags)
	return cmd
}

func (r *rebalanced) check(args []string) error {
	switch {
	case len(args) == 0 && !r.all && !r.fleet:
		return errors.New("no workloads specified: name them as KIND/NAME, such as deployment/web, or use --all or --all-namespaces")
	case len(args) > 0 && (r.all || r.fleet):
		return errors.New("either name workloads, or use --all or --all-namespaces, but not both")
	case r.fleet && r.namespace != "":
		return errors.New("--all-namespaces and --namespace exclude each other")
	}
	return nil
}

// moves requests a rebalance in a snapshot, and returns the objects and what would move.
func (r *rebalanced) moves(f *fleetReader, s *scheduler.State, namespace string, args []string) (objects []scheduler.Placed, moves []scheduler.Move, err error) {
	keys := map[string]string{} // arguments by key
	for _, arg := range args {
		_, gvk, namespaced, name, err := f.resolve(arg)
		if err != nil {
			return nil, nil, err
		}
		in := namespace
		if !namespaced {
			in = ""
		}
		keys[scheduler.KeyOf(gvk.GroupKind(), in, name)] = arg
	}
	for i, p := range s.Placed {
		if _, named := keys[p.Key()]; !named && !r.fleet && !(r.all && p.Object.GetNamespace() == namespace) {
			continue
		}
		delete(keys, p.Key())
		objects = append(objects, p)
		p.Object = p.Object.DeepCopy()
		annotations := p.Object.GetAnnotations()
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[v1alpha1.RebalanceAnnotation] = stampOf(s.At)
		p.Object.SetAnnotations(annotations)
		s.Placed[i] = p
	}
	for _, arg := range keys {
		return nil, nil, fmt.Errorf("no workload %s in namespace %s is placed by a decision of its own: run `atoll explain %s -n %s`", arg, namespace, arg, namespace)
	}
	return objects, s.Moves(s.Snapshot()), nil
}

func stampOf(at time.Time) string { return at.UTC().Format(time.RFC3339Nano) }

// requestRebalance requests it for the objects that would move.
func (f *fleetReader) requestRebalance(ctx context.Context, out io.Writer, objects []scheduler.Placed, moves []scheduler.Move) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{v1alpha1.RebalanceAnnotation: stampOf(time.Now())}}})
	if err != nil {
		return err
	}
	var failed []error
	for _, p := range objects {
		kind, namespace, name := p.Kind.GroupVersionKind.Kind, p.Object.GetNamespace(), p.Object.GetName()
		if !slices.ContainsFunc(moves, func(m scheduler.Move) bool { return m.Kind == kind && m.Namespace == namespace && m.Name == name }) {
			continue
		}
		if _, err := f.dynamic.Resource(p.Kind.GVR()).Namespace(namespace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "atoll"}); err != nil {
			failed = append(failed, fmt.Errorf("rebalance %s %s/%s: %w", kind, namespace, name, err))
			continue
		}
		fmt.Fprintf(out, "%s/%s rebalanced\n", p.Kind.GVR().GroupResource(), name)
	}
	return errors.Join(failed...)
}
