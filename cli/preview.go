package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/names"
	"github.com/atoll-dev/atoll/fleet/placement"
	"github.com/atoll-dev/atoll/fleet/scheduler"
)

// preview is the common part of its subcommands.
type preview struct {
	atoll    target
	output   string
	detailed bool
	// edits are the edits of policies that would not take effect at once.
	edits []scheduler.Edit
	// stay are the objects that no other cluster takes, if one is drained.
	stay []blockedObject
}

// errMoves makes the program exit with 2 if --detailed-exitcode is set.
var errMoves = errors.New("something would move")

func newPreviewCommand() *cobra.Command {
	p := &preview{}
	var file, namespace string
	cmd := &cobra.Command{
		Use:   "preview -f FILE",
		Short: "Show which workloads would move, before they do",
		Long: `Show which workloads would move in the fleet if something changed.

The result comes from the scheduler's own code, with Atoll's current policies, clusters,
their APIs and capacities, and overrides.`,
		Example: `  atoll preview -f app.yaml -n shop
  atoll preview drain east
  atoll preview join south --labels topology.kubernetes.io/region=eu
  atoll preview policy -f placement.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				return cmd.Help()
			}
			objects, err := readObjects(file, cmd.InOrStdin())
			if err != nil {
				return err
			}
			if namespace, err = p.atoll.namespace(namespace); err != nil {
				return err
			}
			return p.run(cmd, func(ctx context.Context, f *fleetReader, s *scheduler.State) ([]scheduler.Move, error) {
				var moves []scheduler.Move
				var err error
				moves, p.edits, err = f.previewObjects(ctx, s, objects, namespace, p.notes(cmd))
				return moves, err
			})
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVarP(&file, "filename", "f", "", "File with the objects that would be applied; - is standard input.")
	flags.StringVarP(&namespace, "namespace", "n", "", "Namespace of objects that do not set one. The default is the kubeconfig context's namespace, or default.")
	p.addFlags(flags)
	cmd.AddCommand(p.drain(), p.join(), p.policy(), p.rebalance(), p.move())
	return cmd
}

func (p *preview) addFlags(flags *pflag.FlagSet) {
	flags.StringVarP(&p.output, "output", "o", "table", outputFlag("table", "json", "yaml"))
	flags.BoolVar(&p.detailed, "detailed-exitcode", false, "Exit with 2 if something would move, with 0 if not.")
	p.atoll.addPlainFlags(flags)
}

// run loads the current state, calls ask, and prints the result.
func (p *preview) run(cmd *cobra.Command, ask func(context.Context, *fleetReader, *scheduler.State) ([]scheduler.Move, error)) error {
	if err := checkFormat(p.output, "table", "json", "yaml"); err != nil {
		return err
	}
	f, err := newFleetReader(&p.atoll)
	if err != nil {
		return err
	}
	s, err := f.snapshot(cmd.Context(), cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	moves, err := ask(cmd.Context(), f, s)
	if err != nil {
		return err
	}
	if err := printPreview(cmd.OutOrStdout(), p.output, moves, p.edits); err != nil {
		return err
	}
	if p.output == "table" {
		if err := printStaying(cmd.OutOrStdout(), p.stay, 0); err != nil {
			return err
		}
	}
	if p.detailed && (len(moves) > 0 || len(p.edits) > 0) {
		return errMoves
	}
	return nil
}

// notes is where a preview writes what its table does not have.
func (p *preview) notes(cmd *cobra.Command) io.Writer {
	if p.output == "table" {
		return cmd.ErrOrStderr()
	}
	return io.Discard
}

// printPreview prints what would move at once, and then what edits of policies would move later.
func printPreview(out io.Writer, format string, moves []scheduler.Move, edits []scheduler.Edit) error {
	if len(edits) == 0 {
		return printMoves(out, format, moves)
	}
	if format != "table" {
		if moves == nil {
			moves = []scheduler.Move{}
		}
		return printStructured(out, format, map[string]any{"moves": moves, "edits": edits})
	}
	if len(moves) == 0 {
		fmt.Fprintln(out, "Nothing would move at once.")
	} else if err := printMoves(out, format, moves); err != nil {
		return err
	}
	for _, e := range edits {
		fmt.Fprintf(out, "\n%s %s would not be in effect for all objects at once (%s):\n%s.\n", e.Kind, policyName(e.Namespace, e.Name), e.Reason, e.Message)
		if e.Invalid {
			continue
		}
		fmt.Fprint(out, "\nOnce it is in effect for all of them:\n")
		if err := printMoves(out, format, e.Moves); err != nil {
			return err
		}
	}
	return nil
}

func policyName(namespace, name string) string {
	if namespace == "" {
		return name
	}
	return namespace + "/" + name
}

func printMoves(out io.Writer, format string, moves []scheduler.Move) error {
	if format != "table" {
		if moves == nil {
			moves = []scheduler.Move{}
		}
		return printStructured(out, format, map[string]any{"moves": moves})
	}
	if len(moves) == 0 {
		fmt.Fprintln(out, "Nothing would move.")
		return nil
	}
	table := newTable(out)
	fmt.Fprintln(table, "OBJECT\tCLUSTER\tBEFORE\tAFTER\tWHY")
	for _, m := range moves {
		name := m.Name
		if m.Namespace != "" {
			name = m.Namespace + "/" + name
		}
		cluster := m.Cluster
		if cluster == "" {
			cluster = "-"
		}
		fmt.Fprintf(table, "%s %s\t%s\t%s\t%s\t%s\n", m.Kind, name, cluster, m.Before, m.After, m.Why)
	}
	return table.Flush()
}

func (p *preview) drain() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "drain CLUSTER",
		Short: "Show what would move if a cluster were drained",
		Long: `Show what would move if a cluster were drained, that is, had a NoExecute taint: it gets no
new workloads, and workloads that fit on other clusters move there. Objects whose policy
tolerates all taints stay.`,
		Args: oneName("cluster"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.run(cmd, func(_ context.Context, _ *fleetReader, s *scheduler.State) ([]scheduler.Move, error) {
				moves, err := previewDrain(s, args[0])
				if err != nil {
					return nil, err
				}
				p.stay = staying(s, args[0], moves)
				return moves, nil
			})
		},
	}
	p.addFlags(cmd.Flags())
	return cmd
}

// drainTaint is the taint that a drain adds to a cluster.
const drainTaint = v1alpha1.Group + "/drain"

func previewDrain(s *scheduler.State, name string) ([]scheduler.Move, error) {
	i := slices.IndexFunc(s.Clusters, func(c *v1alpha1.Cluster) bool { return c.Name == name })
	if i < 0 {
		return nil, noCluster(s, name)
	}
	drained := s.Clusters[i].DeepCopy()
	drained.Spec.Drain = &v1alpha1.ClusterDrain{}
	drained.Spec.Taints = append(drained.Spec.Taints, v1alpha1.Taint{Key: drainTaint, Effect: v1alpha1.TaintNoExecute})
	s.Clusters[i] = drained
	return s.Moves(s.Snapshot()), nil
}

func noCluster(s *scheduler.State, name string) error {
	var joined []string
	for _, c := range s.Clusters {
		joined = append(joined, c.Name)
	}
	return names.NoSuchCluster(name, joined)
}

func (p *preview) join() *cobra.Command {
	var (
		labels map[string]string
		cpu    string
	)
	cmd := &cobra.Command{
		Use:     "join CLUSTER",
		Short:   "Show what would move if a cluster joined",
		Example: `  atoll preview join south --labels topology.kubernetes.io/region=eu --cpu 64`,
		Args:    oneName("cluster"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.run(cmd, func(_ context.Context, _ *fleetReader, s *scheduler.State) ([]scheduler.Move, error) {
				return previewJoin(s, args[0], labels, cpu)
			})
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringToStringVar(&labels, "labels", nil, "Labels of the new Cluster.")
	flags.StringVar(&cpu, "cpu", "", "CPUs of the new Cluster, for policies that consider capacity.")
	p.addFlags(flags)
	return cmd
}

func previewJoin(s *scheduler.State, name string, labels map[string]string, cpu string) ([]scheduler.Move, error) {
	if slices.ContainsFunc(s.Clusters, func(c *v1alpha1.Cluster) bool { return c.Name == name }) {
		return nil, fmt.Errorf("cluster %s has already joined: use the name of a new cluster. To preview its removal, run `atoll preview drain %s`", name, name)
	}
	joined := &v1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels, CreationTimestamp: metav1.NewTime(s.At)}}
	joined.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ClusterReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonClusterReady,
		LastTransitionTime: metav1.NewTime(s.At)}}
	if cpu != "" {
		q, err := resource.ParseQuantity(cpu)
		if err != nil {
			return nil, fmt.Errorf("--cpu %s: %w", cpu, err)
		}
		joined.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: q}
	}
	s.Clusters = append(s.Clusters, joined)
	return s.Moves(s.Snapshot()), nil
}

func (p *preview) policy() *cobra.Command {
	var file, namespace string
	cmd := &cobra.Command{
		Use:   "policy -f FILE",
		Short: "Show what would move if policies were applied",
		Long: `Show what would move if policies were applied: Placements, ClusterPlacements, and
ClusterTaintPolicies. For the last, the table follows a list of the taints that clusters would get or
lose by their current conditions. The list is written to standard error.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				return errors.New("no policies: pass them with -f FILE, or -f - for standard input")
			}
			objects, err := readObjects(file, cmd.InOrStdin())
			if err != nil {
				return err
			}
			for _, o := range objects {
				if o.GroupVersionKind().Group != v1alpha1.Group {
					return fmt.Errorf("%s %s is not a policy: use `atoll preview -f` for other objects", o.GetKind(), o.GetName())
				}
			}
			if namespace, err = p.atoll.namespace(namespace); err != nil {
				return err
			}
			return p.run(cmd, func(ctx context.Context, f *fleetReader, s *scheduler.State) ([]scheduler.Move, error) {
				var moves []scheduler.Move
				var err error
				moves, p.edits, err = f.previewObjects(ctx, s, objects, namespace, p.notes(cmd))
				return moves, err
			})
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVarP(&file, "filename", "f", "", "File with Placements, ClusterPlacements and ClusterTaintPolicies; - is standard input.")
	flags.StringVarP(&namespace, "namespace", "n", "", "Namespace of Placements that do not set one. The default is the kubeconfig context's namespace, or default.")
	p.addFlags(flags)
	return cmd
}

