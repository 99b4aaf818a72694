package join

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// CopyOptions say which objects of a cluster are copied to Atoll and taken over.
type CopyOptions struct {
	// Named are objects.
	Named []Name
	// Kinds with Selector select objects of Namespace, instead of Named.
	Kinds     []schema.GroupKind
	Selector  labels.Selector
	Namespace string
	// Dependencies adds the objects that the selected ones need, unless Atoll has them.
	Dependencies bool
}

// Copy is one object that is copied.
type Copy struct {
	Name
	// Object is the object for Atoll.
	Object *unstructured.Unstructured
	// NeededBy is the object for which it is copied; nil if the user selected it.
	NeededBy *Name

	kind interpret.KindInfo
	live *unstructured.Unstructured
}

// CopyPlan lists the objects to copy. Nothing has been written.
type CopyPlan struct {
	Cluster string
	// Copies are in the order of creation: dependencies come first.
	Copies []Copy
	// Done are objects that an earlier run copied from the cluster.
	Done []Name
	// Notes are about objects that are not copied.
	Notes []string

	namespaces []*unstructured.Unstructured // missing in Atoll
	adopted    []Conflict                   // namespaces of the cluster that Atoll did not create
	atoll      dynamic.Interface
	overrider  *overrider // nil if the policies cannot be read
}

// copier makes a plan.
type copier struct {
	member *Member
	atoll  dynamic.Interface
	kinds  *copyKinds
	plan   *CopyPlan

	read   []Copy                // the copies of the plan, and those of an earlier run
	copied map[Name]bool         // in the plan
	seen   map[Name]bool         // in the plan, or decided against
	listed map[string][]attached // by kind and namespace
}

// PlanCopy reads the selected objects from a member and decides which to copy. It changes nothing. If any
// named object cannot be copied, it returns an error that says why for each.
func PlanCopy(ctx context.Context, atoll dynamic.Interface, mapper meta.RESTMapper, member *Member, o CopyOptions) (*CopyPlan, error) {
	kinds, err := newCopyKinds(ctx, atoll, mapper)
	if err != nil {
		return nil, err
	}
	c := &copier{member: member, atoll: atoll, kinds: kinds, plan: &CopyPlan{Cluster: member.Cluster, atoll: atoll},
		copied: map[Name]bool{}, seen: map[Name]bool{}, listed: map[string][]attached{}}
	if why := whyWaiting(member.object); why != "" {
		c.note("cluster %s takes over nothing now, because %s", member.Cluster, why)
	}
	if o.Selector != nil {
		err = c.addSelected(ctx, o)
	} else {
		err = c.addNamed(ctx, o.Named)
	}
	if err != nil {
		return nil, err
	}
	if o.Dependencies {
		if err := c.addNeeded(ctx); err != nil {
			return nil, err
		}
	}
	if err := c.noteRelated(ctx); err != nil {
		return nil, err
	}
	labels, err := c.findNamespaces(ctx)
	if err != nil {
		return nil, err
	}
	if c.plan.overrider, err = readOverrider(ctx, atoll, member.object, labels); err != nil {
		return nil, err
	}
	if c.plan.overrider == nil {
		c.note("you may not read all policies of Atoll: their overrides may change copied objects in %s", member.Cluster)
	}
	slices.SortStableFunc(c.plan.Copies, func(a, b Copy) int {
		return cmp.Or(cmp.Compare(c.kinds.order(a.kind), c.kinds.order(b.kind)), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name.Name, b.Name.Name))
	})
	return c.plan, nil
}

func (c *copier) addNamed(ctx context.Context, wanted []Name) error {
	var failed error
	for _, name := range wanted {
		if c.seen[name] {
			continue
		}
		k, err := c.kinds.find(ctx, name.GroupKind)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s cannot be copied: %w", name, err))
			continue
		}
		live, err := c.member.get(ctx, k.GVR(), name.Namespace, name.Name)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s cannot be copied from %s: %w", name, c.member.Cluster, err))
			continue
		}
		why, err := c.add(ctx, k, live, nil)
		switch {
		case err != nil:
			return err
		case why != "":
			failed = errors.Join(failed, fmt.Errorf("%s cannot be copied from %s: %s", name, c.member.Cluster, why))
		}
	}
	return failed
}

