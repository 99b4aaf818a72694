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
	// soon is when a member that is just being read is looked at again: its watches
	// do not say when they know that there is nothing.
	soon = 200 * time.Millisecond
	// retry is when one that could not be read is.
	retry = 2 * time.Second
)

// reconcileCluster brings one member in line with all SharedAPIs that choose it.
func (c *controller) reconcileCluster(ctx context.Context, name string) error {
	cluster, exists := c.Cluster(name)
	if !exists {
		c.dismiss(name)
		return nil
	}
	held := slices.Contains(cluster.Finalizers, v1alpha1.ExposeFinalizer)
	if cluster.Pulls() && !held {
		c.dismiss(name)
		c.judge(name, func(s *v1alpha1.SharedAPI) verdict { return pulls(cluster, s) })
		return nil
	}
	want := v1alpha1.SharedWith(cluster, c.admitted(cluster))
	if len(want) == 0 && !held {
		c.dismiss(name)
		c.judge(name, func(*v1alpha1.SharedAPI) verdict { return verdict{clean: true} })
		return nil
	}
	if !held {
		return c.setFinalizer(ctx, cluster, true)
	}
	m, problem := c.member(cluster)
	if problem != nil {
		if leaving, orphan := cluster.Leaves(); leaving && orphan {
			// What is left behind leads nowhere: its requests are refused here.
			return c.setFinalizer(ctx, cluster, false)
		}
		c.judge(name, func(*v1alpha1.SharedAPI) verdict { return *problem })
		return nil
	}
	if known, trouble := m.known(); !known {
		// What an earlier leader saw holds until there is news.
		again := soon
		if trouble != nil {
			v := refusal(trouble)
			c.judge(name, func(*v1alpha1.SharedAPI) verdict { return v })
			again = retry
		}
		c.queue.AddAfter(key{cluster: name}, again)
		return nil
	}
	if len(want) == 0 {
		return c.clear(ctx, cluster, m)
	}
	return c.share(ctx, cluster, m, want)
}

// pulls refuses a cluster in mode Pull, which has nothing of ours.
func pulls(cluster *v1alpha1.Cluster, s *v1alpha1.SharedAPI) verdict {
	if cluster.DeletionTimestamp != nil || s.DeletionTimestamp != nil || !s.Selects(cluster) {
		return verdict{clean: true}
	}
	return verdict{reason: v1alpha1.ExposureClusterPulls, message: fmt.Sprintf(
		"the cluster is in mode Pull, in which it serves no shared API: join it with `atoll join %s --kubeconfig FILE`, or leave it out of the SharedAPI", cluster.Name)}
}

