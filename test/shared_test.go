package test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/atoll-dev/atoll/test/programs"
)

// islands are the members of the fixture.
var islands = []string{"east", "west", "north"}

var notes = schema.GroupVersionResource{Group: "shared.test.atoll.dev", Version: "v1", Resource: "notes"}

// notesManifest is a group to share, and what lets all members use it.
const notesManifest = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: notes.shared.test.atoll.dev}
spec:
  group: shared.test.atoll.dev
  scope: Namespaced
  names: {plural: notes, singular: note, kind: Note, shortNames: [nt]}
  versions:
  - name: v1
    served: true
    storage: true
    subresources:
      status: {}
      scale: {specReplicasPath: .spec.copies, statusReplicasPath: .status.copies}
    additionalPrinterColumns:
    - {name: Text, type: string, jsonPath: .spec.text}
    schema:
      openAPIV3Schema:
        type: object
        description: A note that all clusters share.
        properties:
          spec:
            type: object
            properties:
              text: {type: string, description: What the note says.}
              copies: {type: integer}
          status:
            type: object
            properties:
              copies: {type: integer}
              conditions:
                type: array
                items: {type: object, x-kubernetes-preserve-unknown-fields: true}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: notes}
rules:
- {apiGroups: [shared.test.atoll.dev], resources: ["*"], verbs: ["*"]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: notes}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: notes}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: Group, name: atoll:members}
---
apiVersion: fleet.atoll.dev/v1alpha1
kind: SharedAPI
metadata: {name: notes}
spec:
  groups: [shared.test.atoll.dev]
  clusterSelector: {}
