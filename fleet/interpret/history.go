package interpret

import (
	"cmp"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/dump"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// In a cluster, controllers record each version of a workload's pod template: the Deployment
// controller in a ReplicaSet, those of StatefulSets and DaemonSets in a ControllerRevision. kubectl
// rollout history and undo read these records, and helm --wait reads how many replicas of the newest
// ReplicaSet are ready. The control plane runs no such controllers, so it keeps the records itself.
// They are never placed: the members' controllers make their own.

// RevisionAnnotation is the number of a Deployment's current template, and of a ReplicaSet's.
const RevisionAnnotation = "deployment.kubernetes.io/revision"

// HistoryKind returns the kind of the records of a workload's templates. It returns false if the
// kind has no records.
func (k KindInfo) HistoryKind() (schema.GroupVersionKind, bool) {
	switch {
	case k.Group != appsGroup:
	case k.Kind == "Deployment":
		return kind(appsGroup, "v1", "ReplicaSet"), true
	case k.Kind == "StatefulSet", k.Kind == "DaemonSet":
		return kind(appsGroup, "v1", "ControllerRevision"), true
	}
	return schema.GroupVersionKind{}, false
}

// Recorded is what should be recorded about the templates of a workload.
type Recorded struct {
	// Write are the records that differ from the existing ones, or do not exist. A ReplicaSet has
	// its status, without the observed generation.
	Write []*unstructured.Unstructured
	// Delete are the names of records beyond the workload's history limit.
	Delete []string
	// Revision is the number of the workload's template, or 0 if it has none yet.
	Revision int64
}

// History decides what is recorded about the templates of a workload. status is the workload's
// status as aggregated from the clusters. existing are its records, and taken reports whether an
// object that is none of them has a name.
func (k KindInfo) History(obj *unstructured.Unstructured, status map[string]any, existing []*unstructured.Unstructured, taken func(name string) bool) (Recorded, error) {
	var out Recorded
	var err error
	switch kind, _ := k.HistoryKind(); kind.Kind {
	case "ReplicaSet":
		out, err = deploymentHistory(obj, status, existing, taken)
	case "ControllerRevision":
		out, err = controllerHistory(obj, existing, taken)
	}
	if err != nil {
		return Recorded{}, fmt.Errorf("record the revisions of %s %s/%s: %w", k.Kind, obj.GetNamespace(), obj.GetName(), err)
	}
	return out, nil
}

// maxCollisions is how many names are tried for a record. A second one is needed only if another
// object has the first.
const maxCollisions = 5

// freeName returns the first name, with its hash, that no other object has.
func freeName(owner string, hash func(collisions int) string, taken func(string) bool) (name, suffix string, err error) {
	for n := range maxCollisions {
		suffix = hash(n)
		if name = owner + "-" + suffix; !taken(name) {
			return name, suffix, nil
		}
	}
	return "", "", fmt.Errorf("another object has the name %s", name)
}

// hashOf returns the hash that Kubernetes' controllers would give a record of this content, so that
// its name is the same here and in the clusters, if nothing overrides the template there.
func hashOf(content string, collisions int) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(content))
	if collisions > 0 {
		_, _ = h.Write([]byte{byte(collisions), 0, 0, 0, 0, 0, 0, 0})
	}
	return rand.SafeEncodeString(strconv.FormatUint(uint64(h.Sum32()), 10))
}

