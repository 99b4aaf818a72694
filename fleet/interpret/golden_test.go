package interpret

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

var update = flag.Bool("update", false, "rewrite the golden files and the table in docs/kinds.md")

// TestGolden interprets each object of testdata/*.yaml, and compares the results with the .golden
// file beside it. Documents with the annotation fleet.atoll.dev/cluster are that cluster's version
// of the object with the same name. Test annotations stand in for a policy or another decision:
// test/mode, and test/target for the shares of an autoscaler's target.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	asked := map[schema.GroupKind]bool{}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			got := interpretFile(t, file, asked)
			golden := strings.TrimSuffix(file, ".yaml") + ".golden"
			if *update {
				if err := os.WriteFile(golden, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("results for %s are\n%s\nwant the content of %s (run go test -update to write it)", file, got, golden)
			}
		})
	}
	for _, k := range Kinds() {
		// TLSRoute and similar kinds are the same row as HTTPRoute under other names.
		same := k.Group == gatewayGroup && k.follows != nil
		if !asked[k.GroupKind()] && !same {
			t.Errorf("no file in testdata covers %s", k.GroupKind())
		}
	}
}

func interpretFile(t *testing.T, file string, asked map[schema.GroupKind]bool) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	known := BuiltIn()
	var objects []*unstructured.Unstructured
	reports := map[string]map[string]*unstructured.Unstructured{}
	for _, document := range strings.Split(string(data), "\n---\n") {
		obj := parse(t, document)
		if cluster := obj.GetAnnotations()[v1alpha1.ClusterAnnotation]; cluster != "" {
			if reports[id(obj)] == nil {
				reports[id(obj)] = map[string]*unstructured.Unstructured{}
			}
			reports[id(obj)][cluster] = obj
			continue
		}
		objects = append(objects, obj)
		asked[obj.GroupVersionKind().GroupKind()] = true
		if obj.GetKind() == "CustomResourceDefinition" {
			k, err := FromCRD(obj)
			if err != nil {
				t.Fatal(err)
			}
			known = known.With(k)
		}
	}
	var out bytes.Buffer
	for _, obj := range objects {
		k, ok := known.Find(obj.GroupVersionKind().GroupKind())
		if !ok {
			t.Fatalf("kind of %s not found", id(obj))
		}
		writeResults(t, &out, known, k, obj, reports[id(obj)])
	}
	return out.Bytes()
}

func id(obj *unstructured.Unstructured) string {
	return strings.TrimSpace(obj.GetKind() + " " + strings.TrimPrefix(obj.GetNamespace()+"/"+obj.GetName(), "/"))
}

func writeResults(t *testing.T, out *bytes.Buffer, known Catalog, k KindInfo, obj *unstructured.Unstructured, reports map[string]*unstructured.Unstructured) {
	t.Helper()
	if out.Len() > 0 {
		out.WriteString("\n")
	}
	fmt.Fprintf(out, "== %s (%s)\n", id(obj), k.Origin)
	if why := known.StaysHome(obj); why != "" {
		fmt.Fprintf(out, "stays home: %s\n", why)
		return
	}
	mode := k.DefaultMode
	if asked := obj.GetAnnotations()["test/mode"]; asked != "" {
		mode = Mode(asked)
	}
	switch {
	case k.Placed:
		fmt.Fprintf(out, "runs: %s (by default %s)\n", mode, k.DefaultMode)
	case k.KeepsData:
		fmt.Fprintln(out, "follows its users, and stays where it has data")
	default:
		fmt.Fprintln(out, "follows its users")
	}
	replicas, divisible := k.Replicas(obj)
	if divisible {
		fmt.Fprintf(out, "replicas: %d\n", replicas)
	}
	if why := k.CheckMode(obj, Divided); why != "" && k.Divided {
		fmt.Fprintf(out, "not divided: %s\n", why)
	}
	if k.Finished(obj) {
		fmt.Fprintln(out, "finished")
	}
	refs, err := k.Needs(obj)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range refs {
		fmt.Fprintf(out, "needs: %s\n", refText(r))
	}
	follows, err := k.Follows(obj)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range follows {
		if f.Pods != nil {
			fmt.Fprintf(out, "follows: workloads of %s with pods %q\n", f.To.Namespace, f.Pods)
			continue
		}
		fmt.Fprintf(out, "follows: %s\n", refText(f.To))
	}
	inMembers(t, out, k, obj, mode == Divided && divisible, replicas, reports)
}

