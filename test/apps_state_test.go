package test

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// objectState is the part of an object's status that says whether it works.
type objectState struct {
	// counts add up over clusters where the work is divided.
	counts map[string]int64
	// words are the same in each cluster: a phase, conditions that are true.
	words string
}

// countsOf names, for kinds that have numbers, where they are.
func countsOf(kind string) map[string][]string {
	status := func(names ...string) map[string][]string {
		out := map[string][]string{}
		for _, name := range names {
			out[name] = []string{"status", name}
		}
		return out
	}
	switch kind {
	case "Deployment":
		return status("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")
	case "StatefulSet", "ReplicaSet", "ReplicationController":
		return status("replicas", "readyReplicas", "availableReplicas")
	case "DaemonSet":
		return status("desiredNumberScheduled", "updatedNumberScheduled", "numberReady", "numberAvailable")
	case "Job":
		return status("succeeded", "failed", "active")
	case "PodDisruptionBudget":
		return status("expectedPods", "currentHealthy")
	case "HorizontalPodAutoscaler":
		return map[string][]string{"min": {"spec", "minReplicas"}, "max": {"spec", "maxReplicas"}}
	}
	return nil
}

func stateOf(o *unstructured.Unstructured) objectState {
	s := objectState{counts: map[string]int64{}}
	for name, path := range countsOf(o.GetKind()) {
		if n, found, _ := unstructured.NestedInt64(o.Object, path...); found && n != 0 {
			s.counts[name] = n
		}
	}
	var words []string
	if phase, _, _ := unstructured.NestedString(o.Object, "status", "phase"); phase != "" {
		words = append(words, phase)
	}
	// Whether a disruption is allowed is a question of how many pods a cluster has;
	// other conditions of namespaces come and go with their deletion.
	if kind := o.GetKind(); kind != "PodDisruptionBudget" && kind != "Namespace" {
		words = append(words, trueConditions(o)...)
	}
	slices.Sort(words)
	s.words = strings.Join(words, " ")
	return s
}

func trueConditions(o *unstructured.Unstructured) (out []string) {
	conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, c := range conditions {
		if condition, ok := c.(map[string]any); ok && condition["status"] == "True" {
			out = append(out, fmt.Sprint(condition["type"]))
		}
	}
	return out
}

// unready says what an object of one cluster waits for, or "".
func unready(o *unstructured.Unstructured) string {
	s := stateOf(o)
	want := int64(1)
	if n, found, _ := unstructured.NestedInt64(o.Object, "spec", "replicas"); found {
		want = n
	}
	has := func(word string) bool { return slices.Contains(strings.Fields(s.words), word) }
	ok := true
	switch o.GetKind() {
	case "Deployment":
		ok = s.counts["availableReplicas"] == want && s.counts["updatedReplicas"] == want && s.counts["replicas"] == want && has("Available")
	case "StatefulSet", "ReplicaSet", "ReplicationController":
		ok = s.counts["availableReplicas"] == want
	case "DaemonSet":
		ok = s.counts["numberAvailable"] > 0 && s.counts["numberAvailable"] == s.counts["desiredNumberScheduled"]
	case "Job":
		ok = has("Complete") || has("Suspended")
	case "Pod":
		ok = has("Ready")
	case "PersistentVolumeClaim", "PersistentVolume":
		ok = has("Bound")
	case "PodDisruptionBudget":
		ok = s.counts["expectedPods"] > 0 && s.counts["currentHealthy"] == s.counts["expectedPods"]
	case "CustomResourceDefinition":
		ok = has("Established")
	case "HorizontalPodAutoscaler":
		// Nothing measures here, but it sees to its minimum.
		current, _, _ := unstructured.NestedInt64(o.Object, "status", "currentReplicas")
		desired, _, _ := unstructured.NestedInt64(o.Object, "status", "desiredReplicas")
		ok = max(current, desired) >= s.counts["min"]
	}
	if ok {
		return ""
	}
	return fmt.Sprintf("it is %v %s", s.counts, s.words)
}