// deploymentHistory keeps one ReplicaSet for each template of a Deployment, as its controller in a
// cluster would: a template that returns gets the next number instead of a second ReplicaSet.
func deploymentHistory(obj *unstructured.Unstructured, status map[string]any, existing []*unstructured.Unstructured, taken func(string) bool) (Recorded, error) {
	var d appsv1.Deployment
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, &d); err != nil {
		return Recorded{}, err
	}
	d.Status = appsv1.DeploymentStatus{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(status, &d.Status); err != nil {
		return Recorded{}, err
	}
	sets := make([]*appsv1.ReplicaSet, len(existing))
	for i, e := range existing {
		sets[i] = new(appsv1.ReplicaSet)
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(e.Object, sets[i]); err != nil {
			return Recorded{}, err
		}
	}
	// The newest first.
	slices.SortFunc(sets, func(a, b *appsv1.ReplicaSet) int {
		return cmp.Or(cmp.Compare(setRevision(b), setRevision(a)), cmp.Compare(a.Name, b.Name))
	})

	var out Recorded
	write := func(was, is *appsv1.ReplicaSet) error {
		if was != nil {
			is.Status.ObservedGeneration = was.Generation
			if equality.Semantic.DeepEqual(was, is) {
				return nil
			}
		}
		u, err := runtime.DefaultUnstructuredConverter.ToUnstructured(is)
		if err != nil {
			return err
		}
		pruneNulls(u)
		out.Write = append(out.Write, &unstructured.Unstructured{Object: u})
		return nil
	}

	highest := int64(0)
	if len(sets) > 0 {
		highest = setRevision(sets[0])
	}
	at := slices.IndexFunc(sets, func(s *appsv1.ReplicaSet) bool { return sameTemplate(s.Spec.Template, d.Spec.Template) })
	var current, was *appsv1.ReplicaSet
	switch {
	case at >= 0:
		was = sets[at]
		current = was.DeepCopy()
		sets = slices.Delete(sets, at, at+1)
		if at > 0 {
			highest++
		}
	case d.Spec.Paused:
		// The clusters do not run the new template yet.
	default:
		name, hash, err := freeName(d.Name, func(n int) string { return hashOf(dump.ForHash(d.Spec.Template), n) }, taken)
		if err != nil {
			return Recorded{}, err
		}
		current = newReplicaSet(&d, name, hash)
		highest++
	}

	counts := countRevisions(d.Status, d.Status.ObservedGeneration >= d.Generation)
	if current != nil {
		out.Revision = highest
		current.OwnerReferences = ownedBy(obj, "Deployment")
		recordAnnotations(current, &d, highest)
		current.Spec.Replicas = d.Spec.Replicas
		current.Spec.MinReadySeconds = d.Spec.MinReadySeconds
		if counts != nil {
			setCounts(current, counts.current)
		}
		if err := write(was, current); err != nil {
			return Recorded{}, err
		}
	} else if out.Revision = highest; counts != nil {
		counts.previous = replicaCounts{d.Status.Replicas, d.Status.ReadyReplicas, d.Status.AvailableReplicas}
	}

	keep := historyLimit(d.Spec.RevisionHistoryLimit)
	for i, s := range sets {
		if counts == nil { // which template the reported replicas have is unknown
			continue
		}
		is := s.DeepCopy()
		is.OwnerReferences = ownedBy(obj, "Deployment")
		share := replicaCounts{}
		if i == 0 {
			share = counts.previous
		}
		is.Spec.Replicas = &share.replicas
		setCounts(is, share)
		if share.replicas == 0 && i >= keep {
			out.Delete = append(out.Delete, s.Name)
			continue
		}
		if err := write(s, is); err != nil {
			return Recorded{}, err
		}
	}
	return out, nil
}

func newReplicaSet(d *appsv1.Deployment, name, hash string) *appsv1.ReplicaSet {
	set := &appsv1.ReplicaSet{
		TypeMeta:   metav1.TypeMeta{APIVersion: appsGroup + "/v1", Kind: "ReplicaSet"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: d.Namespace, Labels: maps.Clone(d.Spec.Template.Labels)},
		Spec:       appsv1.ReplicaSetSpec{Selector: d.Spec.Selector.DeepCopy(), Template: *d.Spec.Template.DeepCopy()},
	}
	if set.Labels == nil {
		set.Labels = map[string]string{}
	}
	if set.Spec.Selector == nil {
		set.Spec.Selector = &metav1.LabelSelector{}
	}
	set.Spec.Selector = metav1.CloneSelectorAndAddLabel(set.Spec.Selector, appsv1.DefaultDeploymentUniqueLabelKey, hash)
	set.Spec.Template.Labels = maps.Clone(set.Labels)
	set.Labels[appsv1.DefaultDeploymentUniqueLabelKey], set.Spec.Template.Labels[appsv1.DefaultDeploymentUniqueLabelKey] = hash, hash
	set.Labels[v1alpha1.RevisionLabel] = "true"
	return set
}

// recordAnnotations copies the Deployment's annotations, of which kubectl rollout history shows
// kubernetes.io/change-cause.
func recordAnnotations(set *appsv1.ReplicaSet, d *appsv1.Deployment, revision int64) {
	set.Annotations = recordedAnnotations(d.Annotations)
	set.Annotations[RevisionAnnotation] = strconv.FormatInt(revision, 10)
	if d.Spec.Replicas != nil {
		set.Annotations["deployment.kubernetes.io/desired-replicas"] = strconv.Itoa(int(*d.Spec.Replicas))
	}
}

func recordedAnnotations(of map[string]string) map[string]string {
	out := map[string]string{}
	for key, value := range of {
		if !ownAnnotation(key) && !ownMark(key) {
			out[key] = value
		}
	}
	return out
}

