package cli

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/names"
	"github.com/atoll-dev/atoll/fleet/placement"
	"github.com/atoll-dev/atoll/fleet/scheduler"
)

func newExplainCommand() *cobra.Command {
	var (
		atoll     target
		namespace string
		output    string
	)
	cmd := &cobra.Command{
		Use:   "explain KIND/NAME",
		Short: "Explain why an object runs where it does",
		Long: `Explain why an object runs in its clusters, and why not in others.

Each cluster gets a verdict with a reason, from the scheduler's own code. The output also
has the policy that decides, and the policies that select the object but do not decide.`,
		Example: `  atoll explain deployment/web -n shop
  atoll explain rollout.argoproj.io/web -n shop -o yaml
  atoll explain namespace/shop`,
		Args: oneName("object"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkFormat(output, "table", "json", "yaml"); err != nil {
				return err
			}
			f, err := newFleetReader(&atoll)
			if err != nil {
				return err
			}
			if namespace, err = atoll.namespace(namespace); err != nil {
				return err
			}
			e, err := f.explain(cmd.Context(), args[0], namespace, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if output != "table" {
				return printStructured(cmd.OutOrStdout(), output, e)
			}
			var text strings.Builder
			if err := e.print(&text); err != nil {
				return err
			}
			_, err = io.WriteString(cmd.OutOrStdout(), inSameWorkspace(cmd, text.String()))
			return err
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVarP(&namespace, "namespace", "n", "", "Namespace of the object. The default is the kubeconfig context's namespace, or default.")
	flags.StringVarP(&output, "output", "o", "table", outputFlag("table", "json", "yaml"))
	atoll.addPlainFlags(flags)
	return cmd
}

// explanation is the output of `atoll explain`.
type explanation struct {
	Kind      string                   `json:"kind"`
	Namespace string                   `json:"namespace,omitempty"`
	Name      string                   `json:"name"`
	Policy    v1alpha1.PolicyReference `json:"policy"`
	// Passed are the policies that select the object but do not decide.
	Passed    []passedPolicy `json:"passed,omitempty"`
	Scheduled bool           `json:"scheduled"`
	Reason    string         `json:"reason"`
	Message   string         `json:"message"`
	Clusters  []verdict      `json:"clusters"`
	// Leaving are the copies in clusters that the decision does not choose.
	Leaving []leavingCopy `json:"leaving,omitempty"`
	// Transition is the state of the object's transition to the decision; nil without one.
	Transition *v1alpha1.TransitionStatus `json:"transition,omitempty"`
	// Group are the other objects that run in the same cluster, and GroupedBy is what joins the object to
	// them.
	Group     []scheduler.Companion `json:"group,omitempty"`
	GroupedBy string                `json:"groupedBy,omitempty"`
	// Pending is set if the scheduler has not written this decision yet.
	Pending    bool                `json:"pending,omitempty"`
	RequiredBy []v1alpha1.Requirer `json:"requiredBy,omitempty"`
	// Unreached are the Services that the object names and that have no endpoints where it runs.
	Unreached []scheduler.Unreached `json:"unreached,omitempty"`
}

type passedPolicy struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
	Why  string `json:"why"`
}

type verdict struct {
	Cluster  string `json:"cluster"`
	Chosen   bool   `json:"chosen"`
	Replicas *int32 `json:"replicas,omitempty"`
	Reason   string `json:"reason"`
	Message  string `json:"message"`
	// OverriddenBy are the policies whose overrides apply there, in their order: the last one counts.
	OverriddenBy []string `json:"overriddenBy,omitempty"`
}

func (f *fleetReader) explain(ctx context.Context, what, namespace string, warn io.Writer) (*explanation, error) {
	gvr, gvk, namespaced, name, err := f.resolve(what)
	if err != nil {
		return nil, err
	}
	if !namespaced {
		namespace = ""
	}
	obj, err := f.dynamic.Resource(gvr).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("%w. To preview an object that is not applied yet, run `atoll preview -f FILE`", f.noSuchObject(ctx, gvr, gvk.Kind, namespace, name))
	}
	if err != nil {
		return nil, fmt.Errorf("read %s %s: %w", gvk.Kind, name, err)
	}
	s, err := f.snapshot(ctx, warn)
	if apierrors.IsForbidden(err) {
		return f.explainRecorded(ctx, gvk, obj, err, warn)
	}
	if err != nil {
		return nil, err
	}
	return explainObject(s, gvk, obj)
}

// explainRecorded explains an object by its binding only, for users without the right to read all that the
// decision depends on, such as other namespaces' policies. cause is the API server's answer to them.
func (f *fleetReader) explainRecorded(ctx context.Context, gvk schema.GroupVersionKind, obj *unstructured.Unstructured, cause error, warn io.Writer) (*explanation, error) {
	e := &explanation{Kind: gvk.Kind, Namespace: obj.GetNamespace(), Name: obj.GetName()}
	resource := v1alpha1.ResourceBindingResource
	if e.Namespace == "" {
		resource = v1alpha1.ClusterResourceBindingResource
	}
	found, err := f.dynamic.Resource(resource).Namespace(e.Namespace).Get(ctx, v1alpha1.BindingName(gvk.GroupKind(), e.Name), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		e.Reason, e.Message = "NotDecided", "there is no decision yet, or the object stays in Atoll"
		return e, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%w; and the recorded decision cannot be read either: %w", cause, err)
	}
	b := &v1alpha1.ResourceBinding{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(found.Object, b); err != nil {
		return nil, fmt.Errorf("read the decision about %s %s: %w", e.Kind, e.Name, err)
	}
	e.Leaving = leavingCopies(b)
	e.Transition = transitionOf(b)
	fmt.Fprintf(warn, "warning: this is the decision as it is recorded, without the clusters that were not chosen: %v\n", cause)
	if waits := scheduler.Replaced(obj, b); waits != nil {
		e.Reason, e.Message = waits.Reason, waits.Message
		return e, nil
	}
	if b.Spec.Policy == nil {
		return explainFollower(e, b), nil
	}
	e.Policy, e.RequiredBy = *b.Spec.Policy, b.Spec.RequiredBy
	if c := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.BindingScheduled); c != nil {
		e.Scheduled, e.Reason, e.Message = c.Status == metav1.ConditionTrue, c.Reason, c.Message
	}
	e.Clusters = chosenOf(b)
	return e, nil
}

func chosenOf(b *v1alpha1.ResourceBinding) (chosen []verdict) {
	for _, c := range b.Decided() {
		chosen = append(chosen, verdict{Cluster: c.Name, Chosen: true, Replicas: c.Replicas, Reason: c.Reason, Message: c.Message})
	}
	return chosen
}

// noSuchObject returns an error for a missing object that suggests where else to look:
// in another namespace, under another name, or in another Atoll.
func (f *fleetReader) noSuchObject(ctx context.Context, gvr schema.GroupVersionResource, kind, namespace, name string) error {
	var namespaces, others []string
	// If listing fails, the message is only shorter.
	if list, err := f.dynamic.Resource(gvr).List(ctx, metav1.ListOptions{Limit: 500}); err == nil {
		for _, item := range list.Items {
			switch {
			case item.GetName() == name:
				namespaces = append(namespaces, item.GetNamespace())
			case item.GetNamespace() == namespace:
				others = append(others, item.GetName())
			}
		}
	}
	where, suggestion := "", "use"
	if namespace != "" {
		where, suggestion = " in namespace "+namespace, "use another namespace with -n, or"
	}
	if len(namespaces) > 0 {
		return fmt.Errorf("%s %q not found%s, but it exists in %s: set the namespace with -n", kind, name, where, names.List(namespaces))
	}
	return fmt.Errorf("%s %q not found%s%s: %s another Atoll with --kubeconfig",
		kind, name, where, names.DidYouMean(name, others), suggestion)
}

func explainObject(s *scheduler.State, gvk schema.GroupVersionKind, obj *unstructured.Unstructured) (*explanation, error) {
	e := &explanation{Kind: gvk.Kind, Namespace: obj.GetNamespace(), Name: obj.GetName()}
	if why := s.StaysHome(obj); why != "" {
		e.Scheduled, e.Reason, e.Message = true, "StaysHome", why
		return e, nil
	}
	if why := s.Home(obj); why != "" {
		e.Scheduled, e.Reason, e.Message = true, "StaysHome", why
		return e, nil
	}
	if interpret.IsNamespace(gvk.GroupKind()) {
		return explainNamespace(s, e, obj), nil
	}
	k, known := s.Kind(gvk.GroupKind())
	if !known {
		e.Scheduled, e.Reason = true, "StaysHome"
		e.Message = fmt.Sprintf("no object of kind %s is in a cluster. A custom resource goes to the clusters that serve its type, and a type goes where a program is placed whose ServiceAccount may write it; `kubectl get negotiatedapiresources` lists them", gvk.GroupKind())
		if s.InWorkspace {
			e.Message = fmt.Sprintf("no object of kind %s is in a cluster: custom resources of a workspace are not placed. Place them from the root (-w root)", gvk.GroupKind())
		}
		return e, nil
	}
	b := s.Binding(k, obj.GetNamespace(), obj.GetName())
	e.Leaving = leavingCopies(b)
	e.Transition = transitionOf(b)
	if waits := scheduler.Replaced(obj, b); waits != nil {
		e.Reason, e.Message = waits.Reason, waits.Message
		return e, nil
	}
	w := s.Snapshot()
	if choice := w.Choose(k, obj); !k.Placed && !choice.Explicit {
		return explainFollower(e, b), nil
	}
	if b != nil {
		w.Turn = scheduler.RecordedTurn(b)
	}
	a := w.Schedule(k, obj, b)
	e.Policy = a.Choice.Reference
	e.Scheduled, e.Reason, e.Message = a.Condition.Status == metav1.ConditionTrue, a.Condition.Reason, a.Condition.Message
	for _, p := range w.Passed(k, obj) {
		e.Passed = append(e.Passed, passedPolicy{p.Reference.Kind, p.Reference.Name, p.Why})
	}
	if b != nil {
		e.RequiredBy = b.Spec.RequiredBy
	}
	if a.Choice.Err != nil {
		for _, c := range a.Shares {
			e.Clusters = append(e.Clusters, verdict{Cluster: c.Name, Chosen: true, Replicas: c.Replicas, Reason: c.Reason, Message: c.Message})
		}
		return e, nil
	}
	if a.Together != nil && len(a.Together.Members) > 0 {
		e.Group, e.GroupedBy = a.Together.Members, a.Together.Why
	}
	e.Pending = len(scheduler.MovesOf(scheduler.Placed{Kind: k, Object: obj}, b, a)) > 0
	_, verdicts := placement.Explain(a.Request)
	for _, v := range verdicts {
		out := verdict{Cluster: v.Cluster, Chosen: v.Chosen, Reason: v.Reason, Message: v.Message}
		if v.Chosen && v.Counted {
			out.Replicas = &v.Replicas
		}
		if v.Chosen {
			for _, by := range a.Choice.Policy.OverriddenBy(w.Fleet, gvk.Group, gvk.Kind, v.Cluster, a.Choice.Reference) {
				out.OverriddenBy = append(out.OverriddenBy, by.Kind+" "+by.Name)
			}
		}
		e.Clusters = append(e.Clusters, out)
	}
	var chosen []string
	for _, v := range e.Clusters {
		if v.Chosen {
			chosen = append(chosen, v.Cluster)
		}
	}
	e.Unreached = s.Unreached(obj, chosen)
	return e, nil
}

// explainFollower explains an object that follows other objects, from its binding.
func explainFollower(e *explanation, b *v1alpha1.ResourceBinding) *explanation {
	e.Policy = v1alpha1.PolicyReference{Kind: v1alpha1.PolicyDefault, Why: "it follows the objects that need it"}
	if b == nil {
		e.Scheduled, e.Reason, e.Message = true, "NotRequired", "no object that runs in a cluster needs it"
		return e
	}
	e.Scheduled, e.Reason, e.Message, e.RequiredBy = true, scheduler.ReasonRequired, "follows the objects that need it", b.Spec.RequiredBy
	if c := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.BindingScheduled); c != nil && c.Status == metav1.ConditionFalse {
		e.Scheduled, e.Reason, e.Message = false, c.Reason, c.Message
	}
	e.Clusters = chosenOf(b)
	return e
}