// previewObjects returns the moves if objects were applied: policies, cluster settings,
// namespaces, and workloads. A server-side dry run defaults and validates them. It also returns the
// edits of policies that would not take effect at once. It writes the changed taints of clusters and the next
// times of schedules to notes.
func (f *fleetReader) previewObjects(ctx context.Context, s *scheduler.State, objects []*unstructured.Unstructured, namespace string, notes io.Writer) ([]scheduler.Move, []scheduler.Edit, error) {
	made := map[string]bool{}
	for _, o := range objects {
		if o.GetKind() == "Namespace" {
			made[o.GetName()] = true
			s.Namespaces[o.GetName()] = o.GetLabels()
		}
	}
	var tainting []*unstructured.Unstructured
	edited := map[string]bool{}
	for _, o := range objects {
		whole, err := f.asApplied(ctx, o, namespace, made)
		if err != nil {
			return nil, nil, err
		}
		if gvk := whole.GroupVersionKind(); gvk.Group == v1alpha1.Group && gvk.Kind == "ClusterTaintPolicy" {
			tainting = append(tainting, whole)
			continue
		} else if gvk.Group == v1alpha1.Group && gvk.Kind == "ScaleSchedule" {
			if err := previewSchedule(s, whole, notes); err != nil {
				return nil, nil, err
			}
			continue
		}
		if err := put(s, whole); err != nil {
			return nil, nil, err
		}
		edited[whole.GetKind()+" "+policyName(whole.GetNamespace(), whole.GetName())] = true
	}
	for _, o := range tainting { // the Clusters of the file count
		if err := previewTaints(s, o, notes); err != nil {
			return nil, nil, err
		}
	}
	edits := s.Settle(func(p *placement.Subject) bool { return edited[p.Kind+" "+policyName(p.Meta.Namespace, p.Meta.Name)] })
	return s.Moves(s.Snapshot()), edits, nil
}

