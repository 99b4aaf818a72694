package join

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/names"
)

// attached is an object of the member, with its attachments.
type attached struct {
	object *unstructured.Unstructured
	kind   interpret.KindInfo
	to     []interpret.Attachment
}

// addNeeded adds the dependencies of the objects of the plan, and then those of the dependencies: references, the
// permissions of their accounts, and the autoscalers that set their replicas. Without its autoscaler, a
// workload in Atoll would have a fixed count, and the two would work against each other.
func (c *copier) addNeeded(ctx context.Context) error {
	own := map[Name]bool{}
	for i := 0; i < len(c.read); i++ {
		one := c.read[i]
		refs, err := one.kind.Needs(one.live)
		if err != nil {
			return err
		}
		accounts := map[interpret.Reference]bool{}
		if one.GroupKind == accountKind {
			accounts[referenceTo(one.Name)] = true
		}
		for _, ref := range refs {
			if ref.GroupKind == accountKind {
				accounts[ref] = true
			}
			if clustersOwn(ref.GroupKind) {
				own[Name{ref.GroupKind, types.NamespacedName{Name: ref.Name}}] = true
			} else if err := c.addReference(ctx, ref, one.Name); err != nil {
				return err
			}
		}
		if one.Namespace == "" {
			continue // the followers below belong to workloads and accounts
		}
		for _, follower := range []Name{{GroupKind: roleBindingKind}, {GroupKind: clusterRoleBindingKind},
			{interpret.AutoscalerKind(), types.NamespacedName{Namespace: one.Namespace}}} {
			all, err := c.list(ctx, follower.GroupKind, follower.Namespace)
			if err != nil {
				return err
			}
			for _, a := range all {
				if a.goesWith(&one, accounts) {
					if err := c.addFound(ctx, a.kind, a.object, one.Name); err != nil {
						return err
					}
				}
			}
		}
	}
	return c.noteOwn(ctx, own)
}

// noteOwn notes the objects of clusters' own that Atoll lacks.
func (c *copier) noteOwn(ctx context.Context, own map[Name]bool) error {
	var missing []string
	for name := range own {
		k, err := c.kinds.find(ctx, name.GroupKind)
		if err != nil || c.seen[name] {
			continue
		}
		live, err := c.member.get(ctx, k.GVR(), "", name.Name)
		if errors.Is(err, errNotInMember) || apierrors.IsForbidden(err) || err == nil && c.kinds.catalog.StaysHome(live) != "" {
			continue
		}
		if err != nil {
			return err
		}
		if exists, err := c.inAtoll(ctx, k, name); err == nil && exists == nil {
			missing = append(missing, name.String())
		}
	}
	if len(missing) > 0 {
		c.note("not copied, because clusters usually have their own: %s: name those that Atoll should have, too", names.List(missing))
	}
	return nil
}

var (
	accountKind            = schema.GroupKind{Kind: "ServiceAccount"}
	roleBindingKind        = schema.GroupKind{Group: "rbac.authorization.k8s.io", Kind: "RoleBinding"}
	clusterRoleBindingKind = schema.GroupKind{Group: "rbac.authorization.k8s.io", Kind: "ClusterRoleBinding"}
)

// clustersOwn reports whether objects of a kind describe what a cluster offers: they are copied only if the
// user names them.
func clustersOwn(gk schema.GroupKind) bool {
	return slices.Contains([]string{"StorageClass", "PersistentVolume", "RuntimeClass", "CustomResourceDefinition", "IngressClass", "GatewayClass"}, gk.Kind)
}

// goesWith reports whether an object grants permissions to the pods of a copy or to its accounts, or scales it.
func (a *attached) goesWith(one *Copy, accounts map[interpret.Reference]bool) bool {
	return slices.ContainsFunc(a.to, func(to interpret.Attachment) bool {
		return accounts[to.To] || to.To == referenceTo(one.Name) || one.kind.MakesPods() && to.Selects(one.Namespace, one.kind.PodLabels(one.live))
	})
}

func referenceTo(n Name) interpret.Reference {
	return interpret.Reference{GroupKind: n.GroupKind, Namespace: n.Namespace, Name: n.Name}
}

