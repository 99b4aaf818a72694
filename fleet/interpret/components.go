package interpret

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Component is one part of a custom resource: a number of equal pods that its operator makes.
type Component struct {
	Name     string
	Replicas int64
	// Pod is the spec of its pods; nil if only Requests are known.
	Pod map[string]any
	// Requests are the requests of one pod, by resource; nil with Pod.
	Requests map[string]string
}

// Components returns the parts of a custom resource, nil if the kind has none. A cluster that runs the
// object runs all of them.
func (k KindInfo) Components(obj *unstructured.Unstructured) ([]Component, error) {
	if k.components == nil {
		return nil, nil
	}
	out, err := k.components(obj)
	for i := 0; err == nil && i < len(out); i++ {
		out[i].Replicas = min(out[i].Replicas, maxReplicas)
		err = out[i].check()
	}
	if err != nil {
		return nil, fmt.Errorf("read the components of %s %s: %w", k.Kind, obj.GetName(), err)
	}
	return out, nil
}

// maxReplicas is more than any component has. Sums of their requests cannot overflow.
const maxReplicas = 1 << 20

// check returns an error if a request is no quantity.
func (c *Component) check() error {
	for _, name := range slices.Sorted(maps.Keys(c.Requests)) {
		if c.Requests[name] == "" {
			delete(c.Requests, name)
		} else if _, err := resource.ParseQuantity(c.Requests[name]); err != nil {
			return fmt.Errorf("component %s: %s is %q, want a quantity such as 500m or 2Gi", c.Name, name, c.Requests[name])
		}
	}
	return nil
}

const wordsComponents = "the references of the pods of its components"

// HasComponents reports whether objects of the kind have several parts.
func (k KindInfo) HasComponents() bool { return k.components != nil }

// componentNeeds adds what the pods of the components reference.
func (k KindInfo) componentNeeds(obj *unstructured.Unstructured, out *refs) error {
	parts, err := k.Components(obj)
	for _, part := range parts {
		if part.Pod == nil {
			continue
		}
		var pod corev1.PodSpec
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(part.Pod, &pod); err != nil {
			return fmt.Errorf("component %s: %w", part.Name, err)
		}
		podNeeds(&pod, out)
	}
	return err
}

// componentsOf returns how the components of a well-known kind are found, nil for other kinds.
func componentsOf(gk schema.GroupKind) func(*unstructured.Unstructured) ([]Component, error) {
	switch gk {
	case schema.GroupKind{Group: "ray.io", Kind: "RayCluster"}:
		return rayComponents("spec")
	case schema.GroupKind{Group: "ray.io", Kind: "RayJob"}:
		return rayComponents("spec", "rayClusterSpec")
	case schema.GroupKind{Group: "ray.io", Kind: "RayService"}:
		return rayComponents("spec", "rayClusterConfig")
	case schema.GroupKind{Group: "flink.apache.org", Kind: "FlinkDeployment"}:
		return flinkComponents
	case schema.GroupKind{Group: "sparkoperator.k8s.io", Kind: "SparkApplication"}:
		return sparkComponents("spec")
	case schema.GroupKind{Group: "jobset.x-k8s.io", Kind: "JobSet"}:
		return jobSetComponents
	case schema.GroupKind{Group: "leaderworkerset.x-k8s.io", Kind: "LeaderWorkerSet"}:
		return leaderWorkerComponents
	case schema.GroupKind{Group: "batch.volcano.sh", Kind: "Job"}:
		return volcanoComponents
	}
	if gk.Group == "kubeflow.org" && slices.Contains([]string{"MPIJob", "PyTorchJob", "TFJob", "XGBoostJob", "PaddleJob", "JAXJob"}, gk.Kind) {
		return trainingComponents
	}
	return nil
}

// templated returns a component by its pod template.
func templated(name string, replicas int64, template map[string]any) Component {
	return Component{Name: name, Replicas: replicas, Pod: object(template, "spec")}
}

