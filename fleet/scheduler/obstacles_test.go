package scheduler

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/placement"
	"github.com/atoll-dev/atoll/fleet/schema"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// fakeFields are clusters that lack one field each: ".spec.x" of any kind.
type fakeFields struct {
	mu      sync.Mutex
	fields  map[string]string // by cluster; "" is a cluster that lacks no field
	heard   map[int]func(string)
	waiting int
	// asked is signaled by a query for an unknown cluster.
	asked bool
}

func newFakeFields(fields map[string]string) *fakeFields {
	return &fakeFields{fields: fields, heard: map[int]func(string){}}
}

func (l *fakeFields) Gaps(obj *unstructured.Unstructured) map[string]*schema.Gap {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := map[string]*schema.Gap{}
	for cluster, field := range l.fields {
		if _, has, _ := unstructured.NestedFieldNoCopy(obj.Object, strings.Split(strings.TrimPrefix(field, "."), ".")...); has && field != "" {
			out[cluster] = &schema.Gap{Reason: schema.UnknownFields, Fields: []string{field}, Message: "does not know " + field}
		}
	}
	return out
}

func (l *fakeFields) Known(cluster string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, known := l.fields[cluster]
	l.asked = l.asked || !known
	return known
}

func (l *fakeFields) OnChange(notify func(string)) (cancel func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting++
	n := l.waiting
	l.heard[n] = notify
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.heard, n)
	}
}

// setLacking sets the field that a cluster lacks from now on.
func (l *fakeFields) setLacking(cluster, field string) {
	l.mu.Lock()
	l.fields[cluster] = field
	var heard []func(string)
	for _, f := range l.heard {
		heard = append(heard, f)
	}
	l.mu.Unlock()
	for _, f := range heard {
		f(cluster)
	}
}

// running is a binding whose entries report that both clusters run the object.
const running = `
---
apiVersion: fleet.atoll.dev/v1alpha1
kind: ResourceBinding
metadata: {name: deployment.apps-web, namespace: shop, uid: b, generation: 1}
spec:
  resource: {apiVersion: apps/v1, kind: Deployment, name: web, uid: d, resource: deployments}
  clusters: [{name: east, replicas: 2, reason: Scheduled, message: ""}, {name: west, replicas: 1, reason: Scheduled, message: ""}]
status: {clusters: [{name: east, uid: in-east, health: Healthy}, {name: west, uid: in-west, health: Healthy}]}
`

// waitForShare waits until the share of a cluster in a binding has a reason and message.
func waitForShare(t *testing.T, c *control, name, cluster, want string) {
	t.Helper()
	fakeapi.Eventually(t, name+" in "+cluster+" has "+want, func() error {
		b := &v1alpha1.ResourceBinding{}
		c.Read(v1alpha1.ResourceBindingResource, "shop", name, b)
		if share, _ := b.Share(cluster); share.Reason+": "+share.Message != want {
			return fmt.Errorf("it has %s: %s", share.Reason, share.Message)
		}
		return nil
	})
}

// TestClusterWithGapGetsNothing: a cluster that lacks a field gets neither the object nor its
// followers.
func TestClusterWithGapGetsNothing(t *testing.T) {
	fields := newFakeFields(map[string]string{"east": ".spec.replicas", "west": ""})
	client := beginWith(t, Config{Fields: fields}, clusters+app)
	decided(t, client, `
configmap-conf: west [{ Deployment web} { Namespace shop}]
deployment.apps-web: west 3
service-web: west [{ Deployment web} { Namespace shop}]
`)
	// After an upgrade the cluster is chosen.
	fields.setLacking("east", "")
	decided(t, client, strings.Replace(everything, "east 2, west 1", "east 1, west 2", 1))
}

// TestFollowerAvoidsClusterWithGap: a follower is not placed in a cluster that lacks a field of
// it; its users run there without it.
func TestFollowerAvoidsClusterWithGap(t *testing.T) {
	fields := newFakeFields(map[string]string{"east": ".spec.selector", "west": ""})
	client := beginWith(t, Config{Fields: fields}, clusters+app)
	decided(t, client, `
configmap-conf: east, west [{ Deployment web} { Namespace shop}]
deployment.apps-web: east 2, west 1
service-web: west [{ Deployment web} { Namespace shop}]
`)
	fields.setLacking("east", "")
	decided(t, client, everything)
}