// addReference adds an object that another one names. It need not exist.
func (c *copier) addReference(ctx context.Context, ref interpret.Reference, by Name) error {
	name := Name{ref.GroupKind, types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}}
	if c.seen[name] {
		return nil
	}
	c.seen[name] = true
	k, err := c.kinds.find(ctx, ref.GroupKind)
	if err != nil {
		c.note("%s, which %s needs, is not copied: %v", name, by, err)
		return nil
	}
	live, err := c.member.get(ctx, k.GVR(), name.Namespace, name.Name)
	if errors.Is(err, errNotInMember) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s, which %s needs: %w: to copy only what you name, set --dependencies=false", name, by, err)
	}
	return c.addFound(ctx, k, live, by)
}

// addFound adds an object for another one, unless every cluster has one of its own.
func (c *copier) addFound(ctx context.Context, k interpret.KindInfo, live *unstructured.Unstructured, by Name) error {
	name := nameOf(k, live)
	if c.copied[name] || c.kinds.catalog.StaysHome(live) != "" {
		return nil
	}
	why, err := c.add(ctx, k, live, &by)
	if why != "" {
		c.note("%s, which %s needs, is not copied: %s", name, by, why)
	}
	return err
}

// list returns the objects of a kind in the member that follow others. It lists each kind and namespace once. If
// the kubeconfig has no permission to list them, it adds a note.
func (c *copier) list(ctx context.Context, gk schema.GroupKind, namespace string) ([]attached, error) {
	k, err := c.kinds.find(ctx, gk)
	if err != nil {
		return nil, err
	}
	key := gk.String() + " " + namespace
	if found, is := c.listed[key]; is {
		return found, nil
	}
	c.listed[key] = nil
	items, err := c.member.list(ctx, k.GVR(), namespace, labels.Everything())
	switch {
	case apierrors.IsForbidden(err), errors.Is(err, errTooMany):
		c.note("none of the %s are copied: %v", k.Resource, err)
		return nil, nil
	case errors.Is(err, errNotInMember): // the cluster does not serve the type
		return nil, nil
	case err != nil:
		return nil, err
	}
	for i := range items {
		items[i].SetGroupVersionKind(k.GroupVersionKind)
		if to, err := k.Follows(&items[i]); err == nil && len(to) > 0 {
			c.listed[key] = append(c.listed[key], attached{&items[i], k, to})
		}
	}
	return c.listed[key], nil
}

// noteRelated notes the Services and similar objects that act on copied objects. Until Atoll has them, they
// exist in their cluster only.
func (c *copier) noteRelated(ctx context.Context) error {
	related := map[string][]string{}
	for i := range c.read {
		one := &c.read[i]
		if one.Namespace == "" {
			continue
		}
		for _, gk := range []schema.GroupKind{{Kind: "Service"}, {Group: "networking.k8s.io", Kind: "Ingress"}, {Group: "networking.k8s.io", Kind: "NetworkPolicy"}, {Group: "policy", Kind: "PodDisruptionBudget"}, interpret.AutoscalerKind()} {
			found, err := c.list(ctx, gk, one.Namespace)
			if err != nil {
				return err
			}
			for _, a := range found {
				name := nameOf(a.kind, a.object)
				if c.seen[name] || a.object.GetLabels()[v1alpha1.ManagedLabel] == "true" || !a.isAbout(one) {
					continue
				}
				related[one.Namespace] = append(related[one.Namespace], Name{GroupKind: name.GroupKind, NamespacedName: types.NamespacedName{Name: name.Name}}.String())
			}
		}
	}
	for namespace, of := range related {
		c.note("in namespace %s, %s act on copied objects and are not copied: name them, too, to take them over", namespace, names.List(of))
	}
	slices.Sort(c.plan.Notes)
	return nil
}

// isAbout reports whether an object selects the pods of a copy or names it. One that selects everything does
// not count.
func (a *attached) isAbout(one *Copy) bool {
	return slices.ContainsFunc(a.to, func(to interpret.Attachment) bool {
		if to.Pods != nil {
			return !to.Pods.Empty() && one.kind.MakesPods() && to.Selects(one.Namespace, one.kind.PodLabels(one.live))
		}
		return to.To == referenceTo(one.Name)
	})
}
