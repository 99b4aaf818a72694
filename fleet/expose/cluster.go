package expose

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

const (
	// soon is the delay before a member whose watches are starting is reconciled again, because a
	// watch does not signal an empty result.
	syncDelay = 200 * time.Millisecond
	// retry is the delay after a failed read.
	retryDelay = 2 * time.Second
)

// reconcileCluster configures one member for all SharedAPIs that select it.
func (c *controller) reconcileCluster(ctx context.Context, name string) error {
	cluster, exists := c.Clusters.Get(name)
	if !exists {
		c.dismiss(name)
		return nil
	}
	held := slices.Contains(cluster.Finalizers, v1alpha1.ExposeFinalizer)
	if cluster.InPullMode() && !held {
		c.dismiss(name)
		c.record(name, func(s *v1alpha1.SharedAPI) exposure { return pulls(cluster, s) })
		return nil
	}
	want := v1alpha1.SharedWith(cluster, c.admitted(cluster))
	if len(want) == 0 && !held {
		c.dismiss(name)
		c.record(name, func(*v1alpha1.SharedAPI) exposure { return exposure{clean: true} })
		return nil
	}
	if !held {
		return c.setFinalizer(ctx, cluster, true)
	}
	m, problem := c.member(cluster)
	if problem != nil && problem.undecided {
		return nil // the Cluster changes when the claim is decided; until then, the recorded state holds
	}
	if problem != nil {
		if leaving, orphan := cluster.Leaving(); leaving && orphan {
			// The objects that stay are useless: the servers reject requests through them.
			return c.setFinalizer(ctx, cluster, false)
		}
		c.record(name, func(*v1alpha1.SharedAPI) exposure { return *problem })
		return nil
	}
	if known, trouble := m.synced(); !known {
		// The state that a previous leader recorded holds until this one knows more.
		again := syncDelay
		if trouble != nil {
			v := refusal(trouble)
			c.record(name, func(*v1alpha1.SharedAPI) exposure { return v })
			again = retryDelay
		}
		c.queue.AddAfter(key{cluster: name}, again)
		return nil
	}
	if len(want) == 0 {
		return c.clear(ctx, cluster, m)
	}
	return c.share(ctx, cluster, m, want)
}

// pulls returns the state of a cluster in mode Pull that has none of our objects.
func pulls(cluster *v1alpha1.Cluster, s *v1alpha1.SharedAPI) exposure {
	if cluster.DeletionTimestamp != nil || s.DeletionTimestamp != nil || !s.Selects(cluster) {
		return exposure{clean: true}
	}
	return exposure{reason: v1alpha1.ExposureClusterPulls, message: fmt.Sprintf(
		"a cluster in mode Pull cannot serve shared APIs: join it with `atoll join %s --kubeconfig FILE`, or remove it from the SharedAPI", cluster.Name)}
}

// admitted returns the SharedAPIs that may be applied to a member: those with the finalizer and an
// entry for the member. It enqueues the others, so that they get both.
func (c *controller) admitted(cluster *v1alpha1.Cluster) []*v1alpha1.SharedAPI {
	var out []*v1alpha1.SharedAPI
	for _, s := range c.shared.All() {
		_, entered := s.Exposure(cluster.Name)
		switch {
		case entered && slices.Contains(s.Finalizers, v1alpha1.ExposeFinalizer):
			out = append(out, s)
		case s.Selects(cluster):
			c.queue.Add(key{shared: s.Name})
		}
	}
	return out
}

