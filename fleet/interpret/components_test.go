package interpret

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// TestWellKnownComponents: the parts of a kind, each with its replicas and the CPU that one pod requests.
func TestWellKnownComponents(t *testing.T) {
	template := func(cpu string) string {
		return `{spec: {containers: [{name: c, resources: {requests: {cpu: "` + cpu + `"}}}]}}`
	}
	for manifest, want := range map[string]string{
		`apiVersion: ray.io/v1
kind: RayCluster
spec:
  headGroupSpec: {template: ` + template("2") + `}
  workerGroupSpecs:
  - {groupName: small, replicas: 3, template: ` + template("1") + `}
  - {groupName: gpu, replicas: 2, numOfHosts: 4, template: ` + template("8") + `}
  - {groupName: idle, minReplicas: 1, template: ` + template("4") + `}`: "head 1 x 2, small 3 x 1, gpu 8 x 8, idle 1 x 4",
		`apiVersion: ray.io/v1
kind: RayJob
spec: {rayClusterSpec: {headGroupSpec: {template: ` + template("1") + `}}}`: "head 1 x 1",
		`apiVersion: kubeflow.org/v2beta1
kind: MPIJob
spec: {mpiReplicaSpecs: {Launcher: {template: ` + template("1") + `}, Worker: {replicas: 4, template: ` + template("2") + `}}}`: "Launcher 1 x 1, Worker 4 x 2",
		`apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
spec: {replicatedJobs: [{name: w, replicas: 2, template: {spec: {parallelism: 3, template: ` + template("1") + `}}}]}`: "w 6 x 1",
		`apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
spec: {replicas: 2, leaderWorkerTemplate: {size: 4, workerTemplate: ` + template("1") + `}}`: "leader 2 x 1, worker 6 x 1",
		`apiVersion: batch.volcano.sh/v1alpha1
kind: Job
spec: {tasks: [{name: t, replicas: 5, template: ` + template("1") + `}]}`: "t 5 x 1",
		`apiVersion: flink.apache.org/v1beta1
kind: FlinkDeployment
spec:
  flinkConfiguration: {taskmanager.numberOfTaskSlots: "2"}
  jobManager: {resource: {cpu: 1, memory: 2048m}}
  taskManager: {resource: {cpu: 0.5, memory: "1 g"}}
  job: {parallelism: 5}`: "jobManager 1 x 1 2147483648, taskManager 3 x 0.5 1073741824",
		`apiVersion: sparkoperator.k8s.io/v1beta2
kind: SparkApplication
spec: {driver: {cores: 1, memory: 512m}, executor: {instances: 3, coreRequest: 500m, memory: 8g, memoryOverhead: 1g}}`: "driver 1 x 1 939524096, executor 3 x 500m 9663676416",
		`apiVersion: ray.io/v1
kind: RayCluster
spec: {workerGroupSpecs: [{groupName: many, replicas: 9000000000000, numOfHosts: 9000000000000}]}`: "head 1 x -, many 1048576 x -",
		`apiVersion: flink.apache.org/v1beta1
kind: FlinkDeployment
spec: {jobManager: {resource: {memory: plenty}}}`: `error: read the components of FlinkDeployment a: spec.jobManager.resource.memory: "plenty" is no amount of memory such as 2g or 512m`,
	} {
		obj := parse(t, manifest)
		obj.SetName("a")
		k := Generic(obj.GroupVersionKind(), "things", false, &Scale{Replicas: []string{"spec", "replicas"}})
		if k.Divided || k.DefaultMode != Single {
			t.Errorf("%s runs %s, divided: %v", k.Kind, k.DefaultMode, k.Divided)
		}
		if got := describeComponents(k, manifest, t); got != want {
			t.Errorf("%s\ngot  %s\nwant %s", manifest, got, want)
		}
	}
	if Generic(schema.GroupVersionKind{Group: "batch", Version: "v1", Kind: "Job"}, "jobs", false, nil).HasComponents() {
		t.Error("a Job of Kubernetes has none")
	}
}

func describeComponents(k KindInfo, manifest string, t *testing.T) string {
	t.Helper()
	obj := parse(t, manifest)
	obj.SetName("a")
	parts, err := k.Components(obj)
	if err != nil {
		return "error: " + err.Error()
	}
	var out []string
	for _, part := range parts {
		cpu := part.Requests["cpu"]
		if containers := items(part.Pod, "containers"); len(containers) > 0 {
			cpu = text(containers[0], "resources", "requests", "cpu")
		}
		if cpu == "" {
			cpu = "-"
		}
		out = append(out, strings.TrimSpace(fmt.Sprintf("%s %d x %s %s", part.Name, part.Replicas, cpu, part.Requests["memory"])))
	}
	return strings.Join(out, ", ")
}

// TestComponentsOfACustomization: an expression returns the parts of other kinds; the object needs what their
// pods reference.
func TestComponentsOfACustomization(t *testing.T) {
	in := func(expression string) *v1alpha1.ResourceInterpretation {
		out := &v1alpha1.ResourceInterpretation{Spec: v1alpha1.ResourceInterpretationSpec{
			Target: v1alpha1.InterpretationTarget{APIVersion: "example.com/v1", Kind: "Brain"}, Components: expression}}
		out.Name = "brains"
		return out
	}
	const manifest = `{apiVersion: example.com/v1, kind: Brain, metadata: {namespace: shop}, spec: {size: 3, pod: {spec: {containers: [{name: c, envFrom: [{secretRef: {name: s}}], resources: {requests: {cpu: "2"}}}]}}}}`
	for expression, want := range map[string]string{
		`[{'name': 'left', 'replicas': self.spec.size, 'template': self.spec.pod}, {'name': 'right', 'requests': {'cpu': 1, 'memory': '1Gi'}}]`: "left 3 x 2, right 1 x 1 1Gi",
		`[{'name': 'a'}]`:                             "error: read the components of Brain a: spec.components: entry 0: set either template, a pod template with a spec, or requests, such as {'cpu': '1', 'memory': '2Gi'}",
		`[{'name': 'a', 'count': 1}]`:                 `error: read the components of Brain a: spec.components: entry 0: unknown key "count": use name, replicas, template or requests`,
		`[{'name': 'a', 'requests': {'cpu': 'two'}}]`: `error: read the components of Brain a: component a: cpu is "two", want a quantity such as 500m or 2Gi`,
	} {
		c, err := ParseCustomization(in(expression))
		if err != nil {
			t.Errorf("%s: %v", expression, err)
			continue
		}
		k := c.applyTo(Generic(schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Brain"}, "brains", false, nil), nil)
		if got := describeComponents(k, manifest, t); got != want {
			t.Errorf("%s\ngot  %s\nwant %s", expression, got, want)
		}
		if needs, err := k.Needs(parse(t, manifest)); !strings.HasPrefix(want, "error") && (err != nil || !slices.Contains(needs, refer("", "Secret", "shop", "s"))) {
			t.Errorf("%s needs %v: %v", expression, needs, err)
		}
	}
	wrong := in(`[]`)
	wrong.Spec.Mode = "Divided"
	if _, err := ParseCustomization(wrong); err == nil || !strings.Contains(err.Error(), "spec.components: an object with components cannot be divided") {
		t.Error(err)
	}
}