`

// shareNotes has all members serve the group, once for all tests.
func (f *fixture) shareNotes(t *testing.T) {
	t.Helper()
	f.apply(t, notesManifest)
	f.kubectl(t, "atoll", "wait", "sharedapi/notes", "--for=condition=Ready", "--timeout=90s")
}

func note(namespace, name, text string) string {
	return fmt.Sprintf("{apiVersion: shared.test.atoll.dev/v1, kind: Note, metadata: {name: %s, namespace: %s}, spec: {text: %q}}", name, namespace, text)
}

// put applies a manifest to a member.
func (f *fixture) put(t *testing.T, cluster, manifest string) {
	t.Helper()
	if _, err := f.tryKubectl(t.Context(), cluster, manifest, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
}

// space makes a namespace in clusters, and removes it when the test ends.
func (f *fixture) space(t *testing.T, name string, clusters ...string) {
	t.Helper()
	t.Cleanup(func() {
		var all sync.WaitGroup
		for _, c := range clusters {
			all.Go(func() {
				if _, err := f.tryKubectl(context.Background(), c, "", "delete", "namespace", name, "--ignore-not-found", "--timeout=90s"); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	})
	for _, c := range clusters {
		f.kubectl(t, c, "create", "namespace", name)
	}
}

// lines is what a program prints, line by line, while it runs.
type lines struct {
	mu   sync.Mutex
	said []string
}

func (l *lines) saw(part string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.said {
		if strings.Contains(line, part) {
			return nil
		}
	}
	return fmt.Errorf("%q is not in %q", part, l.said)
}

// watchNotes is `kubectl get notes --watch` in a member, until the test ends.
func (f *fixture) watchNotes(t *testing.T, cluster, namespace string) *lines {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	cmd := programs.Command(ctx, f.dir, "kubectl", f.kubeconfig(cluster), "get", "notes", "--watch", "-n", namespace)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	l := &lines{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for scan := bufio.NewScanner(out); scan.Scan(); {
			l.mu.Lock()
			l.said = append(l.said, scan.Text())
			l.mu.Unlock()
		}
	}()
	t.Cleanup(func() { stop(); <-done; _ = cmd.Wait() })
	return l
}

// An object that is written through one member is visible in the others at once, and kubectl treats it like an
// object of the cluster's own.
func TestSharedObjectsInEveryMember(t *testing.T) {
	f := whole(t)
	f.shareNotes(t)
	f.space(t, "letters", "atoll")
	west, north := f.watchNotes(t, "west", "letters"), f.watchNotes(t, "north", "letters")

	f.put(t, "east", note("letters", "hello", "from east"))
	for name, l := range map[string]*lines{"west": west, "north": north} {
		eventually(t, 20*time.Second, "a watch in "+name+" shows it", func(context.Context) error { return l.saw("from east") })
	}
	f.kubectl(t, "west", "patch", "note", "hello", "-n", "letters", "--type=merge", "-p", `{"spec":{"text":"edited in west"}}`)
	eventually(t, 20*time.Second, "a watch in north shows the edit", func(context.Context) error { return north.saw("edited in west") })

	for _, c := range islands {
		if got := f.kubectl(t, c, "get", "nt", "-n", "letters"); !strings.Contains(got, "TEXT") || !strings.Contains(got, "edited in west") {
			t.Errorf("%s: get prints %q", c, got)
		}
		if got := f.kubectl(t, c, "explain", "notes.spec.text"); !strings.Contains(got, "What the note says.") {
			t.Errorf("%s: explain prints %q", c, got)
		}
		if got := f.kubectl(t, c, "api-resources", "--api-group=shared.test.atoll.dev"); !strings.Contains(got, "Note") {
			t.Errorf("%s: api-resources prints %q", c, got)
		}
		_, err := f.tryKubectl(t.Context(), c, note("letters", "hello", "from "+c), "diff", "-f", "-")
		if err == nil {
			t.Errorf("%s: diff shows no difference", c)
		}
		// Strict validation knows the schema.
		wrong := strings.Replace(note("letters", "wrong", "x"), "text:", "txet:", 1)
		if _, err := f.tryKubectl(t.Context(), c, wrong, "create", "-f", "-"); err == nil || !strings.Contains(err.Error(), "txet") {
			t.Errorf("%s: a wrong field: %v", c, err)
		}
		if _, err := f.tryKubectl(t.Context(), c, note("letters", "dry", "x"), "apply", "--server-side", "--dry-run=server", "-f", "-"); err != nil {
			t.Errorf("%s: %v", c, err)
		}
		// wait sees the status that another member's client writes.
		waited := make(chan error, 1)
		go func() {
			_, err := f.tryKubectl(t.Context(), c, "", "wait", "note/hello", "-n", "letters", "--for=condition=Read="+c, "--timeout=30s")
			waited <- err
		}()
		f.kubectl(t, "north", "patch", "note", "hello", "-n", "letters", "--subresource=status", "--type=merge",
			"-p", fmt.Sprintf(`{"status":{"conditions":[{"type":"Read","status":%q}]}}`, c))
		if err := <-waited; err != nil {
			t.Errorf("%s: %v", c, err)
		}
		f.kubectl(t, c, "scale", "note/hello", "-n", "letters", "--replicas=3")
	}
	if _, err := f.tryKubectl(t.Context(), "east", note("letters", "hello", "applied"), "apply", "--server-side", "--force-conflicts", "-f", "-"); err != nil {
		t.Error(err)
	}
	eventually(t, 20*time.Second, "a watch in west shows what east applied", func(context.Context) error { return west.saw("applied") })
	f.kubectl(t, "north", "delete", "note", "hello", "-n", "letters")
}

// Events about a shared object are kept in the member where a controller records them, also if only
// Atoll had its namespace before.
func TestEventsOfSharedObjects(t *testing.T) {
	f := whole(t)
	f.shareNotes(t)
	f.space(t, "chronicle", "atoll")
	f.kubectl(t, "atoll", "label", "namespace", "chronicle", "pod-security.kubernetes.io/enforce=restricted")
	f.put(t, "atoll", note("chronicle", "told", "by Atoll"))
	absent := func(cluster string) {
		t.Helper()
		if out, err := f.tryKubectl(t.Context(), cluster, "", "get", "namespace", "chronicle"); err == nil {
			t.Errorf("%s has the namespace already: %s", cluster, out)
		}
	}
	absent("east")
	// A controller in east writes the object, and records an event about it.
	f.kubectl(t, "east", "annotate", "note", "told", "-n", "chronicle", "seen=east")
	uid := f.kubectl(t, "east", "get", "note", "told", "-n", "chronicle", "-o", "jsonpath={.metadata.uid}")
	f.put(t, "east", fmt.Sprintf("{apiVersion: v1, kind: Event, metadata: {name: told.1, namespace: chronicle}, type: Normal, reason: Told, message: all is told, "+
		"involvedObject: {apiVersion: shared.test.atoll.dev/v1, kind: Note, name: told, namespace: chronicle, uid: %q}}", uid))
	if out := f.kubectl(t, "east", "describe", "note", "told", "-n", "chronicle"); !strings.Contains(out, "all is told") {
		t.Errorf("kubectl describe shows no event:\n%s", out)
	}
	if got := f.kubectl(t, "east", "get", "namespace", "chronicle", "-o", `jsonpath={.metadata.labels.pod-security\.kubernetes\.io/enforce}`); got != "restricted" {
		t.Errorf("the namespace in east enforces %q", got)
	}
	absent("west")
	// It goes with Atoll's.
	f.kubectl(t, "atoll", "delete", "namespace", "chronicle", "--timeout=90s")
	eventually(t, 60*time.Second, "the namespace that Atoll made in east is gone", func(ctx context.Context) error {
		if _, err := f.tryKubectl(ctx, "east", "", "get", "namespace", "chronicle"); err == nil {
			return errors.New("east still has it")
		}
		return nil
	})
}

// A namespace that goes in one member takes nothing from the others, and goes.
func TestANamespaceOfOneMemberTakesNothingShared(t *testing.T) {
	f := whole(t)
	f.shareNotes(t)
	f.space(t, "diary", append(islands, "atoll")...)
	f.put(t, "east", note("diary", "kept", "all the same"))
	f.kubectl(t, "east", "create", "configmap", "local", "-n", "diary")

	f.kubectl(t, "east", "delete", "namespace", "diary", "--timeout=90s")
	for _, c := range append(islands, "atoll") {
		if got := f.kubectl(t, c, "get", "note", "kept", "-n", "diary", "-o", "jsonpath={.spec.text}"); got != "all the same" {
			t.Errorf("%s: the note says %q", c, got)
		}
	}
	// The namespace controller of Atoll, in contrast, removes the objects of Atoll's own namespaces.
	f.kubectl(t, "atoll", "delete", "namespace", "diary", "--timeout=90s")
	if _, err := f.dynamicOf(t, "west").Resource(notes).Namespace("diary").Get(t.Context(), "kept", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a note in a namespace that is gone from Atoll: %v", err)
	}
}

// The garbage collectors of members and of Atoll do not collect a shared object whose owner they do not know,
// and collect all others as usual.
func TestAnOwnerInOneMemberOnly(t *testing.T) {
	f := whole(t)
	f.shareNotes(t)
	f.space(t, "estate", append(islands, "atoll")...)

	owner := f.kubectl(t, "east", "create", "configmap", "owner", "-n", "estate", "-o", "jsonpath={.metadata.uid}")
	owned := func(name, kind, apiVersion, owner, uid string) string {
		return strings.Replace(note("estate", name, "owned"), "metadata: {", fmt.Sprintf(
			"metadata: {ownerReferences: [{apiVersion: %s, kind: %s, name: %s, uid: %s}], ", apiVersion, kind, owner, uid), 1)
	}
	f.put(t, "east", owned("heir", "ConfigMap", "v1", "owner", owner))
	// One whose owner is gone everywhere, and always was.
	f.put(t, "west", owned("orphan", "ConfigMap", "v1", "nobody", "11111111-2222-3333-4444-555555555555"))
	f.put(t, "east", note("estate", "parent", "shared"))
	parent := f.kubectl(t, "east", "get", "note", "parent", "-n", "estate", "-o", "jsonpath={.metadata.uid}")
	f.put(t, "north", owned("child", "Note", "shared.test.atoll.dev/v1", "parent", parent))

	// A local object with a shared owner in each member: when it is collected, the
	// member's collector has seen all notes there were.
	for _, c := range islands {
		f.put(t, c, fmt.Sprintf("{apiVersion: v1, kind: ConfigMap, metadata: {name: dependent, namespace: estate, "+
			"ownerReferences: [{apiVersion: shared.test.atoll.dev/v1, kind: Note, name: parent, uid: %s}]}}", parent))
	}
	f.kubectl(t, "west", "delete", "note", "parent", "-n", "estate")
	for _, c := range islands {
		eventually(t, 90*time.Second, "the collector of "+c+" collects a local object whose shared owner is gone", func(ctx context.Context) error {
			_, err := f.client(t, c).CoreV1().ConfigMaps("estate").Get(ctx, "dependent", metav1.GetOptions{})
			return wantNotFound(err)
		})
	}
	eventually(t, 60*time.Second, "Atoll's collector collects a shared object whose shared owner is gone", func(ctx context.Context) error {
		_, err := f.dynamicOf(t, "atoll").Resource(notes).Namespace("estate").Get(ctx, "child", metav1.GetOptions{})
		return wantNotFound(err)
	})
	for _, name := range []string{"heir", "orphan"} {
		got, err := f.dynamicOf(t, "north").Resource(notes).Namespace("estate").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if refs := got.GetOwnerReferences(); len(refs) != 1 || refs[0].Kind != "ConfigMap" || got.GetDeletionTimestamp() != nil {
			t.Errorf("%s: references %v, deletion %v", name, refs, got.GetDeletionTimestamp())
		}
	}
}

func wantNotFound(err error) error {
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err == nil:
		return errors.New("it is still there")
	}
	return err
}

// A CRD that comes to a shared group is served by members, and one that goes is
// not; a member that has the group itself is refused, with the remedy.
func TestSharedGroupsAreKeptInStep(t *testing.T) {
	f := whole(t)
	f.shareNotes(t)
	crd := func(group, version string) string {
		return fmt.Sprintf(`{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: papers.%[1]s},