// asApplied returns an object as it would be after an apply. In a namespace that the
// same file creates, a dry run is not possible yet, so the object is returned as
// written.
func (f *fleetReader) asApplied(ctx context.Context, o *unstructured.Unstructured, namespace string, made map[string]bool) (*unstructured.Unstructured, error) {
	gvk := o.GroupVersionKind()
	mapping, err := f.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w: apply the kind's CustomResourceDefinition first, or correct apiVersion and kind", gvk.Kind, o.GetName(), err)
	}
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace && o.GetNamespace() == "" {
		o.SetNamespace(namespace)
	}
	if policy := gvk.Kind == "Placement" || gvk.Kind == "ClusterPlacement"; policy && gvk.Group == v1alpha1.Group {
		if out, err := f.asReplaced(ctx, mapping.Resource, o); err == nil {
			return out, nil
		} else if !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("%s %s would be rejected: %w", gvk.Kind, o.GetName(), err)
		}
	}
	out, err := f.dynamic.Resource(mapping.Resource).Namespace(o.GetNamespace()).Apply(ctx, o.GetName(), o,
		metav1.ApplyOptions{FieldManager: "atoll-preview", Force: true, DryRun: []string{metav1.DryRunAll}})
	if apierrors.IsNotFound(err) && made[o.GetNamespace()] {
		return o, nil
	}
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("%s %s would be rejected: %w: use another namespace with -n, or add the Namespace to the file", gvk.Kind, o.GetName(), err)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s would be rejected: %w", gvk.Kind, o.GetName(), err)
	}
	return out, nil
}

