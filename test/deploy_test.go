package test

import (
	"bytes"
	"context"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/atoll-dev/atoll/cli"
	"github.com/atoll-dev/atoll/fleet/expose"
)

// deployments are the folders of deploy/ that can be applied.
var deployments = []string{"base", "postgres", "yugabyte", "stretched"}

// What deploy/ holds is what a cluster takes: all fields are known, Pods may run
// where only restricted ones may, and applying it again changes nothing.
func TestDeployApplies(t *testing.T) {
	f := whole(t)
	const member, namespace = "north", "atoll-system"
	t.Cleanup(func() {
		// Not the namespace: what the fleet has in a member is there as well.
		const kinds = "deployments,statefulsets,services,networkpolicies,poddisruptionbudgets,serviceaccounts,persistentvolumeclaims"
		if _, err := f.tryKubectl(context.Background(), member, "", "delete", kinds, "--namespace", namespace,
			"--selector=app.kubernetes.io/part-of=atoll", "--timeout=60s"); err != nil {
			t.Error(err)
		}
	})
	for _, name := range deployments {
		dir := deployDir(t, name)
		apply := []string{"apply", "--server-side", "--validate=strict", "--field-manager=deploy", "-k", dir}
		f.kubectl(t, member, apply...)
		f.kubectl(t, member, "rollout", "status", "deployment/atoll", "--namespace", namespace, "--timeout=60s")
		if name == "base" {
			f.wantSpread(t, member, namespace)
		}
		before := f.applied(t, member, dir)
		f.kubectl(t, member, apply...)
		for object, fields := range f.applied(t, member, dir) {
			if fields != before[object] {
				t.Errorf("%s: applied again, %s changes: %s, and was %s", name, object, fields, before[object])
			}
		}
	}
}

// wantSpread fails unless the three servers are on three nodes.
func (f *fixture) wantSpread(t *testing.T, member, namespace string) {
	t.Helper()
	pods, err := f.client(t, member).CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=atoll"})
	if err != nil {
		t.Fatal(err)
	}
	nodes := map[string]bool{}
	for _, p := range pods.Items {
		nodes[p.Spec.NodeName] = true
	}
	if len(nodes) != 3 {
		t.Errorf("servers are on %d nodes, not 3: %v", len(nodes), nodes)
	}
}

// applied gives what the last apply left in each object: which fields, and when
// they last changed.
func (f *fixture) applied(t *testing.T, member, dir string) map[string]string {
	t.Helper()
	var list unstructured.UnstructuredList
	if err := json.Unmarshal([]byte(f.kubectl(t, member, "get", "-k", dir, "--show-managed-fields", "--output=json")), &list); err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, object := range list.Items {
		for _, entry := range object.GetManagedFields() {
			if entry.Manager == "deploy" {
				out[object.GetKind()+" "+object.GetName()] = entry.Time.String() + " " + entry.FieldsV1.String()
			}
		}
	}
	if len(out) != len(list.Items) || len(out) == 0 {
		t.Fatalf("%d of %d objects have the applied content", len(out), len(list.Items))
	}
	return out
}

// The servers of all manifests are given flags that there are, and listen where
// Services and probes look for them.
func TestDeployFitsTheServer(t *testing.T) {
	for _, name := range deployments {
		t.Run(name, func(t *testing.T) {
			objects := rendered(t, name)
			var deployment appsv1.Deployment
			convert(t, objects["Deployment atoll"], &deployment)
			if len(deployment.Spec.Template.Spec.Containers) != 1 {
				t.Fatal("the Deployment has not one container")
			}
			container := deployment.Spec.Template.Spec.Containers[0]
			flags := serverFlags(t, container)
			ports := map[string]int32{}
			for _, p := range container.Ports {
				ports[p.Name] = p.ContainerPort
			}
			for flag, port := range map[string]string{"secure-port": "api", "member-port": "members"} {
				if flags(flag) != strconv.Itoa(int(ports[port])) {
					t.Errorf("--%s is %s, and port %q of the container %d", flag, flags(flag), port, ports[port])
				}
			}
			for key, object := range objects {
				if object.GetKind() != "Service" {
					continue
				}
				var service corev1.Service
				convert(t, object, &service)
				if service.Spec.Selector["app.kubernetes.io/name"] != "atoll" {
					continue
				}
				for _, p := range service.Spec.Ports {
					if ports[p.TargetPort.StrVal] == 0 {
						t.Errorf("%s leads to port %q, which the container does not have", key, p.TargetPort.StrVal)
					}
					if service.Spec.Type == corev1.ServiceTypeNodePort && flags("member-port") != strconv.Itoa(int(p.NodePort)) {
						t.Errorf("%s is port %d of nodes, and what servers announce is %s", key, p.NodePort, flags("member-port"))
					}
				}
			}
			mounted := func(file string) bool {
				return slices.ContainsFunc(container.VolumeMounts, func(m corev1.VolumeMount) bool { return strings.HasPrefix(file, m.MountPath+"/") })
			}
			for _, flag := range []string{"token-file"} {
				if !mounted(flags(flag)) {
					t.Errorf("--%s=%s is in no volume", flag, flags(flag))
				}
			}
			if stretched := name == "stretched"; stretched == (flags("cluster") == "") {
				t.Errorf("--cluster=%s", flags("cluster"))
			}
			if !mounted(flags("data-dir") + "/pki") {
				t.Errorf("--data-dir=%s is in no volume, and the image is read-only", flags("data-dir"))
			}
			if problem := providersHaveRoom(deployment.Spec.Template.Spec, flags("data-dir")+"/providers"); problem != "" {
				t.Error(problem)
			}
			// The cluster that runs the servers may be a member, and gets this then. Both
			// use the namespace.
			for _, theirs := range expose.Desired([]expose.Group{{Name: "example.com", SharedAPI: "example", Versions: []string{"v1"}}},
				[]netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:6444")}, []byte("ca")) {
				if key := theirs.GetKind() + " " + theirs.GetName(); objects[key] != nil && key != "Namespace atoll-system" {
					t.Errorf("%s is what a member of shared APIs gets, too", key)
				}
			}
		})
	}
}