spec: {group: %[1]s, scope: Cluster, names: {plural: papers, singular: paper, kind: Paper},
versions: [{name: %[2]s, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]}}`, group, version)
	}
	f.apply(t, crd("shared.test.atoll.dev", "v1alpha1"))
	eventually(t, 60*time.Second, "north serves the new version", func(ctx context.Context) error {
		_, err := f.dynamicOf(t, "north").Resource(schema.GroupVersionResource{Group: "shared.test.atoll.dev", Version: "v1alpha1", Resource: "papers"}).List(ctx, metav1.ListOptions{})
		return err
	})
	// A manual change is reverted.
	f.kubectl(t, "west", "delete", "apiservice", "v1.shared.test.atoll.dev")
	eventually(t, 60*time.Second, "west serves notes again", func(ctx context.Context) error {
		_, err := f.dynamicOf(t, "west").Resource(notes).List(ctx, metav1.ListOptions{})
		return err
	})
	f.kubectl(t, "atoll", "delete", "crd", "papers.shared.test.atoll.dev")
	eventually(t, 60*time.Second, "north does not announce the version", func(ctx context.Context) error {
		_, err := f.tryKubectl(ctx, "north", "", "get", "apiservice", "v1alpha1.shared.test.atoll.dev")
		if err == nil {
			return errors.New("it does")
		}
		return nil
	})

	// A conflict.
	f.apply(t, crd("taken.test.atoll.dev", "v1"))
	f.put(t, "east", crd("taken.test.atoll.dev", "v1"))
	t.Cleanup(func() {
		for _, c := range []string{"atoll", "east"} {
			if _, err := f.tryKubectl(context.Background(), c, "", "delete", "crd", "papers.taken.test.atoll.dev", "--ignore-not-found"); err != nil {
				t.Error(err)
			}
		}
	})
	f.apply(t, `{apiVersion: fleet.atoll.dev/v1alpha1, kind: SharedAPI, metadata: {name: taken}, spec: {groups: [taken.test.atoll.dev], clusters: [east]}}`)
	eventually(t, 60*time.Second, "the conflict is reported", func(ctx context.Context) error {
		got, err := f.dynamicOf(t, "atoll").Resource(schema.GroupVersionResource{Group: "fleet.atoll.dev", Version: "v1alpha1", Resource: "sharedapis"}).Get(ctx, "taken", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if ready, err := readyCondition(got); err != nil || ready.Reason != "GroupConflict" || !strings.Contains(ready.Message, "delete its CustomResourceDefinitions") {
			return fmt.Errorf("%v, %v", ready, err)
		}
		return nil
	})
	f.kubectl(t, "atoll", "delete", "sharedapi", "taken", "--timeout=60s")
	f.kubectl(t, "east", "get", "papers.taken.test.atoll.dev")
}

func (f *fixture) dynamicOf(t *testing.T, cluster string) dynamic.Interface {
	t.Helper()
	client, err := dynamic.NewForConfig(f.rest(t, cluster))
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// If the SharedAPI delegates authorization, each member decides about the rights of its users.
func TestTheMemberDecides(t *testing.T) {
	f := whole(t)
	const manifest = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: verdicts.judged.test.atoll.dev}
spec:
  group: judged.test.atoll.dev
  scope: Cluster
  names: {plural: verdicts, singular: verdict, kind: Verdict}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]
---
apiVersion: fleet.atoll.dev/v1alpha1
kind: SharedAPI
metadata: {name: judged}
spec: {groups: [judged.test.atoll.dev], clusters: [east]}
`
	f.apply(t, manifest)
	t.Cleanup(func() {
		for _, what := range []string{"sharedapi/judged", "crd/verdicts.judged.test.atoll.dev"} {
			if _, err := f.tryKubectl(context.Background(), "atoll", "", "delete", what, "--timeout=60s"); err != nil {
				t.Error(err)
			}
		}
	})
	f.kubectl(t, "atoll", "wait", "sharedapi/judged", "--for=condition=Ready", "--timeout=60s")
	// East lets its administrator do everything; Atoll has never heard of him.
	_, err := f.tryKubectl(t.Context(), "east", "", "get", "verdicts")
	if err == nil || !strings.Contains(err.Error(), "Forbidden") || !strings.Contains(err.Error(), `"east:`) {
		t.Fatalf("where Atoll decides: %v", err)
	}
	f.kubectl(t, "atoll", "patch", "sharedapi", "judged", "--type=merge", "-p", `{"spec":{"authorization":"Member"}}`)
	eventually(t, 30*time.Second, "east is asked", func(ctx context.Context) error {
		_, err := f.tryKubectl(ctx, "east", "", "get", "verdicts")
		return err
	})
}