func setRevision(s *appsv1.ReplicaSet) int64 {
	n, err := strconv.ParseInt(s.Annotations[RevisionAnnotation], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func sameTemplate(a, b corev1.PodTemplateSpec) bool {
	a, b = *a.DeepCopy(), *b.DeepCopy()
	delete(a.Labels, appsv1.DefaultDeploymentUniqueLabelKey)
	delete(b.Labels, appsv1.DefaultDeploymentUniqueLabelKey)
	return equality.Semantic.DeepEqual(a, b)
}

// replicaCounts are the counts of one ReplicaSet.
type replicaCounts struct{ replicas, ready, available int32 }

// revisionCounts divide a Deployment's counts between its current and its previous template.
type revisionCounts struct{ current, previous replicaCounts }

// countRevisions divides the counts of a Deployment, which do not say how many of the ready replicas
// have the current template. It assumes that all others are ready. So it never counts a replica of
// the current template as ready that is not, and once the rollout is complete the counts are exact.
// Until the clusters have acted on the latest generation, nothing is known, and it returns nil.
func countRevisions(s appsv1.DeploymentStatus, observed bool) *revisionCounts {
	if !observed {
		return nil
	}
	old := max(0, s.Replicas-s.UpdatedReplicas)
	current := replicaCounts{s.UpdatedReplicas, max(0, min(s.UpdatedReplicas, s.ReadyReplicas-old)), max(0, min(s.UpdatedReplicas, s.AvailableReplicas-old))}
	return &revisionCounts{current, replicaCounts{old, max(0, min(old, s.ReadyReplicas-current.ready)), max(0, min(old, s.AvailableReplicas-current.available))}}
}

func setCounts(s *appsv1.ReplicaSet, c replicaCounts) {
	s.Status.Replicas, s.Status.FullyLabeledReplicas = c.replicas, c.replicas
	s.Status.ReadyReplicas, s.Status.AvailableReplicas = c.ready, c.available
}

func ownedBy(obj *unstructured.Unstructured, kind string) []metav1.OwnerReference {
	yes := true
	return []metav1.OwnerReference{{APIVersion: appsGroup + "/v1", Kind: kind, Name: obj.GetName(), UID: obj.GetUID(), Controller: &yes, BlockOwnerDeletion: &yes}}
}

// historyLimit returns how many records are kept of templates that are no longer used.
func historyLimit(limit *int32) int {
	if limit == nil {
		return 10 // the default of every kind that has the field
	}
	return int(max(0, *limit))
}

// controllerHistory keeps one ControllerRevision for each template of a StatefulSet or DaemonSet. Its
// data is the patch that kubectl rollout undo applies.
func controllerHistory(obj *unstructured.Unstructured, existing []*unstructured.Unstructured, taken func(string) bool) (Recorded, error) {
	spec, data, err := revisionData(obj)
	if err != nil {
		return Recorded{}, err
	}
	records := slices.Clone(existing)
	number := func(u *unstructured.Unstructured) int64 { n, _ := number(u.Object, "revision"); return n }
	slices.SortFunc(records, func(a, b *unstructured.Unstructured) int {
		return cmp.Or(cmp.Compare(number(b), number(a)), cmp.Compare(a.GetName(), b.GetName()))
	})
	highest := int64(0)
	if len(records) > 0 {
		highest = number(records[0])
	}
	at := slices.IndexFunc(records, func(u *unstructured.Unstructured) bool {
		is, err := json.Marshal(u.Object["data"])
		return err == nil && string(is) == string(data)
	})
	var out Recorded
	owners := ownedBy(obj, obj.GetKind())
	if at < 0 {
		hashLabel, content := "controller.kubernetes.io/hash", string(data)
		if obj.GetKind() == "DaemonSet" {
			hashLabel, content = appsv1.DefaultDaemonSetUniqueLabelKey, dump.ForHash(spec.Template)
		}
		name, hash, err := freeName(obj.GetName(), func(n int) string { return hashOf(content, n) }, taken)
		if err != nil {
			return Recorded{}, err
		}
		var patch map[string]any
		if err := utiljson.Unmarshal(data, &patch); err != nil {
			return Recorded{}, err
		}
		record := &unstructured.Unstructured{Object: map[string]any{"apiVersion": appsGroup + "/v1", "kind": "ControllerRevision", "data": patch, "revision": highest + 1}}
		record.SetName(name)
		record.SetNamespace(obj.GetNamespace())
		labels := maps.Clone(spec.Template.Labels)
		if labels == nil {
			labels = map[string]string{}
		}
		labels[hashLabel], labels[v1alpha1.RevisionLabel] = hash, "true"
		record.SetLabels(labels)
		record.SetAnnotations(recordedAnnotations(obj.GetAnnotations()))
		record.SetOwnerReferences(owners)
		out.Write, out.Revision = append(out.Write, record), highest+1
	} else {
		current := records[at].DeepCopy()
		records = slices.Delete(records, at, at+1)
		if at > 0 {
			highest++
		}
		out.Revision = highest
		if number(current) != highest || !equality.Semantic.DeepEqual(current.GetOwnerReferences(), owners) {
			current.Object["revision"] = highest
			current.SetOwnerReferences(owners)
			out.Write = append(out.Write, current)
		}
	}
	for i, r := range records {
		if i >= historyLimit(spec.RevisionHistoryLimit) {
			out.Delete = append(out.Delete, r.GetName())
		}
	}
	return out, nil
}

// revised are the fields of a StatefulSet or DaemonSet that its records depend on.
type revised struct {
	Template             corev1.PodTemplateSpec `json:"template"`
	RevisionHistoryLimit *int32                 `json:"revisionHistoryLimit"`
}

// revisionData returns these fields, and the data of a ControllerRevision.
func revisionData(obj *unstructured.Unstructured) (revised, []byte, error) {
	var spec revised
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object(obj.Object, "spec"), &spec); err != nil {
		return spec, nil, err
	}
	template, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&spec.Template)
	if err != nil {
		return spec, nil, err
	}
	pruneNulls(template)
	template["$patch"] = "replace"
	data, err := json.Marshal(map[string]any{"spec": map[string]any{"template": template}})
	return spec, data, err
}