// count returns a number of an object, or a default if it is missing.
func count(of map[string]any, otherwise int64, path ...string) int64 {
	if n, found := number(of, path...); found {
		return min(max(0, n), maxReplicas)
	}
	return otherwise
}

// rayComponents: a head, and groups of workers. One replica of a group may be several hosts.
func rayComponents(path ...string) func(*unstructured.Unstructured) ([]Component, error) {
	return func(obj *unstructured.Unstructured) ([]Component, error) {
		spec := object(obj.Object, path...)
		out := []Component{templated("head", 1, object(spec, "headGroupSpec", "template"))}
		for _, group := range items(spec, "workerGroupSpecs") {
			replicas := count(group, count(group, 0, "minReplicas"), "replicas") * count(group, 1, "numOfHosts")
			out = append(out, templated(text(group, "groupName"), replicas, object(group, "template")))
		}
		return out, nil
	}
}

// trainingComponents: spec.mpiReplicaSpecs, spec.pytorchReplicaSpecs and the like have a replica count and a
// template by role.
func trainingComponents(obj *unstructured.Unstructured) (out []Component, err error) {
	spec := object(obj.Object, "spec")
	for _, field := range slices.Sorted(maps.Keys(spec)) {
		if !strings.HasSuffix(field, "ReplicaSpecs") {
			continue
		}
		roles := object(spec, field)
		for _, role := range slices.Sorted(maps.Keys(roles)) {
			of := object(roles, role)
			out = append(out, templated(role, count(of, 1, "replicas"), object(of, "template")))
		}
	}
	return out, nil
}

func jobSetComponents(obj *unstructured.Unstructured) (out []Component, err error) {
	for _, job := range items(obj.Object, "spec", "replicatedJobs") {
		spec := object(job, "template", "spec")
		out = append(out, templated(text(job, "name"), count(job, 1, "replicas")*count(spec, 1, "parallelism"), object(spec, "template")))
	}
	return out, nil
}

// leaderWorkerComponents: each replica is a group of a leader and size-1 workers.
func leaderWorkerComponents(obj *unstructured.Unstructured) ([]Component, error) {
	spec := object(obj.Object, "spec")
	groups, of := count(spec, 1, "replicas"), object(spec, "leaderWorkerTemplate")
	size := max(1, count(of, 1, "size"))
	leader := object(of, "leaderTemplate")
	if leader == nil {
		leader = object(of, "workerTemplate")
	}
	return []Component{templated("leader", groups, leader), templated("worker", groups*(size-1), object(of, "workerTemplate"))}, nil
}

func volcanoComponents(obj *unstructured.Unstructured) (out []Component, err error) {
	for _, task := range items(obj.Object, "spec", "tasks") {
		out = append(out, templated(text(task, "name"), count(task, 1, "replicas"), object(task, "template")))
	}
	return out, nil
}

// flinkComponents: the numbers of task managers follow from the job's parallelism, if they are not given.
func flinkComponents(obj *unstructured.Unstructured) ([]Component, error) {
	spec := object(obj.Object, "spec")
	slots, err := strconv.ParseInt(textOf(object(spec, "flinkConfiguration")["taskmanager.numberOfTaskSlots"]), 10, 64)
	if err != nil || slots < 1 {
		slots = 1
	}
	workers := (count(spec, 1, "job", "parallelism") + slots - 1) / slots
	workers = count(spec, workers, "taskManager", "replicas")
	var out []Component
	for _, part := range []struct {
		name     string
		replicas int64
	}{{"jobManager", count(spec, 1, "jobManager", "replicas")}, {"taskManager", workers}} {
		resources := object(spec, part.name, "resource")
		memory, err := javaMemory(textOf(resources["memory"]))
		if err != nil {
			return nil, fmt.Errorf("spec.%s.resource.memory: %w", part.name, err)
		}
		out = append(out, Component{Name: part.name, Replicas: part.replicas, Requests: map[string]string{"cpu": textOf(resources["cpu"]), "memory": memory}})
	}
	return out, nil
}

