package expose

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// If a group is withdrawn from a member that has CustomResourceDefinitions of the group itself,
// the member serves them from then on. Objects of the member whose owners are shared objects then
// have owners that are not found, and the member's garbage collector deletes them. So such a group
// stays until the CRDs or the references are gone, or an administrator allows it.

const (
	// holdInterval is the delay before held groups are checked again.
	holdInterval = 10 * time.Second
	// shownDependents is the number of objects that a message names.
	shownDependents = 5
)

// crdsOf returns the names of the member's own CRDs of a group. known is false if they could not
// be read.
func (m *member) crdsOf(group string) (names []string, known bool) {
	if !m.crds.HasSynced() {
		return nil, false
	}
	for _, obj := range m.crds.GetStore().List() {
		u, ok := obj.(*unstructured.Unstructured)
		if !ok {
			continue
		}
		if of, _, _ := unstructured.NestedString(u.Object, "spec", "group"); of == group {
			names = append(names, u.GetName())
		}
	}
	slices.Sort(names)
	return names, true
}

// hold returns those of the groups that must not be withdrawn from a member now, and why.
func (c *controller) hold(ctx context.Context, cluster *v1alpha1.Cluster, m *member, groups []string) map[string]exposure {
	held := map[string]exposure{}
	for _, group := range groups {
		if mayWithdraw(cluster, group) {
			continue
		}
		names, known := m.crdsOf(group)
		var dependents []string
		var err error
		if known && len(names) > 0 {
			dependents, err = m.dependents(ctx, group)
		}
		if why := holdReason(cluster.Name, group, names, known, dependents, err); why != "" {
			held[group] = exposure{reason: v1alpha1.ExposureOwnersInUse, message: why}
		}
	}
	m.mu.Lock()
	m.held = held
	m.mu.Unlock()
	if len(held) > 0 {
		again := holdInterval
		if !m.crds.HasSynced() {
			again = retryDelay
		}
		c.queue.AddAfter(key{cluster: cluster.Name}, again)
	}
	return held
}

// mayWithdraw reports whether an administrator allows it in spite of dependents.
func mayWithdraw(cluster *v1alpha1.Cluster, group string) bool {
	for allowed := range strings.SplitSeq(cluster.Annotations[v1alpha1.WithdrawAnnotation], ",") {
		if strings.TrimSpace(allowed) == group {
			return true
		}
	}
	return false
}

// holdReason decides whether a group must stay, and returns the reason.
func holdReason(cluster, group string, crds []string, known bool, dependents []string, failed error) string {
	allow := fmt.Sprintf("to withdraw the group nevertheless, run `kubectl annotate cluster %s %s=%s --overwrite`", cluster, v1alpha1.WithdrawAnnotation, group)
	switch {
	case !known:
		return fmt.Sprintf("the member's CustomResourceDefinitions cannot be read, so it is unknown whether its garbage collector would delete objects with owners in group %s: "+
			"grant the cluster's kubeconfig list and watch of customresourcedefinitions; %s", group, allow)
	case len(crds) == 0:
		return ""
	case failed != nil:
		return fmt.Sprintf("the member has CustomResourceDefinitions of its own in group %s (%s), and its objects with owners in the group cannot be listed: %s; %s",
			group, strings.Join(crds, ", "), refusal(failed).message, allow)
	case len(dependents) == 0:
		return ""
	}
	shown := dependents[:min(len(dependents), shownDependents)]
	more := ""
	if len(dependents) > shownDependents {
		more = " and others"
	}
	return fmt.Sprintf("the member has CustomResourceDefinitions of its own in group %s (%s), so its garbage collector would no longer find the shared owners of %s%s, and delete these objects: "+
		"delete the CustomResourceDefinitions in the member, or remove the owner references; %s", group, strings.Join(crds, ", "), strings.Join(shown, ", "), more, allow)
}

// groupOf returns the group that one of our objects is for, "" for those that all groups share.
func groupOf(u *unstructured.Unstructured) string {
	if u.GetKind() == apiServiceKind {
		group, _, _ := unstructured.NestedString(u.Object, "spec", "group")
		return group
	}
	if u.GetAnnotations()[v1alpha1.SharedAPIAnnotation] == "" {
		return ""
	}
	return u.GetName()[strings.LastIndexByte(u.GetName(), ':')+1:]
}

// withdrawn returns the groups whose APIServices are among objects.
func withdrawn(objects []*unstructured.Unstructured) []string {
	groups := map[string]bool{}
	for _, u := range objects {
		if u.GetKind() == apiServiceKind {
			groups[groupOf(u)] = true
		}
	}
	return slices.Sorted(maps.Keys(groups))
}