// admitted gives the SharedAPIs that may be acted on for a member: those that
// cannot go unnoticed, and that say that they are there. The others are asked for.
func (c *controller) admitted(cluster *v1alpha1.Cluster) []*v1alpha1.SharedAPI {
	var out []*v1alpha1.SharedAPI
	for _, s := range c.sharedAPIs() {
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

// member gives the access to a member that answers, and makes it if need be.
func (c *controller) member(cluster *v1alpha1.Cluster) (*member, *verdict) {
	if cluster.Pulls() {
		c.dismiss(cluster.Name)
		return nil, &verdict{reason: v1alpha1.ExposureClusterPulls, message: fmt.Sprintf(
			"the cluster was in mode Push and still has what it needed for shared APIs: join it with `atoll join %[1]s --kubeconfig FILE` to have that kept or removed, or let it leave with `atoll leave %[1]s --cascade=orphan`", cluster.Name)}
	}
	ready := meta.FindStatusCondition(cluster.Status.Conditions, v1alpha1.ClusterReady)
	if ready == nil || ready.Status != metav1.ConditionTrue {
		message := "the cluster has not been probed yet"
		if ready != nil {
			message = ready.Message
		}
		return nil, &verdict{reason: v1alpha1.ExposureClusterUnreachable, message: message}
	}
	way, err := c.reach(cluster)
	if err != nil {
		return nil, &verdict{reason: v1alpha1.ExposureClusterUnreachable, message: err.Error()}
	}
	// Watches outlive an outage but pause for long between attempts by then; so a
	// cluster that turned Ready again gets new ones.
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
	m, err = newMember(c.ctx, &c.running, way, state, func() { c.queue.AddAfter(key{cluster: name}, gather) })
	if err != nil {
		return nil, &verdict{reason: v1alpha1.ExposureClusterUnreachable, message: err.Error()}
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

// clear removes all of ours from a member, and lets its Cluster go when that is
// known to be so.
func (c *controller) clear(ctx context.Context, cluster *v1alpha1.Cluster, m *member) error {
	left := m.ours()
	err := removeAll(ctx, m, left)
	c.judge(cluster.Name, func(*v1alpha1.SharedAPI) verdict {
		v := verdict{reason: v1alpha1.ExposureRemoving, message: fmt.Sprintf("%d objects are still in the member", len(left))}
		if err != nil && !apierrors.IsConflict(err) {
			v.message += ": " + refusal(err).message
		}
		return v
	})
	if err != nil || len(left) > 0 {
		return err
	}
	// The watches may lag behind what was made a moment ago, and this is the last
	// look at the member.
	if empty, err := m.empty(ctx); err != nil || !empty {
		c.queue.AddAfter(key{cluster: cluster.Name}, retry)
		return err
	}
	if cluster.Status.FrontProxy != nil {
		return c.writeFrontProxy(ctx, cluster, nil)
	}
	return c.setFinalizer(ctx, cluster, false)
}

// removeAll deletes in the reverse of the order of making.
func removeAll(ctx context.Context, m *member, objects []*unstructured.Unstructured) error {
	for _, u := range slices.Backward(objects) {
		if err := m.remove(ctx, u); err != nil {
			return fmt.Errorf("remove %s %s: %w", u.GetKind(), u.GetName(), err)
		}
	}
	return nil
}

// share has a member serve what it should.
func (c *controller) share(ctx context.Context, cluster *v1alpha1.Cluster, m *member, want map[string]*v1alpha1.SharedAPI) error {
	obstacle, err := c.obstacle(ctx, cluster, m)
	if err != nil {
		return err
	}
	crds := list[unstructured.Unstructured](c.crds)
	groups, troubles := plan(want, ServedVersions(crds), m.all(apiServiceKind))
	types := TypesOf(crds)
	for i := range groups {
		groups[i].Types = types[groups[i].Name]
	}
	again, err := m.look(ctx, c.Clock.Now())
	if again > 0 || err != nil {
		c.queue.AddAfter(key{cluster: cluster.Name}, max(again, soon))
	}
	// From here on, something of them may be in the member.
	c.judge(cluster.Name, func(s *v1alpha1.SharedAPI) verdict { return c.verdict(cluster, m, s, want, groups, troubles, obstacle) })
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
		desired := Desired(groups, c.servers(cluster.Name), c.ca)
		for _, u := range desired {
			if err := m.ensure(ctx, u); err != nil {
				failed := refusal(fmt.Errorf("apply %s %s: %w", u.GetKind(), u.GetName(), err))
				c.judge(cluster.Name, func(s *v1alpha1.SharedAPI) verdict {
					return c.verdict(cluster, m, s, want, groups, troubles, &failed)
				})
				return fmt.Errorf("apply %s %s to cluster %s: %w", u.GetKind(), u.GetName(), cluster.Name, err)
			}
		}
		stale = slices.DeleteFunc(m.ours(), func(u *unstructured.Unstructured) bool {
			return slices.ContainsFunc(desired, func(d *unstructured.Unstructured) bool { return identity(d) == identity(u) })
		})
	}
	return removeAll(ctx, m, stale)
}

// mark notes on the CRDs of groups that members share them, before any member can
// write an object of theirs: it may name owners that the control plane does not
// know, and must never be taken for one whose owners are gone.
func (c *controller) mark(ctx context.Context, groups []Group) error {
	for _, crd := range list[unstructured.Unstructured](c.crds) {
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

// owns tells whether an object is there for a group, and for that version of it.
func owns(g Group, u *unstructured.Unstructured) bool {
	for _, d := range Desired([]Group{g}, nil, nil) {
		if identity(d) == identity(u) {
			return true
		}
	}
	return false
}

// obstacle keeps the member's front proxy known, and says what forbids to give the
// member anything more. What it has stays meanwhile.
func (c *controller) obstacle(ctx context.Context, cluster *v1alpha1.Cluster, m *member) (*verdict, error) {
	published, ok := m.published()
	if !ok {
		return &verdict{reason: v1alpha1.ExposureNoFrontProxy, message: fmt.Sprintf("the member has no ConfigMap %s/%s: start its API server with --requestheader-client-ca-file and --proxy-client-cert-file",
			authorityNamespace, authorityName)}, nil
	}
	authority, err := frontProxy(published)
	if err != nil {
		return &verdict{reason: v1alpha1.ExposureNoFrontProxy, message: err.Error()}, nil
	}
	if !equality.Semantic.DeepEqual(authority, cluster.Status.FrontProxy) {
		if err := c.writeFrontProxy(ctx, cluster, authority); err != nil {
			return nil, err
		}
	}
	if other, shares := sharesAuthority(cluster.Name, authority, c.Clusters()); shares {
		return &verdict{reason: v1alpha1.ExposureSharedAuthority, message: fmt.Sprintf("cluster %s has the same front-proxy authority, so each could speak for the other's users: give one of them a CA of its own", other)}, nil
	}
	if len(c.servers(cluster.Name)) == 0 {
		return &verdict{reason: v1alpha1.ExposureNoServers, message: "no server announces an address that members could use: start servers with --member-port, and give --member-address an IP address that is not the loopback's"}, nil
	}
	return nil, nil
}

// plan decides which groups a member can be given, and says what stands against
// the others. A group that the member has from elsewhere is not touched; if it has
// it from us as well, it is kept in step, since it is in use.
func plan(want map[string]*v1alpha1.SharedAPI, served map[string][]string, apis []*unstructured.Unstructured) (groups []Group, troubles map[string]verdict) {
	troubles = map[string]verdict{}
	for name, s := range want {
		if len(served[name]) == 0 {
			troubles[name] = verdict{reason: v1alpha1.ExposureNoSuchGroup,
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
			troubles[name] = verdict{reason: v1alpha1.ExposureGroupConflict,
				message: fmt.Sprintf("the member serves group %s already (APIService %s): delete its CustomResourceDefinitions or its APIService there, after moving what they hold", name, strings.Join(theirs, ", "))}
			if !mine {
				continue
			}
		}
		groups = append(groups, Group{Name: name, SharedAPI: s.Name, Versions: served[name]})
	}
	return groups, troubles
}

// verdict says how a member fares with one SharedAPI.
func (c *controller) verdict(cluster *v1alpha1.Cluster, m *member, s *v1alpha1.SharedAPI, want map[string]*v1alpha1.SharedAPI,
	groups []Group, troubles map[string]verdict, obstacle *verdict) verdict {
	if s.DeletionTimestamp != nil || !s.Selects(cluster) {
		left := 0
		for _, u := range m.ours() {
			if u.GetAnnotations()[v1alpha1.SharedAPIAnnotation] == s.Name {
				left++
			}
		}
		return verdict{clean: left == 0, reason: v1alpha1.ExposureRemoving, message: fmt.Sprintf("%d objects are still in the member", left)}
	}
	out := verdict{exposed: true, reason: v1alpha1.ExposureExposed}
	spoil := func(v verdict) {
		if out.exposed {
			out.exposed, out.reason, out.message = false, v.reason, v.message
		}
	}
	if obstacle != nil {
		spoil(*obstacle)
	}
	for _, name := range s.Spec.Groups {
		if by := want[name]; by == nil || by.Name != s.Name {
			v := verdict{reason: v1alpha1.ExposureApplying, message: "about to be written to the member"}
			if by != nil {
				v = verdict{reason: v1alpha1.ExposureGroupConflict,
					message: fmt.Sprintf("SharedAPI %s exposes group %s there: take the group or the cluster out of one of them", by.Name, name)}
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
	return out
}

// answers tells whether the member's API server reaches us for an APIService of
// ours, and if not why.
func (m *member) answers(name string) (bool, verdict) {
	for _, a := range m.all(apiServiceKind) {
		if a.GetName() != name || !isOurs(a) {
			continue
		}
		conditions, _, _ := unstructured.NestedSlice(a.Object, "status", "conditions")
		for _, c := range conditions {
			if fields, ok := c.(map[string]any); ok && fields["type"] == "Available" {
				return fields["status"] == "True", verdict{reason: v1alpha1.ExposureUnavailable,
					message: fmt.Sprintf("the member's API server does not get through to Atoll for APIService %s: %v", name, fields["message"])}
			}
		}
	}
	return false, verdict{reason: v1alpha1.ExposureApplying, message: fmt.Sprintf("the member has not tried APIService %s yet", name)}
}

// refusal says in a verdict why a member did not do what it was asked.
func refusal(err error) verdict {
	var answer apierrors.APIStatus
	switch {
	case errors.Is(err, errForeign):
		return verdict{reason: v1alpha1.ExposureGroupConflict, message: err.Error()}
	case !errors.As(err, &answer):
		// What the network says differs each time, and each time would be a write.
		return verdict{reason: v1alpha1.ExposureClusterUnreachable, message: "the cluster does not answer; see the conditions of the Cluster"}
	case apierrors.IsForbidden(err):
		return verdict{reason: v1alpha1.ExposureApplyFailed, message: err.Error() + "; grant it to the identity in the cluster's kubeconfig"}
	}
	return verdict{reason: v1alpha1.ExposureApplyFailed, message: err.Error()}
}

// writeFrontProxy keeps a member's authority in its Cluster, for all servers.
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

// setFinalizer puts our finalizer on a Cluster, or takes it off.
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