// divided kinds are done by all clusters together: their numbers add up to those of
// one cluster that does it alone.
func dividedKind(kind string) bool { return kind != "DaemonSet" && countsOf(kind) != nil }

// once are the kinds without numbers that do something, and do it in one place.
func onceKind(kind string) bool { return kind == "Pod" || kind == "CronJob" }

// compareStates says how the members' states, and Atoll's summary of them, differ
// from the state in one cluster, or "".
func compareStates(direct, own *unstructured.Unstructured, copies map[string]*unstructured.Unstructured) string {
	kind, want := direct.GetKind(), stateOf(direct)
	if onceKind(kind) && len(copies) != 1 {
		return fmt.Sprintf("runs in %d members: %s", len(copies), strings.Join(slices.Sorted(maps.Keys(copies)), ", "))
	}
	sum := map[string]int64{}
	for _, m := range slices.Sorted(maps.Keys(copies)) {
		got := stateOf(copies[m])
		if got.words != want.words {
			return fmt.Sprintf("in %s it is %q, directly %q", m, got.words, want.words)
		}
		if !dividedKind(kind) && !maps.Equal(got.counts, want.counts) {
			return fmt.Sprintf("in %s it is %v, directly %v", m, got.counts, want.counts)
		}
		for name, n := range got.counts {
			sum[name] += n
		}
	}
	if dividedKind(kind) && !maps.Equal(sum, want.counts) {
		return fmt.Sprintf("in all members it is %v, directly %v", sum, want.counts)
	}
	return compareSummary(own, want, sum)
}

// compareSummary: what Atoll's own object says must be what the members' say together.
func compareSummary(own *unstructured.Unstructured, want objectState, sum map[string]int64) string {
	got := stateOf(own)
	if own.GetKind() == "HorizontalPodAutoscaler" {
		return ""
	}
	if countsOf(own.GetKind()) != nil && !maps.Equal(got.counts, sum) {
		return fmt.Sprintf("in Atoll it is summarised as %v, the members have %v", got.counts, sum)
	}
	if got.words != want.words {
		return fmt.Sprintf("in Atoll it is summarised as %q, directly it is %q", got.words, want.words)
	}
	return ""
}

// differs says where a copy's content is another than that of the object that was
// applied directly, or "".
func differs(direct, copied *unstructured.Unstructured) string {
	return firstDifference("", essence(direct), essence(copied))
}

// essence returns the object without fields that each cluster allocates or defaults itself, and without
// replica counts that are divided among clusters.
func essence(o *unstructured.Unstructured) map[string]any {
	out := o.DeepCopy().Object
	delete(out, "status")
	out["metadata"] = map[string]any{
		"labels": anyStrings(o.GetLabels(), "fleet.atoll.dev/", "controller-uid", "batch.kubernetes.io/controller-uid"),
		"annotations": anyStrings(o.GetAnnotations(), "fleet.atoll.dev/", "kubectl.kubernetes.io/last-applied-configuration", "deployment.kubernetes.io/", "deprecated.daemonset.template.generation", "pv.kubernetes.io/", "volume.", "batch.kubernetes.io/",
			"autoscaling.alpha.kubernetes.io/conditions", "autoscaling.alpha.kubernetes.io/current-metrics"), // of the status, in v1
	}
	drop := func(path ...string) { unstructured.RemoveNestedField(out, path...) }
	switch o.GetKind() {
	case "Deployment", "ReplicaSet", "ReplicationController":
		drop("spec", "replicas")
	case "StatefulSet":
		drop("spec", "replicas")
		drop("spec", "ordinals")
	case "HorizontalPodAutoscaler":
		drop("spec", "minReplicas")
		drop("spec", "maxReplicas")
	case "PodDisruptionBudget":
		if _, percentage := o.Object["spec"].(map[string]any)["minAvailable"].(string); !percentage {
			drop("spec", "minAvailable")
		}
	case "Job":
		drop("spec", "completions")
		drop("spec", "parallelism")
		drop("spec", "selector")
		drop("spec", "ttlSecondsAfterFinished") // Atoll deletes the Job when the time is over
		for _, label := range []string{"controller-uid", "batch.kubernetes.io/controller-uid"} {
			drop("spec", "template", "metadata", "labels", label)
		}
	case "Service":
		dropAllocations(out)
	case "Namespace":
		drop("spec")
	case "PersistentVolumeClaim":
		if name, _, _ := unstructured.NestedString(out, "spec", "volumeName"); strings.HasPrefix(name, "disk-") {
			drop("spec", "volumeName") // one of several that are alike
		}
	case "PersistentVolume":
		drop("spec", "claimRef", "uid")
		drop("spec", "claimRef", "resourceVersion")
	case "ServiceAccount":
		drop("secrets")
	case "Pod":
		drop("spec", "nodeName")
		// Where the node is that the cluster chose.
		drop("metadata", "labels", "topology.kubernetes.io/region")
		drop("metadata", "labels", "topology.kubernetes.io/zone")
		dropTokenVolume(out)
	}
	return out
}

