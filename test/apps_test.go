package test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// An appSet is one application, as its users apply it.
type appSet struct {
	// name of the directory below testdata/apps.
	name string
	// namespace is given on the command line, for sets whose objects name none.
	namespace string
	// kustomize names the overlay below the directory that is applied.
	kustomize string
	// serverSide is how tools for GitOps apply.
	serverSide bool
}

func appSets() []appSet {
	return []appSet{
		{name: "web-shop"},
		{name: "operator"},
		{name: "pipeline"},
		{name: "node-agent"},
		{name: "storefront"},
		{name: "batch", namespace: "batch"},
		{name: "release", namespace: "release"},
		{name: "overlay", kustomize: "production"},
		{name: "autoscaled"},
		{name: "tenants"},
		{name: "cache"},
		{name: "platform"},
		{name: "gateway", serverSide: true},
		{name: "monitoring"},
		{name: "legacy", namespace: "legacy"},
		{name: "media"},
		{name: "guardrails"},
	}
}

// alone is a cluster that is not a member: the sets are applied to it directly, for comparison.
const alone = "alone"

// TestOrdinaryApps applies applications to Atoll, and to one cluster directly, and compares the outcome for
// each object. The applications do not know of Atoll, and only Clusters are configured.
func TestOrdinaryApps(t *testing.T) {
	t.Parallel()
	f := whole(t)
	f.startAlone(t)
	f.prepareVolumes(t, append([]string{alone}, members...))
	sets := appSets()
	f.applySets(t, sets)

	c := newComparison(t, f)
	for _, set := range sets {
		c.add(set, set.objects(t, f))
	}
	eventually(t, 2*settle, "all is ready where it was applied directly", c.settledAlone)

	// A member's autoscaler looks every 15 s, and when its write meets another's, only the next time.
	ctx, cancel := context.WithTimeout(t.Context(), 2*settle)
	defer cancel()
	result := c.settle(ctx)
	t.Logf("\n%s", result)
	if file := os.Getenv("ATOLL_TEST_APPS_REPORT"); file != "" {
		if err := os.WriteFile(file, []byte(result.markdown()), 0o600); err != nil {
			t.Error(err)
		}
	}
	for _, complaint := range result.complaints(appExceptions()) {
		t.Error(complaint)
	}
	c.evidence(t, result, appExceptions())
	if objects, same, _ := result.total(); same*100 < objects*95 {
		t.Errorf("%d of %d objects are the same in the members: fewer than 95 in a hundred", same, objects)
	}
	f.removeSets(t, sets)
}

// startAlone starts the cluster that is no member, for the time of the test.
func (f *fixture) startAlone(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cluster, err := f.StartMember(ctx, alone)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Stop(); err != nil {
			t.Error(err)
		}
	})
}