// providersHaveRoom returns the problem of the volume for the packages of providers: the data directory
// is in memory and small, and has the keys.
func providersHaveRoom(pod corev1.PodSpec, path string) string {
	for _, mount := range pod.Containers[0].VolumeMounts {
		if mount.MountPath != path {
			continue
		}
		for _, v := range pod.Volumes {
			if v.Name == mount.Name && v.EmptyDir != nil && v.EmptyDir.Medium == "" && v.EmptyDir.SizeLimit != nil && v.EmptyDir.SizeLimit.Value() >= 4<<30 && !mount.ReadOnly {
				return ""
			}
		}
		return "the volume at " + path + " is not an emptyDir on a disk with at least 4 GiB"
	}
	return "no volume is mounted at " + path + ", and the data directory has no room for a provider"
}

// variable is one of a container's environment within its arguments.
var variable = regexp.MustCompile(`\$\(([^)]+)\)`)

// serverFlags parses the container's arguments as the server would, and gives the
// values of flags.
func serverFlags(t *testing.T, container corev1.Container) func(name string) string {
	t.Helper()
	var args []string
	for _, arg := range container.Args {
		args = append(args, variable.ReplaceAllStringFunc(arg, func(v string) string {
			name := variable.FindStringSubmatch(v)[1]
			if !slices.ContainsFunc(container.Env, func(e corev1.EnvVar) bool { return e.Name == name }) {
				t.Errorf("argument %s: there is no variable %s", arg, name)
			}
			return "192.0.2.1"
		}))
	}
	cmd, rest, err := cli.New("atoll").Find(args)
	if err != nil {
		t.Fatal(err)
	}
	if cmd.Name() != "server" {
		t.Fatalf("the container runs atoll %s", cmd.Name())
	}
	if err := cmd.ParseFlags(rest); err != nil {
		t.Fatal(err)
	}
	if extra := cmd.Flags().Args(); len(extra) > 0 {
		t.Errorf("arguments that are no flags: %q", extra)
	}
	return func(name string) string {
		flag := cmd.Flags().Lookup(name)
		if flag == nil {
			t.Fatalf("atoll server has no --%s", name)
		}
		return flag.Value.String()
	}
}

// rendered gives the objects of a folder of deploy/, by kind and name.
func rendered(t *testing.T, name string) map[string]*unstructured.Unstructured {
	t.Helper()
	out, err := (&fixture{dir: t.TempDir()}).run(t.Context(), "kubectl", os.DevNull, "", "kustomize", deployDir(t, name))
	if err != nil {
		t.Fatal(err)
	}
	objects := map[string]*unstructured.Unstructured{}
	for documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader([]byte(out)), 4096); ; {
		object := &unstructured.Unstructured{}
		if err := documents.Decode(object); err != nil {
			break
		}
		objects[object.GetKind()+" "+object.GetName()] = object
	}
	if len(objects) < 5 {
		t.Fatalf("%s has only %d objects:\n%s", name, len(objects), out)
	}
	return objects
}

func deployDir(t *testing.T, name string) string {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join("..", "deploy", name))
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func convert(t *testing.T, from *unstructured.Unstructured, to any) {
	t.Helper()
	if from == nil {
		t.Fatalf("no such object: %T", to)
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(from.Object, to); err != nil {
		t.Fatal(err)
	}
}