// addSelected adds the objects that a selector matches. Those that cannot be copied are noted: a selector
// matches pods and other objects that controllers make, too.
func (c *copier) addSelected(ctx context.Context, o CopyOptions) error {
	var commands []string
	for _, gk := range o.Kinds {
		k, err := c.kinds.find(ctx, gk)
		if err != nil {
			return fmt.Errorf("objects of kind %s cannot be copied: %w", gk.Kind, err)
		}
		namespace := o.Namespace
		if k.ClusterScoped {
			namespace = ""
		}
		commands = append(commands, fmt.Sprintf("`%s -l %s`", listCommand(k.GVR().GroupResource(), namespace), o.Selector))
		found, err := c.member.list(ctx, k.GVR(), namespace, o.Selector)
		if err != nil {
			return err
		}
		for i := range found {
			why, err := c.add(ctx, k, &found[i], nil)
			if err != nil {
				return err
			}
			if why != "" {
				c.note("%s is not copied: %s", nameOf(k, &found[i]), why)
			}
		}
	}
	if len(c.plan.Copies) == 0 && len(c.plan.Done) == 0 {
		return errors.Join(fmt.Errorf("the selector matches no object in cluster %s that can be copied: run %s with a kubeconfig of %s to list its matches, and correct -l, -n or --from",
			c.member.Cluster, strings.Join(commands, " and "), c.member.Cluster), errorOf(c.plan.Notes))
	}
	return nil
}

func errorOf(notes []string) error {
	if len(notes) == 0 {
		return nil
	}
	return errors.New(strings.Join(notes, "\n"))
}

// add adds an object to the plan, or returns why it cannot be copied. If an earlier run has copied it, it
// does nothing.
func (c *copier) add(ctx context.Context, k interpret.KindInfo, live *unstructured.Unstructured, by *Name) (why string, err error) {
	name := nameOf(k, live)
	c.seen[name] = true
	exists, err := c.inAtoll(ctx, k, name)
	switch {
	case err != nil:
		return "", err
	case exists != nil && wasCopied(exists, c.member.Cluster):
		c.plan.Done = append(c.plan.Done, name)
		c.read = append(c.read, Copy{Name: name, NeededBy: by, kind: k, live: live})
		return "", nil
	case exists != nil && by != nil:
		return "it exists in Atoll; if `kubectl get resourcebinding` shows a conflict, resolve it by `atoll adopt` without --from", nil
	case exists != nil:
		return "it exists in Atoll already: to have the one in the cluster taken over by it, use `atoll adopt` without --from", nil
	}
	if metav1.GetControllerOf(live) != nil {
		return c.kinds.whyOwned(ctx, c.member, live), nil
	}
	if why = whyNotCopied(k, c.kinds.catalog, live); why != "" {
		return why, nil
	}
	c.copied[name] = true
	one := Copy{Name: name, Object: copyOf(k, live, c.member.Cluster), NeededBy: by, kind: k, live: live}
	c.plan.Copies, c.read = append(c.plan.Copies, one), append(c.read, one)
	return "", nil
}

// inAtoll returns the object of a name in Atoll, nil if it does not exist.
func (c *copier) inAtoll(ctx context.Context, k interpret.KindInfo, name Name) (*unstructured.Unstructured, error) {
	obj, err := c.atoll.Resource(k.GVR()).Namespace(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read %s in Atoll: %w", name, err)
	}
	return obj, nil
}

func (c *copier) note(format string, args ...any) {
	if note := fmt.Sprintf(format, args...); !slices.Contains(c.plan.Notes, note) {
		c.plan.Notes = append(c.plan.Notes, note)
	}
}

// copyOf returns the object for Atoll: as its author may have written it, with a label that keeps it in its
// cluster, and an annotation that lets Atoll take over the object there, and in no other cluster.
func copyOf(k interpret.KindInfo, live *unstructured.Unstructured, cluster string) *unstructured.Unstructured {
	out := k.AsWritten(live)
	set := func(m map[string]string, key string) map[string]string {
		if m == nil {
			m = map[string]string{}
		}
		m[key] = cluster
		return m
	}
	out.SetLabels(set(out.GetLabels(), v1alpha1.ClusterLabel))
	out.SetAnnotations(set(out.GetAnnotations(), v1alpha1.AdoptAnnotation))
	return out
}

// wasCopied reports whether an object of Atoll was copied from a cluster.
func wasCopied(obj *unstructured.Unstructured, cluster string) bool {
	return obj.GetAnnotations()[v1alpha1.AdoptAnnotation] == cluster
}

func nameOf(k interpret.KindInfo, obj *unstructured.Unstructured) Name {
	out := Name{k.GroupKind(), types.NamespacedName{Namespace: obj.GetNamespace(), Name: obj.GetName()}}
	if k.ClusterScoped {
		out.Namespace = ""
	}
	return out
}

// String returns the name as messages have it: deployment.apps/web in namespace shop.
func (n Name) String() string {
	text := strings.ToLower(n.GroupKind.String()) + "/" + n.Name
	if n.Namespace != "" {
		text += " in namespace " + n.Namespace
	}
	return text
}
