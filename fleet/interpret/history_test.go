package interpret

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// recorder applies what History decides to records in memory.
type recorder struct {
	t       *testing.T
	kind    KindInfo
	records []*unstructured.Unstructured
	others  []string
}

func newRecorder(t *testing.T, kindName string) *recorder {
	t.Helper()
	k, ok := Find(kind(appsGroup, "v1", kindName).GroupKind())
	if !ok {
		t.Fatalf("no row for %s", kindName)
	}
	return &recorder{t: t, kind: k}
}

// run returns what changed, as "write NAME" and "delete NAME".
func (r *recorder) run(obj, status any) (Recorded, []string) {
	r.t.Helper()
	u := toUnstructured(r.t, obj)
	got, err := r.kind.History(&unstructured.Unstructured{Object: u}, toUnstructured(r.t, status), r.records, func(name string) bool { return slices.Contains(r.others, name) })
	if err != nil {
		r.t.Fatal(err)
	}
	var changes []string
	for _, w := range got.Write {
		changes = append(changes, "write "+w.GetName())
		r.records = slices.DeleteFunc(r.records, func(e *unstructured.Unstructured) bool { return e.GetName() == w.GetName() })
		r.records = append(r.records, w)
	}
	for _, name := range got.Delete {
		changes = append(changes, "delete "+name)
		r.records = slices.DeleteFunc(r.records, func(e *unstructured.Unstructured) bool { return e.GetName() == name })
	}
	return got, changes
}

func (r *recorder) set(name string) appsv1.ReplicaSet {
	r.t.Helper()
	var out appsv1.ReplicaSet
	for _, e := range r.records {
		if e.GetName() == name {
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(e.Object, &out); err != nil {
				r.t.Fatal(err)
			}
		}
	}
	return out
}

func toUnstructured(t *testing.T, o any) map[string]any {
	t.Helper()
	u, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func template(image string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: image}}}}
}

func TestDeploymentHistory(t *testing.T) {
	r := newRecorder(t, "Deployment")
	replicas, limit := int32(4), int32(1)
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "u-1", Generation: 1,
		Annotations: map[string]string{"kubernetes.io/change-cause": "first", corev1.LastAppliedConfigAnnotation: "{}", v1alpha1.AdoptAnnotation: "true"}},
		Spec: appsv1.DeploymentSpec{Replicas: &replicas, RevisionHistoryLimit: &limit, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, Template: template("one")}}

	// A new Deployment has a ReplicaSet at once, with nothing ready.
	got, changes := r.run(d, &appsv1.DeploymentStatus{})
	if len(changes) != 1 || got.Revision != 1 {
		t.Fatalf("a new Deployment: %v, revision %d", changes, got.Revision)
	}
	first := got.Write[0].GetName()
	s := r.set(first)
	if *s.Spec.Replicas != 4 || s.Status.Replicas != 0 || s.Labels["pod-template-hash"] == "" || s.Spec.Selector.MatchLabels["pod-template-hash"] != s.Labels["pod-template-hash"] ||
		s.Spec.Template.Labels["pod-template-hash"] != s.Labels["pod-template-hash"] || s.Labels[v1alpha1.RevisionLabel] != "true" || s.Spec.Template.Labels[v1alpha1.RevisionLabel] != "" {
		t.Errorf("the first ReplicaSet is %+v", s)
	}
	if owner := metav1.GetControllerOf(&s); owner == nil || owner.UID != "u-1" || owner.Kind != "Deployment" {
		t.Errorf("its owner is %v", owner)
	}
	if s.Annotations["kubernetes.io/change-cause"] != "first" || s.Annotations[RevisionAnnotation] != "1" || s.Annotations[corev1.LastAppliedConfigAnnotation] != "" || s.Annotations[v1alpha1.AdoptAnnotation] != "" {
		t.Errorf("its annotations are %v", s.Annotations)
	}

	complete := func(n int32) *appsv1.DeploymentStatus {
		return &appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: n, UpdatedReplicas: n, ReadyReplicas: n, AvailableReplicas: n}
	}
	if _, changes := r.run(d, complete(4)); !slices.Equal(changes, []string{"write " + first}) || r.set(first).Status.ReadyReplicas != 4 {
		t.Errorf("complete: %v, %+v", changes, r.set(first).Status)
	}
	if _, changes := r.run(d, complete(4)); changes != nil {
		t.Errorf("nothing changed, but %v", changes)
	}

	// Another template: the old counts say nothing about it until the clusters have acted on it.
	d.Spec.Template, d.Generation = template("two"), 2
	got, changes = r.run(d, &appsv1.DeploymentStatus{ObservedGeneration: 1, Replicas: 4, UpdatedReplicas: 4, ReadyReplicas: 4, AvailableReplicas: 4})
	if len(changes) != 1 || got.Revision != 2 {
		t.Fatalf("a second template: %v, revision %d", changes, got.Revision)
	}
	second := got.Write[0].GetName()
	if r.set(second).Status.ReadyReplicas != 0 || r.set(first).Status.ReadyReplicas != 4 {
		t.Errorf("before the rollout: %+v, %+v", r.set(second).Status, r.set(first).Status)
	}
	// In the middle: 5 replicas, 2 of them updated, 4 ready. At least one updated one is ready.
	r.run(d, &appsv1.DeploymentStatus{ObservedGeneration: 2, Replicas: 5, UpdatedReplicas: 2, ReadyReplicas: 4, AvailableReplicas: 3})
	if is, was := r.set(second), r.set(first); is.Status.Replicas != 2 || is.Status.ReadyReplicas != 1 || is.Status.AvailableReplicas != 0 ||
		was.Status.Replicas != 3 || was.Status.ReadyReplicas != 3 || *was.Spec.Replicas != 3 {
		t.Errorf("in the middle: %+v and %+v", is.Status, was.Status)
	}
	if r.run(d, complete(4)); r.set(second).Status.ReadyReplicas != 4 || r.set(first).Status.Replicas != 0 || *r.set(first).Spec.Replicas != 0 {
		t.Errorf("at the end: %+v and %+v", r.set(second).Status, r.set(first).Status)
	}

	// Back to the first template: its ReplicaSet gets the next number.
	d.Spec.Template, d.Generation = template("one"), 3
	if got, changes := r.run(d, complete(4)); got.Revision != 3 || r.set(first).Annotations[RevisionAnnotation] != "3" || len(changes) != 2 {
		t.Errorf("back: %v, revision %d", changes, got.Revision)
	}
	// A third template exceeds the history limit of one.
	d.Spec.Template, d.Generation = template("three"), 4
	got, changes = r.run(d, complete(4))
	if got.Revision != 4 || !slices.Contains(changes, "delete "+second) {
		t.Errorf("beyond the limit: %v, revision %d", changes, got.Revision)
	}
	// A paused Deployment's new template has no ReplicaSet: the clusters do not run it.
	d.Spec.Template, d.Spec.Paused, d.Generation = template("four"), true, 5
	paused := &appsv1.DeploymentStatus{ObservedGeneration: 5, Replicas: 4, ReadyReplicas: 4, AvailableReplicas: 4}
	if got, changes := r.run(d, paused); slices.ContainsFunc(changes, func(c string) bool { return strings.HasPrefix(c, "write") }) || got.Revision != 4 {
		t.Errorf("paused: %v, revision %d", changes, got.Revision)
	}
}