// withoutHeld leaves out the objects of held groups, and what all groups share.
func withoutHeld(objects []*unstructured.Unstructured, held map[string]exposure) []*unstructured.Unstructured {
	if len(held) == 0 {
		return objects
	}
	return slices.DeleteFunc(slices.Clone(objects), func(u *unstructured.Unstructured) bool {
		group := groupOf(u)
		_, stays := held[group]
		return group == "" || stays
	})
}

// heldOf returns why groups of a SharedAPI stay in a member although they should not.
func (m *member) heldOf(s *v1alpha1.SharedAPI) (exposure, bool) {
	m.mu.Lock()
	held := maps.Clone(m.held)
	m.mu.Unlock()
	for _, u := range m.ours() {
		if u.GetAnnotations()[v1alpha1.SharedAPIAnnotation] != s.Name {
			continue
		}
		if why, ok := held[groupOf(u)]; ok {
			return why, true
		}
	}
	return exposure{}, false
}

// tellLeaving writes why a cluster cannot leave yet.
func (c *controller) tellLeaving(ctx context.Context, cluster *v1alpha1.Cluster, held map[string]exposure) error {
	if cluster.DeletionTimestamp == nil || len(held) == 0 {
		return nil
	}
	first := held[slices.Sorted(maps.Keys(held))[0]]
	conditions := slices.Clone(cluster.Status.Conditions)
	if !meta.SetStatusCondition(&conditions, metav1.Condition{Type: v1alpha1.ClusterLeaving, Status: metav1.ConditionTrue, ObservedGeneration: cluster.Generation,
		Reason: first.reason, Message: first.message, LastTransitionTime: metav1.NewTime(c.Clock.Now())}) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": cluster.ResourceVersion}, "status": map[string]any{"conditions": conditions}})
	if err != nil {
		return err
	}
	_, err = c.Dynamic.Resource(v1alpha1.ClusterResource).Patch(ctx, cluster.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: FieldManager}, "status")
	return err
}

// dependentsBy returns a function that lists the objects of a member with owners in a group, up to
// one more than a message names. It reads the metadata of all kinds, which takes a while; it is
// only called if the member has CRDs of a shared group.
func dependentsBy(cfg *rest.Config) func(context.Context, string) ([]string, error) {
	return func(ctx context.Context, group string) (found []string, err error) {
		cfg := rest.CopyConfig(cfg)
		cfg.Timeout = requestTimeout
		client, err := discovery.NewDiscoveryClientForConfig(cfg)
		if err != nil {
			return nil, err
		}
		objects, err := metadata.NewForConfig(cfg)
		if err != nil {
			return nil, err
		}
		lists, err := client.ServerPreferredResources()
		if err != nil && !discovery.IsGroupDiscoveryFailedError(err) {
			return nil, err
		}
		for _, list := range lists {
			gv, err := schema.ParseGroupVersion(list.GroupVersion)
			if err != nil || gv.Group == group {
				continue
			}
			for _, r := range list.APIResources {
				if !slices.Contains(r.Verbs, "list") || !slices.Contains(r.Verbs, "delete") {
					continue
				}
				if found, err = appendDependents(ctx, objects, gv.WithResource(r.Name), r.Kind, group, found); err != nil {
					return nil, err
				}
				if len(found) > shownDependents {
					return found, nil
				}
			}
		}
		return found, nil
	}
}

func appendDependents(ctx context.Context, objects metadata.Interface, gvr schema.GroupVersionResource, kind, group string, found []string) ([]string, error) {
	opts := metav1.ListOptions{Limit: 500}
	for {
		page, err := objects.Resource(gvr).List(ctx, opts)
		if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
			return found, nil
		}
		if err != nil {
			return found, fmt.Errorf("list %s: %w", gvr.GroupResource(), err)
		}
		for _, item := range page.Items {
			owned := slices.ContainsFunc(item.OwnerReferences, func(o metav1.OwnerReference) bool {
				gv, err := schema.ParseGroupVersion(o.APIVersion)
				return err == nil && gv.Group == group
			})
			if !owned {
				continue
			}
			name := item.Name
			if item.Namespace != "" {
				name = item.Namespace + "/" + name
			}
			if found = append(found, kind+" "+name); len(found) > shownDependents {
				return found, nil
			}
		}
		if opts.Continue = page.Continue; opts.Continue == "" {
			return found, nil
		}
	}
}
