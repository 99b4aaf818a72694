package view

import (
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/transition"
)

// waitsFor returns what a requested removal from the cluster waits for; "" if it may happen. An object that
// other clusters have taken over stays until they run it, and an object that others use stays until they
// are gone from the cluster.
func (v *Local) waitsFor(b *v1alpha1.ResourceBinding) string {
	if r, requested := b.RequestedRemoval(v.cluster); !requested || r.Reason != v1alpha1.RemovalReplaced {
		return ""
	}
	if c, ok := v.Cluster(); ok && c.DeletionTimestamp != nil {
		return "" // a user wants nothing to be there
	}
	k, obj, ok := v.source(b)
	if !ok {
		return "the object is not known in the control plane at the moment"
	}
	wanted, _ := k.Replicas(obj)
	if why := replacementProblem(b, obj.GetGeneration(), wanted, transition.IsExclusive(k.GroupKind()), v.notReady); why != "" {
		return why
	}
	if user := v.userHere(b, map[types.NamespacedName]bool{}); user != "" {
		return user + " uses it and is still in this cluster"
	}
	return ""
}

// notReady returns why the reports of a cluster may be outdated; "" if it is Ready.
func (v *Local) notReady(cluster string) string {
	c, ok := v.session.Clusters.Get(cluster)
	if !ok {
		return "the cluster is not in the fleet"
	}
	for _, condition := range c.Status.Conditions {
		if condition.Type == v1alpha1.ClusterReady && condition.Status == "True" {
			return ""
		}
	}
	return "the cluster is not Ready"
}

// replacementProblem returns why the chosen clusters do not run an object instead of another one yet; "" if
// they do: each has the current version of its share and is healthy, or the available replicas of those with
// the current version are as many as wanted. notReady returns why a cluster is not Ready.
//
// An exclusive object must not run twice. If it moves on, it starts elsewhere only when it is gone here. Otherwise it is
// enough that the other cluster has it: a Job is not healthy before its work is done.
func replacementProblem(b *v1alpha1.ResourceBinding, generation int64, wanted int32, exclusive bool, notReady func(cluster string) string) string {
	if exclusive && b.Spec.Transition != nil {
		return ""
	}
	if len(b.Spec.Clusters) == 0 {
		return "no other cluster is chosen for it"
	}
	why := ""
	if b.Spec.Transition != nil {
		why = "it is on its way to other clusters"
	}
	available, divided := int64(0), true
	for _, share := range b.Spec.Clusters {
		state, _ := b.State(share.Name)
		problem := outdated(&state, &share, generation, notReady(share.Name))
		if divided = divided && share.Replicas != nil; problem == "" {
			available += availableIn(&state)
			if state.Health != v1alpha1.Healthy && !exclusive {
				problem = fmt.Sprintf("it is %s there", state.Health)
				if state.Message != "" {
					problem += ": " + state.Message
				}
			}
		}
		if problem != "" && why == "" {
			why = fmt.Sprintf("in %s, %s", share.Name, problem)
		}
	}
	if divided && wanted > 0 && available >= int64(wanted) {
		return ""
	}
	return why
}

// outdated returns why a cluster's report is not one about the current version of its share; "" if it is.
func outdated(state *v1alpha1.ClusterState, share *v1alpha1.ClusterShare, generation int64, notReady string) string {
	applied := state.Reason == "" || state.Reason == v1alpha1.StateDrifted || state.Reason == v1alpha1.StateUnwatched
	switch {
	case notReady != "":
		return notReady
	case state.Stale != nil:
		return "its last report may be outdated"
	case state.UID == "":
		return "it is not applied yet"
	case !applied && state.Message != "":
		return fmt.Sprintf("%s: %s", state.Reason, state.Message)
	case !applied:
		return state.Reason
	case state.Generation != generation || state.ObservedGeneration < state.MemberGeneration || !equalReplicas(state.Replicas, share.Replicas):
		return "the current version is not in effect yet"
	}
	return ""
}

func equalReplicas(a, b *int32) bool { return a == b || a != nil && b != nil && *a == *b }

// availableIn returns how many replicas a cluster reports as available, or as ready if the kind reports only
// that.
func availableIn(state *v1alpha1.ClusterState) int64 {
	if state.Status == nil {
		return 0
	}
	var status struct {
		Available *int64 `json:"availableReplicas"`
		Ready     int64  `json:"readyReplicas"`
	}
	if err := json.Unmarshal(state.Status.Raw, &status); err != nil {
		return 0
	}
	if status.Available != nil {
		return *status.Available
	}
	return status.Ready
}
