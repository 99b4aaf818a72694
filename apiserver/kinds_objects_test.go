package apiserver_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
)

var (
	shopWidgets  = schema.GroupVersionResource{Group: "shop.example.com", Version: "v1", Resource: "widgets"}
	shopPlains   = schema.GroupVersionResource{Group: "shop.example.com", Version: "v1", Resource: "plains"}
	worldRegions = schema.GroupVersionResource{Group: "world.example.com", Version: "v2", Resource: "regions"}
)

// widget returns a Widget with a name and a spec in JSON.
func widget(name, spec string) *unstructured.Unstructured { return of("Widget", name, spec) }

func of(kind, name, spec string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	text := fmt.Sprintf(`{"apiVersion":"shop.example.com/v1","kind":%q,"metadata":{"name":%q},"spec":%s}`, kind, name, spec)
	if err := json.Unmarshal([]byte(text), u); err != nil {
		panic(err) // the test's own text is invalid
	}
	return u
}

func dynamicClient(t *testing.T, config *rest.Config) *dynamic.DynamicClient {
	t.Helper()
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// at returns the value at a path such as spec.size, as JSON.
func at(u *unstructured.Unstructured, path string) string {
	if u == nil {
		return "no object"
	}
	value, ok, err := unstructured.NestedFieldNoCopy(u.Object, strings.Split(path, ".")...)
	if err != nil || !ok {
		return "nothing"
	}
	text, _ := json.Marshal(value)
	return string(text)
}

// wantAt compares values at paths, passed as pairs.
func wantAt(t *testing.T, u *unstructured.Unstructured, pathsAndValues ...string) {
	t.Helper()
	for i := 0; i < len(pathsAndValues); i += 2 {
		if got := at(u, pathsAndValues[i]); got != pathsAndValues[i+1] {
			t.Errorf("%s is %s, want %s", pathsAndValues[i], got, pathsAndValues[i+1])
		}
	}
}

// wantRefused checks the code and the message of an error.
func wantRefused(t *testing.T, err error, code int32, parts ...string) {
	t.Helper()
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Code != code {
		t.Errorf("got %v, want code %d", err, code)
		return
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q lacks %q", err, part)
		}
	}
}

// TestKindsWithoutCRDs: objects of these kinds behave like custom resources.
func TestKindsWithoutCRDs(t *testing.T) {
	t.Parallel()
	server := serveKinds(t, newSource(shops()...), makeFiles(t))
	for name, test := range map[string]func(*testing.T, running){
		"generation and status": kindsGeneration,
		"validation errors":     kindsRefusals,
		"unknown fields":        kindsUnknownFields,
		"patches":               kindsPatches,
		"server-side apply":     kindsApply,
		"status is applied":     kindsApplyStatus,
		"deletion":              kindsDeletion,
		"dry runs":              kindsDryRun,
		"lists":                 kindsLists,
		"media types":           kindsMediaTypes,
		"cluster scope":         kindsClusterScope,
	} {
		t.Run(name, func(t *testing.T) { test(t, server) })
	}
}

