package interpret

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// TestAddedFields: which fields of a member's object count as added by people, by who owns them.
func TestAddedFields(t *testing.T) {
	const ours = `{"f:spec":{"f:replicas":{},"f:template":{"f:spec":{"f:containers":{"k:{\"name\":\"c\"}":{".":{},"f:image":{}}}}}}}`
	for name, tt := range map[string]struct {
		manager, subresource, fields string
		want                         []string
	}{
		"a field that no one else has":     {"kubectl-patch", "", `{"f:spec":{"f:minReadySeconds":{}}}`, []string{"spec.minReadySeconds"}},
		"a container":                      {"kubectl-edit", "", `{"f:spec":{"f:template":{"f:spec":{"f:containers":{"k:{\"name\":\"d\"}":{".":{},"f:image":{}}}}}}}`, []string{`spec.template.spec.containers[name="d"].image`}},
		"a key of a ConfigMap":             {"k9s", "", `{"f:data":{"f:added":{}}}`, []string{"data.added"}},
		"a field that is desired as well":  {"kubectl-edit", "", `{"f:spec":{"f:template":{"f:spec":{"f:containers":{"k:{\"name\":\"c\"}":{"f:image":{}}}}}}}`, nil},
		"a value of ours that was changed": {"kubectl-edit", "", `{"f:spec":{"f:paused":{}}}`, nil},
		"the replica count":                {"kubectl-edit", "", `{"f:spec":{"f:replicas":{}}}`, nil},
		"a subresource":                    {"kubectl", "scale", `{"f:spec":{"f:minReadySeconds":{}}}`, nil},
		"labels and annotations":           {"kubectl-label", "", `{"f:metadata":{"f:labels":{"f:a":{}}}}`, nil},
		"a requested restart":              {"kubectl-rollout", "", `{"f:spec":{"f:template":{"f:metadata":{"f:annotations":{".":{},"f:kubectl.kubernetes.io/restartedAt":{}}}}}}`, nil},
		"a controller of the cluster":      {"cainjector", "", `{"f:spec":{"f:minReadySeconds":{}}}`, nil},
		"admission of the syncer's writes": {"atoll", "", `{"f:spec":{"f:minReadySeconds":{}}}`, nil},
		"managed fields without fields":    {"kubectl-edit", "", ``, nil},
	} {
		t.Run(name, func(t *testing.T) {
			obj := &unstructured.Unstructured{Object: map[string]any{}}
			desired := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"paused": true, "template": map[string]any{"spec": map[string]any{
				"containers": []any{map[string]any{"name": "c", "image": "one"}}}}}}}
			obj.SetManagedFields([]metav1.ManagedFieldsEntry{
				{Manager: "atoll", Operation: metav1.ManagedFieldsOperationApply, FieldsV1: metav1.NewFieldsV1(ours)},
				{Manager: tt.manager, Operation: metav1.ManagedFieldsOperationUpdate, Subresource: tt.subresource, FieldsV1: metav1.NewFieldsV1(tt.fields)},
			})
			k := KindInfo{Divided: true}
			// A manager has one entry for each version and operation.
			obj.SetManagedFields(append(obj.GetManagedFields(), metav1.ManagedFieldsEntry{Manager: tt.manager, Operation: metav1.ManagedFieldsOperationApply,
				FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{"f:b":{}}}}`)}))
			added, is := k.AddedFields(obj, desired, "atoll")
			if is != (tt.want != nil) || !slices.Equal(added.Paths, tt.want) {
				t.Fatalf("added %q, want %q", added.Paths, tt.want)
			}
			if !is {
				return
			}
			entries, ok := TakeOver(obj, added, "atoll")
			if !ok || len(entries) != 2 || entries[0].Manager != "atoll" {
				t.Fatalf("after the takeover the managers are %v", entries)
			}
			obj.SetManagedFields(entries)
			if again, is := k.AddedFields(obj, desired, "atoll"); is {
				t.Errorf("after the takeover %q is still added", again.Paths)
			}
		})
	}
}