// member returns the access to a member that answers, and creates it if necessary.
func (c *controller) member(cluster *v1alpha1.Cluster) (*member, *exposure) {
	if cluster.InPullMode() {
		c.dismiss(cluster.Name)
		return nil, &exposure{reason: v1alpha1.ExposureClusterPulls, message: fmt.Sprintf(
			"the cluster was in mode Push and still has objects for shared APIs: join it with `atoll join %[1]s --kubeconfig FILE` to update or remove them, or remove the cluster with `atoll leave %[1]s --cascade=orphan`", cluster.Name)}
	}
	ready := meta.FindStatusCondition(cluster.Status.Conditions, v1alpha1.ClusterReady)
	if ready == nil || ready.Status != metav1.ConditionTrue {
		message := "the cluster has not been probed yet"
		if ready != nil {
			message = ready.Message
		}
		return nil, &exposure{reason: v1alpha1.ExposureClusterUnreachable, message: message}
	}
	if !c.ControlPlane.Owns(cluster) {
		return nil, &exposure{undecided: true}
	}
	way, err := c.access(cluster)
	if err != nil {
		return nil, &exposure{reason: v1alpha1.ExposureClusterUnreachable, message: err.Error()}
	}
	// Watches survive an outage but then retry with long pauses. So a cluster that turned Ready
	// again gets new ones.
	state := way.digest + ready.LastTransitionTime.UTC().String()
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.members[cluster.Name]
	if m != nil && m.state == state {
		return m, nil
	}
	if m != nil {
		m.stop()
		delete(c.members, cluster.Name)
	}
	name := cluster.Name
	m, err = newMember(c.ctx, &c.running, way, state, func() { c.queue.AddAfter(key{cluster: name}, batchWindow) })
	if err != nil {
		return nil, &exposure{reason: v1alpha1.ExposureClusterUnreachable, message: err.Error()}
	}
	c.members[name] = m
	return m, nil
}

func (c *controller) dismiss(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.members[name]; m != nil {
		m.stop()
		delete(c.members, name)
	}
}

// clear removes all of our objects from a member, and the finalizer from its Cluster when none is
// left.
func (c *controller) clear(ctx context.Context, cluster *v1alpha1.Cluster, m *member) error {
	left := m.ours()
	held := c.hold(ctx, cluster, m, withdrawn(left))
	err := removeAll(ctx, m, withoutHeld(left, held))
	if err == nil {
		err = c.tellLeaving(ctx, cluster, held)
	}
	c.record(cluster.Name, func(s *v1alpha1.SharedAPI) exposure {
		if why, ok := m.heldOf(s); ok {
			return why
		}
		v := exposure{reason: v1alpha1.ExposureRemoving, message: fmt.Sprintf("%d objects are still in the member", len(left))}
		if err != nil && !apierrors.IsConflict(err) {
			v.message += ": " + refusal(err).message
		}
		return v
	})
	if err != nil || len(left) > 0 {
		return err
	}
	// The watches may lag behind recent writes, and this is the last check of the member.
	if empty, err := m.empty(ctx); err != nil || !empty {
		c.queue.AddAfter(key{cluster: cluster.Name}, retryDelay)
		return err
	}
	if cluster.Status.FrontProxy != nil {
		return c.writeFrontProxy(ctx, cluster, nil)
	}
	return c.setFinalizer(ctx, cluster, false)
}

// removeAll deletes objects in the reverse order of their creation.
func removeAll(ctx context.Context, m *member, objects []*unstructured.Unstructured) error {
	for _, u := range slices.Backward(objects) {
		if err := m.remove(ctx, u); err != nil {
			return fmt.Errorf("remove %s %s: %w", u.GetKind(), u.GetName(), err)
		}
	}
	return nil
}