// TestRunningObjectIsKept: an object that already runs in a cluster stays there although the
// cluster lacks one of its new fields. It does not grow there, and the binding reports it. An
// object that never ran there moves.
func TestRunningObjectIsKept(t *testing.T) {
	fields := newFakeFields(map[string]string{"east": ".spec.paused", "west": ""})
	client := beginWith(t, Config{Fields: fields}, clusters+app+running+`
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: api, namespace: shop, uid: a}
spec: {replicas: 4, template: {spec: {containers: [{name: c, image: i}]}}}
`)
	with := strings.Replace(everything, "deployment.apps-web", "deployment.apps-api: east 2, west 2\ndeployment.apps-web", 1)
	decided(t, client, with)
	members(t, client, false, "deployment.apps-web")
	client.Merge(deployments, "shop", "web", `{"spec":{"replicas":8,"paused":false}}`)
	decided(t, client, strings.Replace(with, "east 2, west 1", "east 2, west 6", 1))
	waitForShare(t, client, "deployment.apps-web", "east", "KeptDespiteObstacle: keeps its share, though the cluster does not know .spec.paused")
	client.Merge(deployments, "shop", "web", `{"spec":{"replicas":8,"paused":null}}`)
	waitForShare(t, client, "deployment.apps-web", "east", "Scheduled: Ready and schedulable")
	with = strings.Replace(with, "east 2, west 1", "east 4, west 4", 1)
	decided(t, client, with)

	// An object that never ran in a cluster moves.
	client.Merge(deployments, "shop", "api", `{"spec":{"paused":false}}`)
	decided(t, client, strings.Replace(with, "east 2, west 2", "west 4", 1))
}

// TestGapFoundAfterPlacement: a cluster's gap is found after objects were placed there.
func TestGapFoundAfterPlacement(t *testing.T) {
	fields := newFakeFields(map[string]string{"east": "", "west": ""})
	client := beginWith(t, Config{Fields: fields}, clusters+app)
	decided(t, client, everything)
	fields.setLacking("east", ".spec.replicas")
	decided(t, client, `
configmap-conf: west [{ Deployment web} { Namespace shop}]
deployment.apps-web: west 3
service-web: west [{ Deployment web} { Namespace shop}]
`)
}

// TestFirstDecisionWaitsForFields: a new leader does not place an object in a cluster that
// lacks a field of it, and then move it.
func TestFirstDecisionWaitsForFields(t *testing.T) {
	fields := newFakeFields(map[string]string{"west": ""})
	client := beginWith(t, Config{Fields: fields}, clusters+app)
	fakeapi.Until(t, "somebody asks whether east is known", func() bool {
		fields.mu.Lock()
		defer fields.mu.Unlock()
		return fields.asked
	})
	if n := len(client.bindings(t)); n != 0 {
		t.Fatalf("%d decisions were made before the fields were known", n)
	}
	fields.setLacking("east", ".spec.replicas")
	decided(t, client, `
configmap-conf: west [{ Deployment web} { Namespace shop}]
deployment.apps-web: west 3
service-web: west [{ Deployment web} { Namespace shop}]
`)
	for _, w := range client.Writes() {
		if strings.HasPrefix(w, "patch resourcebindings ") {
			t.Errorf("a decision was revised: %s", w)
		}
	}
}

// TestPreviewNamesField: a preview names the missing field and the version of the cluster.
func TestPreviewNamesField(t *testing.T) {
	client := begin(t, strings.Replace(clusters, "status: {", `status: {version: v1.30.2, `, 1)+app)
	decided(t, client, everything)
	s, err := Load(t.Context(), client.Dynamic(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	s.Fields = newFakeFields(map[string]string{"east": ".spec.replicas"})
	snap := s.Snapshot()
	i := s.Placed[0]
	a := snap.Schedule(i.Kind, i.Object, nil)
	_, verdicts := placement.Explain(a.Request)
	want := placement.Verdict{Cluster: "east", Reason: schema.UnknownFields, Message: "the cluster (v1.30.2) does not know .spec.replicas"}
	if len(verdicts) != 2 || verdicts[0] != want {
		t.Errorf("%+v, want %+v", verdicts, want)
	}
	// If the object already runs there, it stays.
	b := s.Binding(i.Kind, "shop", "web").DeepCopy()
	b.Status.Clusters = []v1alpha1.ClusterState{{Name: "east", UID: "there"}}
	a = snap.Schedule(i.Kind, i.Object, b)
	if said := a.Condition.Message; a.Condition.Status != metav1.ConditionTrue || !strings.HasSuffix(said, "; east keeps its share, though the cluster (v1.30.2) does not know .spec.replicas") {
		t.Errorf("%s: %s", a.Condition.Status, said)
	}
}