// asReplaced returns an existing policy with the spec of o. An apply by another field manager would add the elements
// of o to lists, such as names of clusters, and keep the other elements.
func (f *fleetReader) asReplaced(ctx context.Context, gvr schema.GroupVersionResource, o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	spec, _, _ := unstructured.NestedFieldNoCopy(o.Object, "spec")
	if spec == nil {
		spec = map[string]any{}
	}
	patch, err := json.Marshal([]map[string]any{{"op": "add", "path": "/spec", "value": spec}})
	if err != nil {
		return nil, err
	}
	return f.dynamic.Resource(gvr).Namespace(o.GetNamespace()).Patch(ctx, o.GetName(), types.JSONPatchType, patch,
		metav1.PatchOptions{FieldManager: "atoll-preview", DryRun: []string{metav1.DryRunAll}})
}

// put adds an object to a snapshot.
func put(s *scheduler.State, o *unstructured.Unstructured) error {
	switch gvk := o.GroupVersionKind(); {
	case gvk.Group == v1alpha1.Group && gvk.Kind == "Placement":
		return replace(o, &s.Placements)
	case gvk.Group == v1alpha1.Group && gvk.Kind == "ClusterPlacement":
		return replace(o, &s.ClusterPlacements)
	case gvk.Group == v1alpha1.Group && gvk.Kind == "Cluster":
		return replace(o, &s.Clusters)
	case gvk.Group == v1alpha1.Group && gvk.Kind == "FleetQuota":
		q := &v1alpha1.FleetQuota{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, q); err != nil {
			return fmt.Errorf("read FleetQuota %s: %w", o.GetName(), err)
		}
		return s.AddQuota(q)
	case gvk.GroupKind() == interpret.AutoscalerKind():
		return s.AddAutoscaler(o)
	case gvk.Group == "" && gvk.Kind == "PersistentVolumeClaim":
		s.AddClaim(o)
		return nil
	default:
		k, known := s.Kind(gvk.GroupKind())
		if !known || !k.Placed || s.StaysHome(o) != "" {
			return nil
		}
		p := scheduler.Placed{Kind: k, Object: o}
		i := slices.IndexFunc(s.Placed, func(q scheduler.Placed) bool { return q.Key() == p.Key() })
		if i >= 0 {
			s.Placed[i] = p
			return nil
		}
		s.Placed = append(s.Placed, p)
		return nil
	}
}

// replace puts an object into a list, replacing the one with its name. An object that
// does not exist yet counts as the newest, and a changed one gets a new generation.
func replace[T any, P interface {
	*T
	metav1.Object
}](o *unstructured.Unstructured, list *[]P) error {
	item := P(new(T))
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, item); err != nil {
		return fmt.Errorf("read %s %s: %w", o.GetKind(), o.GetName(), err)
	}
	i := slices.IndexFunc(*list, func(q P) bool { return q.GetName() == item.GetName() && q.GetNamespace() == item.GetNamespace() })
	if i >= 0 {
		(*list)[i] = item
		return nil
	}
	*list = append(*list, item)
	return nil
}
