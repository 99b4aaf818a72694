package override

import (
	"encoding/json"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

const web = `
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
  namespace: shop
  labels: {app: web, fleet.atoll.dev/managed: "true"}
spec:
  replicas: 3
  template:
    spec:
      initContainers: [{name: init, image: busybox}]
      containers:
      - {name: web, image: "nginx:1.27", env: [{name: REGION, value: none}, {name: KEEP, value: "1"}]}
      - {name: side, image: "ghcr.io/acme/side@sha256:abc"}
`

func read(t *testing.T, text string, into any) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(text), into); err != nil {
		t.Fatal(err)
	}
}

func deployment(t *testing.T) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	read(t, web, &u.Object)
	return u
}

// TestApply: an override, and the fields of the result.
func TestApply(t *testing.T) {
	tests := []struct{ name, override, want string }{
		{"nothing", `[]`, `init=busybox web=nginx:1.27 side=ghcr.io/acme/side@sha256:abc env=REGION:none,KEEP:1 replicas=3 labels=app:web`},
		{"a registry for all", `[{images: [{registry: "mirror.eu:5000/hub"}]}]`,
			`init=mirror.eu:5000/hub/library/busybox web=mirror.eu:5000/hub/library/nginx:1.27 side=mirror.eu:5000/hub/acme/side@sha256:abc env=REGION:none,KEEP:1 replicas=3 labels=app:web`},
		{"one registry instead of another", `[{images: [{image: docker.io, registry: mirror.eu}]}]`,
			`init=mirror.eu/library/busybox web=mirror.eu/library/nginx:1.27 side=ghcr.io/acme/side@sha256:abc env=REGION:none,KEEP:1 replicas=3 labels=app:web`},
		{"one image", `[{images: [{image: nginx, tag: "1.28"}]}]`,
			`init=busybox web=docker.io/library/nginx:1.28 side=ghcr.io/acme/side@sha256:abc env=REGION:none,KEEP:1 replicas=3 labels=app:web`},
		{"variables", `[{env: [{name: REGION, value: eu, containers: [web]}, {name: NEW, value: x, containers: [web]}]}]`,
			`init=busybox web=nginx:1.27 side=ghcr.io/acme/side@sha256:abc env=REGION:eu,KEEP:1,NEW:x replicas=3 labels=app:web`},
		{"a patch, after the rest", `[{env: [{name: REGION, value: eu, containers: [web]}], jsonPatch: [{op: replace, path: /spec/replicas, value: 7}, {op: add, path: /metadata/labels/tier, value: gold}, {op: remove, path: /spec/template/spec/containers/0/env/1}]}]`,
			`init=busybox web=nginx:1.27 side=ghcr.io/acme/side@sha256:abc env=REGION:eu replicas=7 labels=app:web,tier:gold`},
		{"one after another", `[{jsonPatch: [{op: replace, path: /spec/replicas, value: 7}]}, {jsonPatch: [{op: test, path: /spec/replicas, value: 7}, {op: replace, path: /spec/replicas, value: 8}]}]`,
			`init=busybox web=nginx:1.27 side=ghcr.io/acme/side@sha256:abc env=REGION:none,KEEP:1 replicas=8 labels=app:web`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var overrides []v1alpha1.Override
			read(t, tt.override, &overrides)
			obj := deployment(t)
			before, _ := json.Marshal(obj)
			out, err := Apply(obj, overrides)
			if err != nil {
				t.Fatal(err)
			}
			if got := describe(out); got != tt.want {
				t.Errorf("got\n%s, want\n%s", got, tt.want)
			}
			if after, _ := json.Marshal(obj); string(after) != string(before) {
				t.Error("the object given was changed")
			}
		})
	}
}

// TestApplyToPod: the containers of a Pod are found, too.
func TestApplyToPod(t *testing.T) {
	pod := &unstructured.Unstructured{}
	read(t, `{apiVersion: v1, kind: Pod, metadata: {name: web}, spec: {containers: [{name: web, image: "nginx:1.27"}, {name: side, image: "ghcr.io/acme/side"}]}}`, &pod.Object)
	var overrides []v1alpha1.Override
	read(t, `[{images: [{registry: mirror.eu}]}]`, &overrides)
	out, err := Apply(pod, overrides)
	if err != nil {
		t.Fatal(err)
	}
	var images []string
	containers, _, _ := unstructured.NestedSlice(out.Object, "spec", "containers")
	for _, c := range containers {
		c, _ := c.(map[string]any)
		images = append(images, c["image"].(string))
	}
	if got := strings.Join(images, " "); got != "mirror.eu/library/nginx:1.27 mirror.eu/acme/side" {
		t.Errorf("the images are %s", got)
	}
}

func describe(obj *unstructured.Unstructured) string {
	var d struct {
		Metadata struct{ Labels map[string]string }
		Spec     struct {
			Replicas int
			Template struct {
				Spec struct{ InitContainers, Containers []container }
			}
		}
	}
	text, err := json.Marshal(obj.Object)
	if err == nil {
		err = json.Unmarshal(text, &d) // field names in any case
	}
	if err != nil {
		return err.Error()
	}
	var parts, env []string
	pod := d.Spec.Template.Spec
	for _, c := range append(pod.InitContainers, pod.Containers...) {
		parts = append(parts, c.Name+"="+c.Image)
	}
	for _, e := range pod.Containers[0].Env {
		env = append(env, e.Name+":"+e.Value)
	}
	labels := "app:" + d.Metadata.Labels["app"]
	if tier := d.Metadata.Labels["tier"]; tier != "" {
		labels += ",tier:" + tier
	}
	replicas, _ := json.Marshal(d.Spec.Replicas)
	return strings.Join(parts, " ") + " env=" + strings.Join(env, ",") + " replicas=" + string(replicas) + " labels=" + labels
}

type container struct {
	Name, Image string
	Env         []struct{ Name, Value string }
}

func TestRefused(t *testing.T) {
	tests := []struct{ name, override, want string }{
		{"a missing path", `[{jsonPatch: [{op: replace, path: /spec/nothing/here, value: 1}]}]`, "does not match"},
		{"another name", `[{jsonPatch: [{op: replace, path: /metadata/name, value: other}]}]`, "its name"},
		{"another kind", `[{jsonPatch: [{op: replace, path: /kind, value: Secret}]}]`, "its kind"},
		{"an owner", `[{jsonPatch: [{op: add, path: /metadata/ownerReferences, value: []}]}]`, "metadata other than"},
		{"a mark of the fleet", `[{jsonPatch: [{op: remove, path: /metadata/labels/fleet.atoll.dev~1managed}]}]`, "the fleet's own"},
		{"all labels", `[{jsonPatch: [{op: remove, path: /metadata/labels}]}]`, "the fleet's own"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var overrides []v1alpha1.Override
			read(t, tt.override, &overrides)
			_, err := Apply(deployment(t), overrides)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want an error about %q", err, tt.want)
			}
		})
	}
}