// share configures a member to serve its groups.
func (c *controller) share(ctx context.Context, cluster *v1alpha1.Cluster, m *member, want map[string]*v1alpha1.SharedAPI) error {
	obstacle, err := c.obstacle(ctx, cluster, m)
	if err != nil {
		return err
	}
	crds := c.crds.All()
	groups, troubles := planGroups(want, ServedVersions(crds), m.all(apiServiceKind))
	for i := range groups {
		// The member hides them behind the shared ones. A group whose CRDs cannot be read is
		// assumed to have none.
		if names, _ := m.crdsOf(groups[i].Name); len(names) > 0 {
			troubles[groups[i].Name] = exposure{reason: v1alpha1.ExposureGroupConflict, message: fmt.Sprintf(
				"the member has CustomResourceDefinitions of its own in group %s (%s), whose objects are hidden while the group is shared: delete them there, after moving their objects",
				groups[i].Name, strings.Join(names, ", "))}
		}
	}
	types := TypesOf(crds)
	for i := range groups {
		groups[i].Types = types[groups[i].Name]
	}
	again, err := m.checkListed(ctx, c.Clock.Now())
	if again > 0 || err != nil {
		c.queue.AddAfter(key{cluster: cluster.Name}, max(again, syncDelay))
	}
	// From here on, the member may have objects of theirs.
	c.record(cluster.Name, func(s *v1alpha1.SharedAPI) exposure {
		return c.exposureOf(cluster, m, s, want, groups, troubles, obstacle)
	})
	var stale []*unstructured.Unstructured
	for _, u := range m.ours() {
		if by := u.GetAnnotations()[v1alpha1.SharedAPIAnnotation]; by != "" && !slices.ContainsFunc(groups, func(g Group) bool { return owns(g, u) }) {
			stale = append(stale, u)
		}
	}
	if obstacle == nil {
		if err := c.mark(ctx, groups); err != nil {
			return err
		}
		desired := Desired(groups, c.servers(cluster.Name, m), c.ca)
		for _, u := range desired {
			if err := m.ensure(ctx, u); err != nil {
				failed := refusal(fmt.Errorf("apply %s %s: %w", u.GetKind(), u.GetName(), err))
				c.record(cluster.Name, func(s *v1alpha1.SharedAPI) exposure {
					return c.exposureOf(cluster, m, s, want, groups, troubles, &failed)
				})
				return fmt.Errorf("apply %s %s to cluster %s: %w", u.GetKind(), u.GetName(), cluster.Name, err)
			}
		}
		stale = slices.DeleteFunc(m.ours(), func(u *unstructured.Unstructured) bool {
			return slices.ContainsFunc(desired, func(d *unstructured.Unstructured) bool { return identity(d) == identity(u) })
		})
	}
	held := c.hold(ctx, cluster, m, withdrawn(stale))
	if len(held) > 0 {
		c.record(cluster.Name, func(s *v1alpha1.SharedAPI) exposure {
			return c.exposureOf(cluster, m, s, want, groups, troubles, obstacle)
		})
	}
	return removeAll(ctx, m, withoutHeld(stale, held))
}