// TestHistoryAvoidsNames: another object may have the name of a record.
func TestHistoryAvoidsNames(t *testing.T) {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "u-1"}, Spec: appsv1.DeploymentSpec{Template: template("one")}}
	r := newRecorder(t, "Deployment")
	got, _ := r.run(d, &appsv1.DeploymentStatus{})
	other := newRecorder(t, "Deployment")
	other.others = []string{got.Write[0].GetName()}
	if again, _ := other.run(d, &appsv1.DeploymentStatus{}); again.Write[0].GetName() == got.Write[0].GetName() {
		t.Error("the record replaces another object")
	}
}

func TestControllerHistory(t *testing.T) {
	for _, kindName := range []string{"StatefulSet", "DaemonSet"} {
		r := newRecorder(t, kindName)
		limit := int32(1)
		meta := metav1.ObjectMeta{Namespace: "shop", Name: "db", UID: "u-1", Annotations: map[string]string{"kubernetes.io/change-cause": "first"}}
		with := func(image string) any {
			if kindName == "DaemonSet" {
				return &appsv1.DaemonSet{TypeMeta: metav1.TypeMeta{Kind: kindName}, ObjectMeta: meta, Spec: appsv1.DaemonSetSpec{Template: template(image), RevisionHistoryLimit: &limit}}
			}
			return &appsv1.StatefulSet{TypeMeta: metav1.TypeMeta{Kind: kindName}, ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{Template: template(image), RevisionHistoryLimit: &limit}}
		}
		status := &appsv1.StatefulSetStatus{}
		got, changes := r.run(with("one"), status)
		if len(changes) != 1 || got.Revision != 1 {
			t.Fatalf("%s: %v, revision %d", kindName, changes, got.Revision)
		}
		first := got.Write[0]
		if patch, _, _ := unstructured.NestedString(first.Object, "data", "spec", "template", "$patch"); patch != "replace" || first.GetAnnotations()["kubernetes.io/change-cause"] != "first" {
			t.Errorf("%s: the record is %v", kindName, first.Object)
		}
		if _, changes := r.run(with("one"), status); changes != nil {
			t.Errorf("%s: nothing changed, but %v", kindName, changes)
		}
		if got, changes = r.run(with("two"), status); len(changes) != 1 || got.Revision != 2 {
			t.Errorf("%s: a second template: %v, revision %d", kindName, changes, got.Revision)
		}
		second := got.Write[0]
		if got, changes = r.run(with("one"), status); !slices.Equal(changes, []string{"write " + first.GetName()}) || got.Revision != 3 {
			t.Errorf("%s: back: %v, revision %d", kindName, changes, got.Revision)
		}
		if _, changes = r.run(with("three"), status); !slices.Contains(changes, "delete "+second.GetName()) {
			t.Errorf("%s: beyond the limit: %v", kindName, changes)
		}
	}
}

// TestRevisionIsNoContent: a plan that a user approved stays valid when the control plane records the
// revision of the Deployment.
func TestRevisionIsNoContent(t *testing.T) {
	for _, annotations := range []map[string]string{nil, {lastApplied: "{}"}, {"a": "b"}} {
		o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"replicas": int64(1)}}}
		o.SetAnnotations(annotations)
		before := ContentDigest(o)
		recorded := o.DeepCopy()
		with := map[string]string{RevisionAnnotation: "1"}
		for key, value := range annotations {
			with[key] = value
		}
		recorded.SetAnnotations(with)
		if ContentDigest(recorded) != before {
			t.Errorf("annotations %v: the revision changes the digest", annotations)
		}
	}
}
