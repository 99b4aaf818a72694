package expose

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
)

// A server of Atoll that is frozen keeps its connections open. The member's API server notices it
// by pings of HTTP/2, whose intervals it reads from two environment variables. Many clusters run
// their API server as a Pod (kubeadm, kind), which shows the variables; of others nothing is known.

const (
	readIdleVariable = "HTTP2_READ_IDLE_TIMEOUT_SECONDS"
	pingVariable     = "HTTP2_PING_TIMEOUT_SECONDS"
	// The values that Kubernetes uses if the variables are not set.
	defaultReadIdle = 30 * time.Second
	defaultPing     = 15 * time.Second
	// longestNotice is the longest time that needs no message.
	longestNotice = 15 * time.Second
)

var podResource = schema.GroupVersionResource{Version: "v1", Resource: "pods"}

// apiServerPods watches the Pods of the member's API servers.
func apiServerPods(client dynamic.Interface) cache.SharedIndexInformer {
	return watchBounds().Informer(client, podResource, metav1.NamespaceSystem, func(o *metav1.ListOptions) { o.LabelSelector = "component=kube-apiserver" })
}

// slimPod keeps the name of a Pod, and the environment of its containers.
func slimPod(obj any) (any, error) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return obj, nil
	}
	out := &unstructured.Unstructured{Object: map[string]any{"apiVersion": u.GetAPIVersion(), "kind": u.GetKind()}}
	out.SetName(u.GetName())
	out.SetNamespace(u.GetNamespace())
	out.SetUID(u.GetUID())
	var containers []any
	all, _, _ := unstructured.NestedSlice(u.Object, "spec", "containers")
	for _, c := range all {
		if fields, ok := c.(map[string]any); ok {
			containers = append(containers, map[string]any{"env": fields["env"]})
		}
	}
	out.Object["spec"] = map[string]any{"containers": containers}
	return out, nil
}

// timeToNotice returns how long an API server with this Pod waits for an answer before it uses
// another connection. It is negative if the server waits without a limit, or if the values are not
// in the Pod.
func timeToNotice(pod *unstructured.Unstructured) time.Duration {
	idle, ping := defaultReadIdle, defaultPing
	containers, _, _ := unstructured.NestedSlice(pod.Object, "spec", "containers")
	for _, c := range containers {
		fields, _ := c.(map[string]any)
		env, _ := fields["env"].([]any)
		for _, e := range env {
			variable, _ := e.(map[string]any)
			seconds := -time.Second
			if value, ok := variable["value"].(string); ok {
				if n, err := strconv.Atoi(value); err == nil {
					seconds = time.Duration(n) * time.Second
				}
			}
			switch variable["name"] {
			case readIdleVariable:
				idle = seconds
			case pingVariable:
				ping = seconds
			}
		}
	}
	if idle <= 0 || ping <= 0 {
		return -1
	}
	return idle + ping
}

// slowToNotice returns advice if Pods show that the member's API servers notice a frozen server of
// Atoll late.
func (m *member) slowToNotice() string {
	var slow []string
	longest := time.Duration(0)
	for _, obj := range m.apiServers.GetStore().List() {
		pod, ok := obj.(*unstructured.Unstructured)
		if !ok {
			continue
		}
		if wait := timeToNotice(pod); wait > longestNotice {
			slow = append(slow, pod.GetName())
			longest = max(longest, wait)
		}
	}
	if len(slow) == 0 {
		return ""
	}
	slices.Sort(slow)
	return fmt.Sprintf("the member serves the groups, but its API server (Pod %s/%s) notices only after %d s that a server of Atoll is frozen: set %s=5 and %s=5 in its environment",
		metav1.NamespaceSystem, slow[0], int(longest.Seconds()), readIdleVariable, pingVariable)
}