// mark labels the CRDs of the groups as shared, before any member can create an object of them.
// Such an object may have owners that the control plane does not know, so it must never be
// collected for missing owners.
func (c *controller) mark(ctx context.Context, groups []Group) error {
	for _, crd := range c.crds.All() {
		group, _, _ := unstructured.NestedString(crd.Object, "spec", "group")
		if crd.GetLabels()[v1alpha1.SharedLabel] == "true" || !slices.ContainsFunc(groups, func(g Group) bool { return g.Name == group }) {
			continue
		}
		patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:"true"}}}`, v1alpha1.SharedLabel)
		_, err := c.Dynamic.Resource(crdResource).Patch(ctx, crd.GetName(), types.MergePatchType, patch, metav1.PatchOptions{FieldManager: FieldManager})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("mark CustomResourceDefinition %s as shared: %w", crd.GetName(), err)
		}
	}
	return nil
}

func identity(u *unstructured.Unstructured) [3]string {
	return [3]string{u.GetKind(), u.GetNamespace(), u.GetName()}
}

// owns reports whether an object belongs to a group, including the version.
func owns(g Group, u *unstructured.Unstructured) bool {
	for _, d := range Desired([]Group{g}, nil, nil) {
		if identity(d) == identity(u) {
			return true
		}
	}
	return false
}

// obstacle updates the member's front proxy in the Cluster, and returns what prevents further
// configuration. Existing configuration stays meanwhile.
func (c *controller) obstacle(ctx context.Context, cluster *v1alpha1.Cluster, m *member) (*exposure, error) {
	published, ok := m.published()
	if !ok {
		return &exposure{reason: v1alpha1.ExposureNoFrontProxy, message: fmt.Sprintf("the member has no ConfigMap %s/%s: start its API server with --requestheader-client-ca-file and --proxy-client-cert-file",
			authorityNamespace, authorityName)}, nil
	}
	authority, err := frontProxy(published)
	if err != nil {
		return &exposure{reason: v1alpha1.ExposureNoFrontProxy, message: err.Error()}, nil
	}
	if other, shares := sharesAuthority(cluster, authority, c.Clusters.All()); shares {
		if cluster.Status.FrontProxy != nil { // servers refuse a cluster without a recorded authority
			if err := c.writeFrontProxy(ctx, cluster, nil); err != nil {
				return nil, err
			}
		}
		return &exposure{reason: v1alpha1.ExposureSharedAuthority, message: fmt.Sprintf("cluster %s had the same front-proxy authority before, and keeps it, because each of the two could impersonate the other's users: give cluster %s a request-header CA of its own",
			other, cluster.Name)}, nil
	}
	if !equality.Semantic.DeepEqual(authority, cluster.Status.FrontProxy) {
		if err := c.writeFrontProxy(ctx, cluster, authority); err != nil {
			return nil, err
		}
	}
	if len(c.servers(cluster.Name, m)) == 0 {
		return &exposure{reason: v1alpha1.ExposureNoServers, message: "no server announces an address that members can use: start servers with --member-port, and set --member-address to an IP address that is not a loopback address"}, nil
	}
	return nil, nil
}

// planGroups determines which groups a member can get, and the problems of the others. A group that the
// member serves from another source is not touched. If the member also serves it from Atoll, it is
// kept up to date, because it is in use.
func planGroups(want map[string]*v1alpha1.SharedAPI, served map[string][]string, apis []*unstructured.Unstructured) (groups []Group, troubles map[string]exposure) {
	troubles = map[string]exposure{}
	for name, s := range want {
		if len(served[name]) == 0 {
			troubles[name] = exposure{reason: v1alpha1.ExposureNoSuchGroup,
				message: fmt.Sprintf("no CustomResourceDefinition here serves group %s: create one, or correct spec.groups", name)}
			continue
		}
		var theirs []string
		mine := false
		for _, a := range apis {
			if group, _, _ := unstructured.NestedString(a.Object, "spec", "group"); group != name {
				continue
			}
			if isOurs(a) {
				mine = true
			} else {
				theirs = append(theirs, a.GetName())
			}
		}
		if len(theirs) > 0 {
			slices.Sort(theirs)
			troubles[name] = exposure{reason: v1alpha1.ExposureGroupConflict,
				message: fmt.Sprintf("the member already serves group %s (APIService %s): delete its CustomResourceDefinitions or its APIService there, after moving their objects", name, strings.Join(theirs, ", "))}
			if !mine {
				continue
			}
		}
		groups = append(groups, Group{Name: name, SharedAPI: s.Name, Versions: served[name]})
	}
	return groups, troubles
}

// exposureOf returns the state of one SharedAPI in a member.
func (c *controller) exposureOf(cluster *v1alpha1.Cluster, m *member, s *v1alpha1.SharedAPI, want map[string]*v1alpha1.SharedAPI,
	groups []Group, troubles map[string]exposure, obstacle *exposure) exposure {
	why, held := m.heldOf(s)
	if s.DeletionTimestamp != nil || !s.Selects(cluster) {
		if held {
			return why
		}
		left := 0
		for _, u := range m.ours() {
			if u.GetAnnotations()[v1alpha1.SharedAPIAnnotation] == s.Name {
				left++
			}
		}
		return exposure{clean: left == 0, reason: v1alpha1.ExposureRemoving, message: fmt.Sprintf("%d objects are still in the member", left)}
	}
	out := exposure{exposed: true, reason: v1alpha1.ExposureExposed}
	spoil := func(v exposure) {
		if out.exposed {
			out.exposed, out.reason, out.message = false, v.reason, v.message
		}
	}
	if obstacle != nil {
		spoil(*obstacle)
	}
	if held {
		spoil(why)
	}
	for _, name := range s.Spec.Groups {
		if by := want[name]; by == nil || by.Name != s.Name {
			v := exposure{reason: v1alpha1.ExposureApplying, message: "about to be written to the member"}
			if by != nil {
				v = exposure{reason: v1alpha1.ExposureGroupConflict,
					message: fmt.Sprintf("SharedAPI %s already exposes group %s there: remove the group or the cluster from one of them", by.Name, name)}
			}
			spoil(v)
			continue
		}
		if v, ok := troubles[name]; ok {
			spoil(v)
		}
	}
	for _, g := range groups {
		if g.SharedAPI != s.Name {
			continue
		}
		for _, v := range g.Versions {
			out.versions = append(out.versions, g.Name+"/"+v)
			if available, why := m.available(v + "." + g.Name); !available {
				spoil(why)
			}
		}
	}
	slices.Sort(out.versions)
	if out.exposed {
		out.message = m.slowToNotice()
	}
	return out
}

// reachable reports whether the member's API server reaches Atoll for one of our APIServices, and
// otherwise the reason.
func (m *member) reachable(name string) (bool, exposure) {
	for _, a := range m.all(apiServiceKind) {
		if a.GetName() != name || !isOurs(a) {
			continue
		}
		conditions, _, _ := unstructured.NestedSlice(a.Object, "status", "conditions")
		for _, c := range conditions {
			if fields, ok := c.(map[string]any); ok && fields["type"] == "Available" {
				return fields["status"] == "True", exposure{reason: v1alpha1.ExposureUnavailable,
					message: fmt.Sprintf("the member's API server cannot reach Atoll for APIService %s: %v", name, fields["message"])}
			}
		}
	}
	return false, exposure{reason: v1alpha1.ExposureApplying, message: fmt.Sprintf("the member has not checked APIService %s yet", name)}
}

// refusal returns the state for an error of a member.
func refusal(err error) exposure {
	var answer apierrors.APIStatus
	switch {
	case errors.Is(err, errForeign):
		return exposure{reason: v1alpha1.ExposureGroupConflict, message: err.Error()}
	case !errors.As(err, &answer):
		// Network errors differ each time, and each change would be a write.
		return exposure{reason: v1alpha1.ExposureClusterUnreachable, message: "the cluster does not answer; see the conditions of the Cluster"}
	case apierrors.IsForbidden(err):
		return exposure{reason: v1alpha1.ExposureApplyFailed, message: err.Error() + "; grant it to the identity in the cluster's kubeconfig"}
	}
	return exposure{reason: v1alpha1.ExposureApplyFailed, message: err.Error()}
}

// writeFrontProxy stores a member's authority in its Cluster, for all servers.
func (c *controller) writeFrontProxy(ctx context.Context, cluster *v1alpha1.Cluster, authority *v1alpha1.FrontProxy) error {
	status := map[string]any{}
	if authority != nil {
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(authority)
		if err != nil {
			return fmt.Errorf("encode the front proxy of cluster %s: %w", cluster.Name, err)
		}
		status["frontProxy"] = fields
	}
	_, err := c.Dynamic.Resource(v1alpha1.ClusterResource).ApplyStatus(ctx, cluster.Name, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": "Cluster",
		"metadata": map[string]any{"name": cluster.Name, "uid": string(cluster.UID)},
		"status":   status,
	}}, metav1.ApplyOptions{FieldManager: FieldManager, Force: true})
	if err != nil {
		return fmt.Errorf("write the front proxy of cluster %s: %w", cluster.Name, err)
	}
	return nil
}

// setFinalizer adds or removes our finalizer on a Cluster.
func (c *controller) setFinalizer(ctx context.Context, cluster *v1alpha1.Cluster, on bool) error {
	return c.patchFinalizers(ctx, v1alpha1.ClusterResource, cluster, on)
}

func (c *controller) patchFinalizers(ctx context.Context, resource schema.GroupVersionResource, obj metav1.Object, on bool) error {
	finalizers := slices.DeleteFunc(slices.Clone(obj.GetFinalizers()), func(f string) bool { return f == v1alpha1.ExposeFinalizer })
	if on {
		finalizers = append(finalizers, v1alpha1.ExposeFinalizer)
	}
	if slices.Equal(finalizers, obj.GetFinalizers()) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": obj.GetUID(), "resourceVersion": obj.GetResourceVersion(), "finalizers": finalizers}})
	if err != nil {
		return err
	}
	_, err = c.Dynamic.Resource(resource).Patch(ctx, obj.GetName(), types.MergePatchType, patch, metav1.PatchOptions{FieldManager: FieldManager})
	if err != nil && (on || !apierrors.IsNotFound(err)) {
		return fmt.Errorf("set the finalizers of %s %s: %w", resource.Resource, obj.GetName(), err)
	}
	return nil
}