// dropTokenVolume takes out of a Pod what each cluster mounts, under a random name.
func dropTokenVolume(pod map[string]any) {
	ofToken := func(entry any) bool {
		volume, _ := entry.(map[string]any)
		return strings.HasPrefix(fmt.Sprint(volume["name"]), "kube-api-access-")
	}
	volumes, _, _ := unstructured.NestedSlice(pod, "spec", "volumes")
	containers, _, _ := unstructured.NestedSlice(pod, "spec", "containers")
	for _, c := range containers {
		if container, ok := c.(map[string]any); ok {
			mounts, _ := container["volumeMounts"].([]any)
			container["volumeMounts"] = slices.DeleteFunc(mounts, ofToken)
		}
	}
	spec, _ := pod["spec"].(map[string]any)
	spec["volumes"], spec["containers"] = slices.DeleteFunc(volumes, ofToken), containers
}

// dropAllocations takes out of a Service what each cluster allocates.
func dropAllocations(service map[string]any) {
	spec, _ := service["spec"].(map[string]any)
	if spec["clusterIP"] != "None" {
		delete(spec, "clusterIP")
		delete(spec, "clusterIPs")
	}
	delete(spec, "healthCheckNodePort")
	ports, _ := spec["ports"].([]any)
	for _, p := range ports {
		if port, ok := p.(map[string]any); ok {
			delete(port, "nodePort")
		}
	}
}

// anyStrings is a map without keys that begin with one of these.
func anyStrings(m map[string]string, without ...string) map[string]any {
	out := map[string]any{}
	for key, value := range m {
		if !slices.ContainsFunc(without, func(prefix string) bool { return strings.HasPrefix(key, prefix) }) {
			out[key] = value
		}
	}
	return out
}

// firstDifference gives the path of the first value that is not the same, and both.
func firstDifference(path string, direct, copied any) string {
	if d, ok := direct.(map[string]any); ok {
		if c, ok := copied.(map[string]any); ok {
			keys := slices.Sorted(maps.Keys(d))
			for key := range c {
				if _, ok := d[key]; !ok {
					keys = append(keys, key)
				}
			}
			for _, key := range keys {
				if where := firstDifference(path+"."+key, d[key], c[key]); where != "" {
					return where
				}
			}
			return ""
		}
	}
	if d, ok := direct.([]any); ok {
		if c, ok := copied.([]any); ok && len(c) == len(d) {
			for i := range d {
				if where := firstDifference(fmt.Sprintf("%s[%d]", path, i), d[i], c[i]); where != "" {
					return where
				}
			}
			return ""
		}
	}
	if reflect.DeepEqual(direct, copied) {
		return ""
	}
	return fmt.Sprintf("%s is %.200v, directly %.200v", strings.TrimPrefix(path, "."), copied, direct)
}