func kindsGeneration(t *testing.T, s running) {
	client := dynamicClient(t, s.config).Resource(shopWidgets).Namespace("default")
	w := widget("generation", `{"size":1}`)
	w.Object["status"] = map[string]any{"phase": "Faked"}
	w, err := client.Create(t.Context(), w, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	wantAt(t, w, "metadata.generation", "1", "status", "nothing", "spec.color", `"blue"`) // the last by Prepare

	w.SetLabels(map[string]string{"a": "b"})
	if w, err = client.Update(t.Context(), w, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	wantAt(t, w, "metadata.generation", "1", "metadata.labels.a", `"b"`)

	_ = unstructured.SetNestedField(w.Object, int64(2), "spec", "size")
	w.Object["status"] = map[string]any{"phase": "Faked"}
	stale := w.DeepCopy()
	if w, err = client.Update(t.Context(), w, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	wantAt(t, w, "metadata.generation", "2", "status", "nothing")
	_, err = client.Update(t.Context(), stale, metav1.UpdateOptions{})
	wantRefused(t, err, http.StatusConflict)

	_ = unstructured.SetNestedField(w.Object, int64(3), "spec", "size")
	w.SetLabels(nil)
	w.Object["status"] = map[string]any{"phase": "Ready"}
	if w, err = client.UpdateStatus(t.Context(), w, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	wantAt(t, w, "metadata.generation", "2", "status.phase", `"Ready"`, "spec.size", "2", "metadata.labels.a", `"b"`)
	w.SetResourceVersion("")
	_, err = client.Update(t.Context(), w, metav1.UpdateOptions{})
	wantRefused(t, err, http.StatusUnprocessableEntity, "resourceVersion")
}

func kindsRefusals(t *testing.T, s running) {
	var heard warnings
	config := rest.CopyConfig(s.config)
	config.WarningHandler = &heard
	all := dynamicClient(t, config)
	client := all.Resource(shopWidgets).Namespace("default")
	create := func(w *unstructured.Unstructured) error {
		_, err := client.Create(t.Context(), w, metav1.CreateOptions{})
		return err
	}
	wantRefused(t, create(widget("refused", `{"size":1001}`)), http.StatusUnprocessableEntity, `Widget.shop.example.com "refused" is invalid`, "spec.size", "at most 1000")
	wantRefused(t, create(widget("refused", `{"size":"large"}`)), http.StatusUnprocessableEntity, "spec.size")
	wantRefused(t, create(widget("refused", `[1]`)), http.StatusUnprocessableEntity, "spec")
	wantRefused(t, create(widget("refused", `{"parts":[{"name":"a"},{"name":"a"}]}`)), http.StatusUnprocessableEntity, "spec.parts")
	wantRefused(t, create(widget("No_Name", `{}`)), http.StatusUnprocessableEntity, "metadata.name")
	wantRefused(t, create(of("Gadget", "refused", `{}`)), http.StatusUnprocessableEntity, "must be Widget")
	other := widget("refused", `{}`)
	other.SetAPIVersion("shop.example.com/v2")
	wantRefused(t, create(other), http.StatusBadRequest)
	_, err := all.Resource(shopWidgets).Namespace("nowhere").Create(t.Context(), widget("refused", `{}`), metav1.CreateOptions{})
	wantRefused(t, err, http.StatusNotFound, `namespaces "nowhere" not found`)
	_, err = client.Get(t.Context(), "refused", metav1.GetOptions{})
	wantRefused(t, err, http.StatusNotFound)
	if said := heard.take(); said != "" {
		t.Errorf("unexpected warnings %q", said)
	}

	if err := create(widget("large", `{"size":101}`)); err != nil {
		t.Fatal(err)
	}
	wantRefused(t, create(widget("large", `{}`)), http.StatusConflict, "already exists")
	if said := heard.take(); said != "spec.size: this is large" {
		t.Errorf("warnings %q, want those of Validate", said)
	}
	patch := func(body string) error {
		_, err := client.Patch(t.Context(), "large", types.MergePatchType, []byte(body), metav1.PatchOptions{})
		return err
	}
	wantRefused(t, patch(`{"spec":{"size":100}}`), http.StatusUnprocessableEntity, "widgets do not shrink")
	// Changes outside the content are not validated again.
	heard.take()
	if err := patch(`{"metadata":{"labels":{"a":"b"}}}`); err != nil || heard.take() != "" {
		t.Errorf("a label change was validated: %v", err)
	}
}

func kindsUnknownFields(t *testing.T, s running) {
	var heard warnings
	config := rest.CopyConfig(s.config)
	config.WarningHandler = &heard
	client := dynamicClient(t, config).Resource(shopWidgets).Namespace("default")
	misspelt := `{"size":1,"colour":"red","labels":{"any":"name"},"parts":[{"name":"a","wait":3}]}`
	for _, c := range []struct{ name, validation string }{{"strict", "Strict"}, {"warn", "Warn"}, {"default", ""}, {"ignore", "Ignore"}} {
		w := widget("unknown-"+c.name, misspelt)
		w.Object["extra"] = "x"
		_ = unstructured.SetNestedField(w.Object, "x", "metadata", "nickname")
		made, err := client.Create(t.Context(), w, metav1.CreateOptions{FieldValidation: c.validation})
		said := heard.take()
		if c.validation == "Strict" {
			wantRefused(t, err, http.StatusBadRequest, "spec.colour", "spec.parts[0].wait", "extra", "metadata.nickname")
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		wantAt(t, made, "spec.colour", "nothing", "extra", "nothing", "spec.labels.any", `"name"`, "spec.parts", `[{"name":"a"}]`)
		for _, part := range []string{`unknown field "spec.colour"`, `unknown field "spec.parts[0].wait"`, `unknown field "extra"`, `unknown field "metadata.nickname"`} {
			if !strings.Contains(said, part) {
				t.Errorf("%s: warnings %q lack %q", c.name, said, part)
			}
		}
	}
	_, err := client.Patch(t.Context(), "unknown-warn", types.MergePatchType, []byte(`{"spec":{"colour":"red"}}`), metav1.PatchOptions{FieldValidation: "Strict"})
	wantRefused(t, err, http.StatusUnprocessableEntity, "spec.colour")
	_, err = client.Apply(t.Context(), "unknown-apply", widget("unknown-apply", misspelt), metav1.ApplyOptions{FieldManager: "me"})
	if err == nil || !strings.Contains(err.Error(), "colour") {
		t.Errorf("applied with an unknown field: %v", err)
	}
}

func kindsPatches(t *testing.T, s running) {
	client := dynamicClient(t, s.config).Resource(shopWidgets).Namespace("default")
	if _, err := client.Create(t.Context(), widget("patched", `{"size":1}`), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w, err := client.Patch(t.Context(), "patched", types.MergePatchType, []byte(`{"spec":{"size":2,"color":null}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	wantAt(t, w, "spec.size", "2", "spec.color", `"blue"`, "metadata.generation", "2")
	w, err = client.Patch(t.Context(), "patched", types.JSONPatchType, []byte(`[{"op":"test","path":"/spec/size","value":2},{"op":"replace","path":"/spec/size","value":3}]`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	wantAt(t, w, "spec.size", "3", "metadata.generation", "3")
	_, err = client.Patch(t.Context(), "patched", types.StrategicMergePatchType, []byte(`{}`), metav1.PatchOptions{})
	wantRefused(t, err, http.StatusUnsupportedMediaType)
	w, err = client.Patch(t.Context(), "patched", types.MergePatchType, []byte(`{"spec":{"size":9},"status":{"phase":"Ready"}}`), metav1.PatchOptions{}, "status")
	if err != nil {
		t.Fatal(err)
	}
	wantAt(t, w, "spec.size", "3", "status.phase", `"Ready"`, "metadata.generation", "3")
	_, err = client.Patch(t.Context(), "patched", types.MergePatchType, []byte(`{"status":{"phase":7}}`), metav1.PatchOptions{}, "status")
	wantRefused(t, err, http.StatusUnprocessableEntity, "status.phase")
	_, err = client.Get(t.Context(), "patched", metav1.GetOptions{}, "scale")
	wantRefused(t, err, http.StatusNotFound)
	err = dynamicClient(t, s.config).Resource(shopWidgets).Namespace("default").Delete(t.Context(), "patched", metav1.DeleteOptions{}, "status")
	wantRefused(t, err, http.StatusMethodNotAllowed)
	plain := dynamicClient(t, s.config).Resource(shopPlains).Namespace("default")
	if _, err := plain.Create(t.Context(), of("Plain", "one", `{"size":1}`), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err = plain.Get(t.Context(), "one", metav1.GetOptions{}, "status")
	wantRefused(t, err, http.StatusNotFound)
}

func kindsApply(t *testing.T, s running) {
	client := dynamicClient(t, s.config).Resource(shopWidgets).Namespace("default")
	apply := func(manager, spec string, force bool) (*unstructured.Unstructured, error) {
		return client.Apply(t.Context(), "applied", widget("applied", spec), metav1.ApplyOptions{FieldManager: manager, Force: force})
	}
	w, err := apply("one", `{"size":1,"parts":[{"name":"a","weight":1}]}`, false)
	if err != nil {
		t.Fatal(err)
	}
	wantAt(t, w, "metadata.generation", "1")
	if w, err = apply("two", `{"parts":[{"name":"b","weight":2}]}`, false); err != nil {
		t.Fatal(err)
	}
	wantAt(t, w, "spec.parts", `[{"name":"a","weight":1},{"name":"b","weight":2}]`)
	_, err = apply("two", `{"size":2}`, false)
	wantRefused(t, err, http.StatusConflict, ".spec.size", "one")
	if w, err = apply("two", `{"size":2}`, true); err != nil {
		t.Fatal(err)
	}
	wantAt(t, w, "spec.size", "2", "spec.parts", `[{"name":"a","weight":1}]`)
	// A field that its manager no longer applies is removed, and an apply without
	// changes does not write.
	if w, err = apply("one", `{}`, false); err != nil {
		t.Fatal(err)
	}
	wantAt(t, w, "spec.parts", "nothing", "spec.size", "2")
	again, err := apply("one", `{}`, false)
	if err != nil || again.GetResourceVersion() != w.GetResourceVersion() {
		t.Errorf("applying the same again wrote: %v", err)
	}
	managers := map[string]bool{}
	for _, entry := range again.GetManagedFields() {
		managers[entry.Manager] = true
	}
	if !managers["two"] {
		t.Errorf("managed fields are %v", again.GetManagedFields())
	}
}

func kindsApplyStatus(t *testing.T, s running) {
	client := dynamicClient(t, s.config).Resource(shopWidgets).Namespace("default")
	status := widget("status-applied", `{"size":7}`)
	status.Object["status"] = map[string]any{"phase": "Ready"}
	_, err := client.ApplyStatus(t.Context(), "status-applied", status, metav1.ApplyOptions{FieldManager: "controller"})
	wantRefused(t, err, http.StatusNotFound)
	if _, err := client.Apply(t.Context(), "status-applied", widget("status-applied", `{"size":1}`), metav1.ApplyOptions{FieldManager: "me"}); err != nil {
		t.Fatal(err)
	}
	w, err := client.ApplyStatus(t.Context(), "status-applied", status, metav1.ApplyOptions{FieldManager: "controller"})
	if err != nil {
		t.Fatal(err)
	}
	wantAt(t, w, "status.phase", `"Ready"`, "spec.size", "1", "metadata.generation", "1")
}

func kindsDeletion(t *testing.T, s running) {
	client := dynamicClient(t, s.config).Resource(shopWidgets).Namespace("default")
	w := widget("deleted", `{"size":1}`)
	w.SetFinalizers([]string{"example.com/hold"})
	w, err := client.Create(t.Context(), w, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	err = client.Delete(t.Context(), "deleted", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr.To(types.UID("another"))}})
	wantRefused(t, err, http.StatusConflict)
	if err := client.Delete(t.Context(), "deleted", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr.To(w.GetUID())}}); err != nil {
		t.Fatal(err)
	}
	if w, err = client.Get(t.Context(), "deleted", metav1.GetOptions{}); err != nil || w.GetDeletionTimestamp() == nil {
		t.Fatalf("with a finalizer: %v, %v", w, err)
	}
	if _, err := client.Patch(t.Context(), "deleted", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err = client.Get(t.Context(), "deleted", metav1.GetOptions{})
	wantRefused(t, err, http.StatusNotFound)

	for _, name := range []string{"many-1", "many-2", "few-1"} {
		w := widget(name, `{"size":1}`)
		w.SetLabels(map[string]string{"group": name[:3]})
		if _, err := client.Create(t.Context(), w, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := client.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "group=man"}); err != nil {
		t.Fatal(err)
	}
	left, err := client.List(t.Context(), metav1.ListOptions{LabelSelector: "group"})
	if err != nil || len(left.Items) != 1 || left.Items[0].GetName() != "few-1" {
		t.Errorf("left are %v, %v", left, err)
	}
}

func kindsDryRun(t *testing.T, s running) {
	client := dynamicClient(t, s.config).Resource(shopWidgets).Namespace("default")
	dry := []string{metav1.DryRunAll}
	w, err := client.Create(t.Context(), widget("dry", `{"size":1}`), metav1.CreateOptions{DryRun: dry})
	if err != nil {
		t.Fatal(err)
	}
	wantAt(t, w, "spec.color", `"blue"`)
	_, err = client.Create(t.Context(), widget("dry", `{"size":1001}`), metav1.CreateOptions{DryRun: dry})
	wantRefused(t, err, http.StatusUnprocessableEntity, "at most 1000")
	_, err = client.Get(t.Context(), "dry", metav1.GetOptions{})
	wantRefused(t, err, http.StatusNotFound)
	if _, err := client.Create(t.Context(), widget("dry", `{"size":1}`), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if w, err = client.Apply(t.Context(), "dry", widget("dry", `{"size":5}`), metav1.ApplyOptions{FieldManager: "me", Force: true, DryRun: dry}); err != nil {
		t.Fatal(err)
	}
	wantAt(t, w, "spec.size", "5")
	if err := client.Delete(t.Context(), "dry", metav1.DeleteOptions{DryRun: dry}); err != nil {
		t.Fatal(err)
	}
	if w, err = client.Get(t.Context(), "dry", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	wantAt(t, w, "spec.size", "1")
}

func kindsLists(t *testing.T, s running) {
	all := dynamicClient(t, s.config).Resource(shopWidgets)
	client := all.Namespace("default")
	for i := range 5 {
		w := widget(fmt.Sprintf("listed-%d", i), `{"size":1}`)
		w.SetLabels(map[string]string{"listed": fmt.Sprint(i % 2)})
		if _, err := client.Create(t.Context(), w, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	count := func(o metav1.ListOptions) int {
		list, err := all.List(t.Context(), o)
		if err != nil {
			t.Error(err)
			return -1
		}
		if list.GetKind() != "WidgetList" || list.GetAPIVersion() != "shop.example.com/v1" || list.GetResourceVersion() == "" {
			t.Errorf("list kind %s, apiVersion %s, resourceVersion %q", list.GetKind(), list.GetAPIVersion(), list.GetResourceVersion())
		}
		return len(list.Items)
	}
	if n := count(metav1.ListOptions{LabelSelector: "listed=0"}); n != 3 {
		t.Errorf("%d by label, want 3", n)
	}
	if n := count(metav1.ListOptions{FieldSelector: "metadata.name=listed-1,metadata.namespace=default"}); n != 1 {
		t.Errorf("%d by name, want 1", n)
	}
	if n := count(metav1.ListOptions{LabelSelector: "listed", ResourceVersion: "0"}); n != 5 {
		t.Errorf("%d of any version, want 5", n)
	}
	_, err := all.List(t.Context(), metav1.ListOptions{FieldSelector: "spec.size=1"})
	wantRefused(t, err, http.StatusBadRequest, "field label not supported")
	first, err := all.List(t.Context(), metav1.ListOptions{LabelSelector: "listed", Limit: 2})
	if err != nil || len(first.Items) != 2 || first.GetContinue() == "" {
		t.Fatalf("first page: %v, %v", first, err)
	}
	if n := count(metav1.ListOptions{LabelSelector: "listed", Limit: 10, Continue: first.GetContinue()}); n != 3 {
		t.Errorf("%d on the next page, want 3", n)
	}
}

// ask sends a raw request and returns the response's code, content type and body.
func ask(t *testing.T, config *rest.Config, path string, header ...string) (int, string, string) {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	answer, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, answer.Header.Get("Content-Type"), string(body)
}

func kindsMediaTypes(t *testing.T, s running) {
	client := dynamicClient(t, s.config).Resource(shopWidgets).Namespace("default")
	if _, err := client.Create(t.Context(), widget("shown", `{"size":12}`), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	const path = "/apis/shop.example.com/v1/namespaces/default/widgets/shown"
	for _, c := range []struct {
		accept string
		code   int
		parts  []string
	}{
		{"application/json", 200, []string{`"kind":"Widget"`, `"size":12`}},
		{"application/yaml", 200, []string{"kind: Widget", "size: 12"}},
		{"application/vnd.kubernetes.protobuf", 406, nil},
		{"application/vnd.kubernetes.protobuf,application/json", 200, []string{`"kind":"Widget"`}},
		{"application/json;as=Table;v=v1;g=meta.k8s.io", 200, []string{`"kind":"Table"`, `"name":"Size"`, `"name":"Phase","type":"string","format":"","description":"Custom resource definition column (in JSONPath format): .status.phase","priority":1`, `["shown",12,null,`}},
		{"application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", 200, []string{`"kind":"PartialObjectMetadata"`, `"name":"shown"`}},
		{"application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", 200, []string{"shown"}},
	} {
		code, _, body := ask(t, s.config, path, "Accept", c.accept)
		if code != c.code {
			t.Errorf("%s: %d, want %d", c.accept, code, c.code)
		}
		for _, part := range c.parts {
			if !strings.Contains(body, part) {
				t.Errorf("%s: %s, without %s", c.accept, body, part)
			}
		}
	}
}

func kindsClusterScope(t *testing.T, s running) {
	all := dynamicClient(t, s.config)
	r := of("Region", "north", `{"size":1}`)
	r.SetAPIVersion("world.example.com/v2")
	if _, err := all.Resource(worldRegions).Create(t.Context(), r, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if list, err := all.Resource(worldRegions).List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 1 {
		t.Errorf("listed are %v, %v", list, err)
	}
	_, err := all.Resource(worldRegions).Namespace("default").Get(t.Context(), "north", metav1.GetOptions{})
	wantRefused(t, err, http.StatusNotFound)
	_, err = all.Resource(shopWidgets).Get(t.Context(), "north", metav1.GetOptions{})
	wantRefused(t, err, http.StatusNotFound)
	_, err = all.Resource(schema.GroupVersionResource{Group: "shop.example.com", Version: "v1", Resource: "gadgets"}).List(t.Context(), metav1.ListOptions{})
	wantRefused(t, err, http.StatusNotFound)
}
