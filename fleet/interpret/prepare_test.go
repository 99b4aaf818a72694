package interpret

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

// TestNoIdentityInTemplates: owners, finalizers and UIDs of the control plane are not applied to members,
// wherever a template has them; fields of the same names that belong to a user are.
func TestNoIdentityInTemplates(t *testing.T) {
	const identity = `ownerReferences: [{apiVersion: v1, kind: Db, name: db, uid: u1, controller: true}], finalizers: [example.org/keep],
      managedFields: [{manager: m}], uid: u2, resourceVersion: "7", generation: 3, creationTimestamp: "2026-01-01T00:00:00Z", selfLink: /x`
	for name, tc := range map[string]struct{ in, want string }{
		"claim templates": {
			`{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: db}, spec: {volumeClaimTemplates: [
      {apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, labels: {a: b}, ` + identity + `}, spec: {accessModes: [ReadWriteOnce]}}]}}`,
			`{volumeClaimTemplates: [{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, labels: {a: b}}, spec: {accessModes: [ReadWriteOnce]}}]}`,
		},
		"pod templates, with ephemeral claims": {
			`{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: db}, spec: {template: {metadata: {annotations: {a: b}, ` + identity + `}, spec: {volumes: [
      {name: v, ephemeral: {volumeClaimTemplate: {metadata: {labels: {a: b}, ` + identity + `}, spec: {}}}}]}}}}`,
			`{template: {metadata: {annotations: {a: b}}, spec: {volumes: [{name: v, ephemeral: {volumeClaimTemplate: {metadata: {labels: {a: b}}, spec: {}}}}]}}}`,
		},
		"manifests in a custom resource": {
			`{apiVersion: example.org/v1, kind: Bundle, metadata: {name: b}, spec: {manifests: [{apiVersion: v1, kind: ConfigMap, metadata: {name: c, ` + identity + `}}]}}`,
			`{manifests: [{apiVersion: v1, kind: ConfigMap, metadata: {name: c}}]}`,
		},
		"a field of that name that is no object's": {
			`{apiVersion: example.org/v1, kind: Album, metadata: {name: a}, spec: {song: {metadata: {uid: isrc, generation: 3, finalizers: [x]}}}}`,
			`{song: {metadata: {uid: isrc, generation: 3, finalizers: [x]}}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			in, want := &unstructured.Unstructured{}, map[string]any{}
			if err := yaml.Unmarshal([]byte(tc.in), &in.Object); err != nil {
				t.Fatal(err)
			}
			if err := yaml.Unmarshal([]byte(tc.want), &want); err != nil {
				t.Fatal(err)
			}
			k, known := BuiltIn().Find(in.GroupVersionKind().GroupKind())
			if !known {
				k = Generic(schema.FromAPIVersionAndKind(in.GetAPIVersion(), in.GetKind()), "things", false, nil)
			}
			before := in.DeepCopy()
			got := k.Prepare(in, "east", nil)
			if diff := cmp.Diff(want, got.Object["spec"]); diff != "" {
				t.Errorf("spec in the member (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, in); diff != "" {
				t.Errorf("the control plane's object was changed:\n%s", diff)
			}
		})
	}
}