// printGroup prints the other members of the object's group, at most ten.
func (e *explanation) printGroup(out io.Writer) {
	const most = 10
	if len(e.Group) == 0 {
		return
	}
	fmt.Fprintf(out, "Group: runs in the same cluster as %d other objects", len(e.Group))
	if e.GroupedBy != "" {
		fmt.Fprintf(out, ", because %s", e.GroupedBy)
	}
	fmt.Fprintln(out)
	for _, c := range e.Group[:min(most, len(e.Group))] {
		where := "no cluster yet"
		if len(c.Clusters) > 0 {
			where = strings.Join(c.Clusters, ", ")
		}
		fmt.Fprintf(out, "  %s %s (%s)\n", c.Kind, c.Name, where)
	}
	if more := len(e.Group) - most; more > 0 {
		fmt.Fprintf(out, "  and %d more\n", more)
	}
}

func (e *explanation) print(out io.Writer) error {
	name := e.Name
	if e.Namespace != "" {
		name = e.Namespace + "/" + name
	}
	state := "scheduled"
	if !e.Scheduled {
		state = "not as desired"
	}
	fmt.Fprintf(out, "%s %s: %s (%s): %s\n", e.Kind, name, state, e.Reason, e.Message)
	if e.Pending {
		fmt.Fprintln(out, "Pending: clusters still run the previous decision.")
	}
	if e.Policy.Kind != "" {
		fmt.Fprintf(out, "Policy: %s: %s\n", strings.TrimSpace(e.Policy.Kind+" "+e.Policy.Name), e.Policy.Why)
	}
	for _, p := range e.Passed {
		fmt.Fprintf(out, "  not by %s %s: %s\n", p.Kind, p.Name, p.Why)
	}
	for _, c := range e.Clusters {
		if len(c.OverriddenBy) > 0 { // the last one counts
			fmt.Fprintf(out, "Overrides in %s: %s\n", c.Cluster, strings.Join(c.OverriddenBy, ", then "))
		}
	}
	for _, r := range e.RequiredBy {
		if r.Kind == "Namespace" {
			fmt.Fprintf(out, "Goes with: the workloads of namespace %s\n", r.Name)
			continue
		}
		fmt.Fprintf(out, "Needed by: %s %s\n", r.Kind, r.Name)
	}
	e.printGroup(out)
	e.printTransition(out)
	e.printLeaving(out)
	for _, u := range e.Unreached {
		fmt.Fprintf(out, "No endpoints: Service %s has no pods in %s, only in %s, and %s names it: place both in the same clusters\n",
			u.Service, strings.Join(u.Clusters, ", "), strings.Join(u.Elsewhere, ", "), e.Name)
	}
	if len(e.Clusters) == 0 {
		return nil
	}
	fmt.Fprintln(out)
	table := newTable(out)
	fmt.Fprintln(table, "CLUSTER\tCHOSEN\tREPLICAS\tREASON\tWHY")
	for _, c := range e.Clusters {
		chosen, replicas := "no", "-"
		if c.Chosen {
			chosen = "yes"
		}
		if c.Replicas != nil {
			replicas = fmt.Sprint(*c.Replicas)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", c.Cluster, chosen, replicas, c.Reason, c.Message)
	}
	return table.Flush()
}