// prepareVolumes gives clusters what their operators would: a default storage class,
// and volumes of it. Nothing provisions any here.
func (f *fixture) prepareVolumes(t *testing.T, clusters []string) {
	t.Helper()
	var manifest strings.Builder
	manifest.WriteString(`{apiVersion: storage.k8s.io/v1, kind: StorageClass, provisioner: kubernetes.io/no-provisioner, volumeBindingMode: Immediate,
  metadata: {name: standard, labels: {test: apps}, annotations: {storageclass.kubernetes.io/is-default-class: "true"}}}
`)
	for i := range 24 {
		fmt.Fprintf(&manifest, `---
{apiVersion: v1, kind: PersistentVolume, metadata: {name: disk-%02d, labels: {test: apps}}, spec: {storageClassName: standard,
  capacity: {storage: 10Gi}, accessModes: [ReadWriteOnce, ReadWriteMany], persistentVolumeReclaimPolicy: Retain, hostPath: {path: /disks/%02[1]d}}}
`, i)
	}
	var all sync.WaitGroup
	for _, cluster := range clusters {
		all.Go(func() {
			if _, err := f.tryKubectl(t.Context(), cluster, manifest.String(), "apply", "-f", "-"); err != nil {
				t.Error(err)
			}
		})
		t.Cleanup(func() {
			if cluster != alone {
				_, _ = f.tryKubectl(context.Background(), cluster, "", "delete", "persistentvolume,storageclass", "-l", "test=apps", "--wait=false")
			}
		})
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// source returns kubectl's arguments that name the manifests.
func (s appSet) source() []string {
	dir := filepath.Join("testdata", "apps", s.name)
	args := []string{"-f", dir}
	if s.kustomize != "" {
		args = []string{"-k", filepath.Join(dir, s.kustomize)}
	}
	if s.namespace != "" {
		args = append(args, "-n", s.namespace)
	}
	return args
}

// applySets applies all of them to Atoll and to the cluster alone.
func (f *fixture) applySets(t *testing.T, sets []appSet) {
	t.Helper()
	t.Cleanup(func() { f.sweep(sets) })
	var all sync.WaitGroup
	for _, cluster := range []string{"atoll", alone} {
		turn := make(chan struct{}, 3) // so many at a time
		for _, set := range sets {
			all.Go(func() {
				turn <- struct{}{}
				defer func() { <-turn }()
				if err := f.applySet(t, cluster, set); err != nil {
					t.Errorf("%s: %v", set.name, err)
				}
			})
		}
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// applySet does what people do: it applies a directory, again if kinds or namespaces
// that are in it were not there yet.
func (f *fixture) applySet(t *testing.T, cluster string, set appSet) error {
	if set.namespace != "" {
		if _, err := f.tryKubectl(t.Context(), cluster, "", "create", "namespace", set.namespace); err != nil {
			return err
		}
	}
	args := append([]string{"apply"}, set.source()...)
	if set.serverSide {
		args = append(args, "--server-side", "--field-manager=argocd-controller")
	}
	const attempts = 20
	for i := 1; ; i++ {
		_, err := f.tryKubectl(t.Context(), cluster, "", args...)
		if err == nil {
			t.Logf("%s: %s is applied, at the %d. time", cluster, set.name, i)
			return nil
		}
		if i == attempts {
			return err
		}
		select {
		case <-t.Context().Done():
			return err
		case <-time.After(time.Second):
		}
	}
}

// removeSets deletes all of them from Atoll, and wants nothing of them left in the
// members but what keeps data.
func (f *fixture) removeSets(t *testing.T, sets []appSet) {
	t.Helper()
	before := f.haltings(t)
	var all sync.WaitGroup
	for _, set := range sets {
		all.Go(func() {
			args := append([]string{"delete", "--ignore-not-found", "--wait=false"}, set.source()...)
			if _, err := f.tryKubectl(t.Context(), "atoll", "", args...); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	namespaces := namespacesOf(sets)
	eventually(t, settle, "the members have no pods of the applications left", func(ctx context.Context) error {
		for _, m := range members {
			pods, err := f.client(t, m).CoreV1().Pods("").List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			for _, pod := range pods.Items {
				if slices.Contains(namespaces, pod.Namespace) {
					return fmt.Errorf("%s: namespace %s has pod %s", m, pod.Namespace, pod.Name)
				}
			}
		}
		return nil
	})
	// Deleting the sets also removes their types and everything that only they needed. A user requested all of
	// it, so no syncer may have halted the removal.
	if after := f.haltings(t); after != before {
		t.Errorf("a syncer halted the removal of deleted objects: %s (before: %s)", after, before)
	}
}

// haltings returns when each member's syncer last halted or resumed removals.
func (f *fixture) haltings(t *testing.T) string {
	t.Helper()
	return f.kubectl(t, "atoll", "get", "clusters", "-o",
		`jsonpath={range .items[*]}{.metadata.name}: {.status.conditions[?(@.type=="`+v1alpha1.ClusterDeletionsHalted+`")].lastTransitionTime}; {end}`)
}

// sweep removes leftovers of the sets from all clusters except the cluster alone.
func (f *fixture) sweep(sets []appSet) {
	ctx := context.Background()
	// Most sets share one kubectl process, because starting it costs more than the deletion.
	var together []string
	commands := [][]string{}
	for _, set := range sets {
		if set.kustomize == "" && set.namespace == "" {
			together = append(together, set.source()...)
		} else {
			commands = append(commands, set.source())
		}
	}
	commands = append(commands, together)
	remove := func(cluster string) {
		for _, what := range commands {
			_, _ = f.tryKubectl(ctx, cluster, "", append([]string{"delete", "--ignore-not-found", "--wait=false"}, what...)...)
		}
	}
	remove("atoll")
	own := []string{"delete", "namespace", "--ignore-not-found", "--wait=false"}
	for _, set := range sets {
		if set.namespace != "" {
			own = append(own, set.namespace)
		}
	}
	_, _ = f.tryKubectl(ctx, "atoll", "", own...)
	var all sync.WaitGroup
	for _, m := range members {
		all.Go(func() {
			remove(m)
			_, _ = f.tryKubectl(ctx, m, "", append([]string{"delete", "namespace", "--ignore-not-found", "--timeout=60s"}, namespacesOf(sets)...)...)
		})
	}
	all.Wait()
}

// objects reads what a set consists of.
func (s appSet) objects(t *testing.T, f *fixture) []*unstructured.Unstructured {
	t.Helper()
	var text string
	if s.kustomize != "" {
		text = f.kubectl(t, "atoll", "kustomize", filepath.Join("testdata", "apps", s.name, s.kustomize))
	} else {
		files, err := filepath.Glob(filepath.Join("testdata", "apps", s.name, "*.yaml"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", s.name, len(files), err)
		}
		for _, file := range files {
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			text += "\n---\n" + string(raw)
		}
	}
	objects, err := parseManifest(text)
	if err != nil {
		t.Fatalf("%s: %v", s.name, err)
	}
	return objects
}

func parseManifest(text string) ([]*unstructured.Unstructured, error) {
	decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(text), 4096)
	var out []*unstructured.Unstructured
	for {
		var raw json.RawMessage
		err := decoder.Decode(&raw)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		if len(raw) == 0 {
			continue // nothing between two separators
		}
		o := &unstructured.Unstructured{}
		// As clients read objects: a whole number is one.
		if err := utiljson.Unmarshal(raw, &o.Object); err != nil {
			return nil, err
		}
		if len(o.Object) > 0 {
			out = append(out, o)
		}
	}
}

// namespacesOf names the namespaces that the sets' objects are in.
func namespacesOf(sets []appSet) []string {
	var out []string
	for _, set := range sets {
		if set.namespace != "" {
			out = append(out, set.namespace)
			continue
		}
		files, _ := filepath.Glob(filepath.Join("testdata", "apps", set.name, "*.yaml"))
		more, _ := filepath.Glob(filepath.Join("testdata", "apps", set.name, "*", "*.yaml"))
		for _, file := range append(files, more...) {
			raw, err := os.ReadFile(file)
			if err != nil {
				continue
			}
			objects, _ := parseManifest(string(raw))
			for _, o := range objects {
				if o.GetKind() == "Namespace" {
					out = append(out, o.GetName())
				}
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