// sparkComponents: a driver and executors. Memory is that of the JVM; Spark adds its overhead, a tenth and at
// least 384 MiB unless it is given.
func sparkComponents(path ...string) func(*unstructured.Unstructured) ([]Component, error) {
	return func(obj *unstructured.Unstructured) (out []Component, err error) {
		spec := object(obj.Object, path...)
		for _, role := range []string{"driver", "executor"} {
			of := object(spec, role)
			memory, err := sparkMemory(textOf(of["memory"]), textOf(of["memoryOverhead"]))
			if err != nil {
				return nil, fmt.Errorf("spec.%s: %w", role, err)
			}
			cpu := textOf(of["coreRequest"])
			if cpu == "" {
				cpu = textOf(of["cores"])
			}
			replicas := int64(1)
			if role == "executor" {
				replicas = count(of, 1, "instances")
			}
			out = append(out, Component{Name: role, Replicas: replicas, Requests: map[string]string{"cpu": cpu, "memory": memory}})
		}
		return out, nil
	}
}

func sparkMemory(memory, overhead string) (string, error) {
	bytes, err := javaBytes(memory)
	if err != nil || bytes == 0 {
		return "", err
	}
	extra, err := javaBytes(overhead)
	if err != nil {
		return "", err
	}
	if overhead == "" {
		extra = max(bytes/10, 384<<20)
	}
	return strconv.FormatInt(bytes+extra, 10), nil
}

// javaMemory converts the JVM's notation to a quantity: "2048m" are 2048 MiB, not millibytes.
func javaMemory(s string) (string, error) {
	bytes, err := javaBytes(s)
	if err != nil || bytes == 0 {
		return "", err
	}
	return strconv.FormatInt(bytes, 10), nil
}

func javaBytes(s string) (int64, error) {
	digits := strings.TrimRight(strings.ToLower(strings.ReplaceAll(s, " ", "")), "kmgtib")
	if s == "" {
		return 0, nil
	}
	unit := strings.TrimSuffix(strings.TrimSuffix(strings.ToLower(strings.ReplaceAll(s, " ", ""))[len(digits):], "b"), "i")
	factors := map[string]float64{"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
	n, err := strconv.ParseFloat(digits, 64)
	factor, known := factors[unit]
	if err != nil || !known || n < 0 || n*factor > math.MaxInt64/4 {
		return 0, fmt.Errorf("%q is no amount of memory such as 2g or 512m", s)
	}
	return int64(n * factor), nil
}

// textOf returns a string, or a number as a string.
func textOf(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case int64:
		return strconv.FormatInt(v, 10)
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	return ""
}

// customComponents evaluates the expression of a ResourceInterpretation.
func (c Customization) customComponents(obj *unstructured.Unstructured) ([]Component, error) {
	list, err := c.components.list(obj)
	if err != nil {
		return nil, err
	}
	var out []Component
	for i, entry := range list {
		part, err := component(entry)
		if err != nil {
			return nil, fmt.Errorf("%s: entry %d: %w", c.components.field, i, err)
		}
		out = append(out, part)
	}
	return out, nil
}

func component(entry map[string]any) (Component, error) {
	for _, key := range slices.Sorted(maps.Keys(entry)) {
		if !slices.Contains([]string{"name", "replicas", "template", "requests"}, key) {
			return Component{}, fmt.Errorf("unknown key %q: use name, replicas, template or requests", key)
		}
	}
	part := templated(text(entry, "name"), count(entry, 1, "replicas"), object(entry, "template"))
	requests := object(entry, "requests")
	if (part.Pod == nil) == (requests == nil) {
		return Component{}, fmt.Errorf("set either template, a pod template with a spec, or requests, such as {'cpu': '1', 'memory': '2Gi'}")
	}
	if requests != nil {
		part.Requests = map[string]string{}
		for name, value := range requests {
			if part.Requests[name] = textOf(value); part.Requests[name] == "" {
				return Component{}, fmt.Errorf("requests: %s is %v, want a quantity", name, value)
			}
		}
	}
	return part, nil
}