func inMembers(t *testing.T, out *bytes.Buffer, k KindInfo, obj *unstructured.Unstructured, dividing bool, replicas int32, reports map[string]*unstructured.Unstructured) {
	t.Helper()
	target := targets(t, obj)
	var clusters []string
	for name := range reports {
		clusters = append(clusters, name)
	}
	for name := range target {
		clusters = append(clusters, name)
	}
	slices.Sort(clusters)
	if clusters = slices.Compact(clusters); len(clusters) == 0 {
		clusters = []string{"east"}
		if dividing {
			clusters = append(clusters, "west")
		}
	}
	var members []MemberStatus
	start := int32(0)
	for i, name := range clusters {
		share := Share{Cluster: name, Target: target, Live: reports[name]}
		if dividing {
			n, at := replicas/int32(len(clusters)), start
			if int32(i) < replicas%int32(len(clusters)) {
				n++
			}
			start += n
			share.Replicas, share.OrdinalStart = &n, &at
		}
		if n, limited := target[name]; limited {
			share.Replicas = &n
		}
		fmt.Fprintf(out, "to %s:\n%s", name, sent(t, k, obj, share))
		if r := reports[name]; r != nil {
			health, why := k.Health(r)
			fmt.Fprintf(out, "in %s: %s\n", name, strings.TrimSuffix(string(health)+": "+why, ": "))
			m := MemberStatus{Cluster: name, Replicas: share.Replicas, Generation: obj.GetGeneration()}
			m.Status, _, _ = unstructured.NestedMap(r.Object, "status")
			observed, counts := k.ObservedGeneration(r)
			m.Current = !counts || observed >= r.GetGeneration()
			members = append(members, m)
		}
	}
	status, ok, err := k.Aggregate(obj, members)
	if err != nil {
		t.Fatal(err)
	}
	if ok {
		fmt.Fprintf(out, "status:\n%s", block(t, status))
	}
}

// sent returns the result of PrepareShare without the parts that are equal for all objects.
func sent(t *testing.T, k KindInfo, obj *unstructured.Unstructured, share Share) string {
	t.Helper()
	before := obj.DeepCopy()
	out := k.PrepareShare(obj, share)
	wantSame(t, obj, before)
	if out.GetLabels()[v1alpha1.ManagedLabel] != "true" || out.GetAnnotations()[v1alpha1.ClusterAnnotation] != share.Cluster {
		t.Errorf("%s is sent without Atoll's marks", id(obj))
	}
	for _, field := range []string{"apiVersion", "kind"} {
		delete(out.Object, field)
	}
	annotations, labels := out.GetAnnotations(), out.GetLabels()
	for _, mark := range []string{v1alpha1.ClusterAnnotation, v1alpha1.SourceUIDAnnotation, "test/mode", "test/target"} {
		delete(annotations, mark)
	}
	delete(labels, v1alpha1.ManagedLabel)
	out.SetAnnotations(annotations)
	out.SetLabels(labels)
	for _, field := range []string{"name", "namespace"} {
		unstructured.RemoveNestedField(out.Object, "metadata", field)
	}
	for _, field := range []string{"labels", "annotations"} {
		if len(object(out.Object, "metadata", field)) == 0 {
			unstructured.RemoveNestedField(out.Object, "metadata", field)
		}
	}
	if len(object(out.Object, "metadata")) == 0 {
		delete(out.Object, "metadata")
	}
	return block(t, out.Object)
}

func targets(t *testing.T, obj *unstructured.Unstructured) map[string]int32 {
	t.Helper()
	list := obj.GetAnnotations()["test/target"]
	if list == "" {
		return nil
	}
	out := map[string]int32{}
	for _, entry := range strings.Split(list, ",") {
		name, count, _ := strings.Cut(entry, "=")
		n, err := strconv.Atoi(count)
		if err != nil {
			t.Fatal(err)
		}
		out[name] = int32(n)
	}
	return out
}

func refText(r Reference) string {
	return r.GroupKind.String() + " " + strings.TrimPrefix(r.Namespace+"/"+r.Name, "/")
}

func block(t *testing.T, v any) string {
	t.Helper()
	text, err := yaml.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return indent(string(text), "  ") + "\n"
}
