package override

import (
	"encoding/base64"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// TestText: the content of a text is patched as JSON or YAML. Errors name the field and nothing of its content.
func TestText(t *testing.T) {
	secret := base64.StdEncoding.EncodeToString([]byte("password: hunter2\nhost: eu\n"))
	for name, tt := range map[string]struct{ kind, data, override, want, problem string }{
		"YAML": {"ConfigMap", "# the region\nregion: none\nreplicas: 3\nlist: [a]\n", `{path: /data/app.yaml, jsonPatch: [{op: replace, path: /region, value: eu}, {op: add, path: /list/-, value: b}]}`,
			"list:\n- a\n- b\nregion: eu\nreplicas: 3\n", ""},
		"JSON":               {"ConfigMap", `{"region": "none", "n": 1}`, `{path: /data/app.yaml, jsonPatch: [{op: replace, path: /region, value: eu}]}`, `{"n":1,"region":"eu"}`, ""},
		"a Secret":           {"Secret", secret, `{path: /data/app.yaml, jsonPatch: [{op: replace, path: /host, value: us}]}`, base64.StdEncoding.EncodeToString([]byte("host: us\npassword: hunter2\n")), ""},
		"no such path":       {"Secret", secret, `{path: /data/app.yaml, jsonPatch: [{op: remove, path: /port}]}`, "", "text /data/app.yaml: jsonPatch does not match the text"},
		"no such field":      {"ConfigMap", "a: b", `{path: /data/other.yaml, jsonPatch: [{op: remove, path: /a}]}`, "", "the object has no text there"},
		"no such map":        {"ConfigMap", "a: b", `{path: /spec/x/y, jsonPatch: [{op: remove, path: /a}]}`, "", "the object has no field spec there"},
		"neither":            {"ConfigMap", "hunter2: [", `{path: /data/app.yaml, jsonPatch: [{op: remove, path: /a}]}`, "", "the text is neither JSON nor one document of YAML"},
		"several documents":  {"ConfigMap", "a: b\n---\nc: d\n", `{path: /data/app.yaml, jsonPatch: [{op: remove, path: /a}]}`, "", "the text is neither JSON nor one document of YAML"},
		"begins with a mark": {"ConfigMap", "---\na: b\nc: d\n", `{path: /data/app.yaml, jsonPatch: [{op: remove, path: /a}]}`, "c: d\n", ""},
	} {
		obj := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": tt.kind, "metadata": map[string]any{"name": "conf", "namespace": "shop"},
			"data": map[string]any{"app.yaml": tt.data}}}
		var o v1alpha1.TextOverride
		read(t, tt.override, &o)
		out, err := Apply(obj, []v1alpha1.Override{{Text: []v1alpha1.TextOverride{o}}})
		if tt.problem != "" {
			if err == nil || !strings.Contains(err.Error(), tt.problem) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got, _, _ := unstructured.NestedString(out.Object, "data", "app.yaml"); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
		if got, _, _ := unstructured.NestedString(obj.Object, "data", "app.yaml"); got != tt.data {
			t.Errorf("%s: the given object is changed", name)
		}
	}
}
