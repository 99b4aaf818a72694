package interpret

import (
	"bytes"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// toolsOfPeople are the prefixes of the field managers with which people and their tools write. Any other
// manager counts as a controller of the cluster: those complete objects on purpose, as cert-manager sets
// the caBundle of a webhook, and would set a field again for ever.
func toolsOfPeople() []string {
	return []string{"kubectl", "helm", "k9s", "Lens", "Mozilla", "dashboard", "Terraform", "HashiCorp", "OpenTofu", "argocd-controller", "kustomize-controller", "helm-controller"}
}

// restartedAt is what kubectl rollout restart sets in a pod template. Reverting it would restart the pods
// once more.
const restartedAt = "kubectl.kubernetes.io/restartedAt"

// Added are the fields that people added to a member's object.
type Added struct {
	// Fields are the fields in Kubernetes' own notation.
	Fields *fieldpath.Set
	// Paths are the same for messages, without the fields that only contain others.
	Paths []string
	// Managers are the names of the tools.
	Managers []string
}

// AddedFields returns the fields of a member's object that a tool of people owns and the manager does not.
// It returns nothing that is desired, nothing of metadata, which others may label and annotate, nothing
// that was written through a subresource, as autoscalers do, and not the replica count, which has rules of
// its own. Without managed fields it returns nothing.
func (k KindInfo) AddedFields(obj, desired *unstructured.Unstructured, manager string) (Added, bool) {
	type owned struct {
		by     string
		fields *fieldpath.Set
	}
	if !slices.ContainsFunc(obj.GetManagedFields(), func(e metav1.ManagedFieldsEntry) bool { return e.Subresource == "" && isToolOfPeople(e.Manager) }) {
		return Added{}, false // the usual case, which decodes nothing
	}
	ours, theirs := fieldpath.NewSet(), fieldpath.NewSet()
	var tools []owned // one manager may have several entries
	for _, entry := range obj.GetManagedFields() {
		set, ok := setOf(entry)
		switch {
		case !ok || entry.Subresource != "":
		case entry.Manager == manager:
			ours = ours.Union(set)
		case isToolOfPeople(entry.Manager):
			theirs, tools = theirs.Union(set), append(tools, owned{entry.Manager, set})
		}
	}
	added := fieldpath.NewSet()
	theirs.Difference(ours).Iterate(func(path fieldpath.Path) {
		if len(path) > 1 && isContent(path[0]) && !k.isReplicaCount(path) && !isRestart(path) && !contains(desired.Object, path) {
			added.Insert(path.Copy())
		}
	})
	if added.Empty() {
		return Added{}, false
	}
	out := Added{Fields: added}
	added.Leaves().Iterate(func(path fieldpath.Path) {
		out.Paths = append(out.Paths, strings.TrimPrefix(path.String(), "."))
	})
	for _, tool := range tools {
		if !slices.Contains(out.Managers, tool.by) && !tool.fields.Intersection(added).Empty() {
			out.Managers = append(out.Managers, tool.by)
		}
	}
	slices.Sort(out.Managers)
	return out, true
}

// isRestart reports whether a field is restartedAt, or the map that may have nothing else.
func isRestart(path fieldpath.Path) bool {
	text := path.String()
	return strings.HasSuffix(text, ".metadata.annotations") || strings.HasSuffix(text, ".metadata.annotations."+restartedAt)
}

// contains reports whether a value has something at a path.
func contains(v any, path fieldpath.Path) bool {
	if len(path) == 0 {
		return true
	}
	step, rest := path[0], path[1:]
	if step.FieldName != nil {
		m, _ := v.(map[string]any)
		next, ok := m[*step.FieldName]
		return ok && contains(next, rest)
	}
	list, _ := v.([]any)
	return slices.ContainsFunc(list, func(item any) bool {
		switch {
		case step.Value != nil:
			return value.Equals(*step.Value, value.NewValueInterface(item))
		case step.Key == nil:
			return false
		}
		m, _ := item.(map[string]any)
		for _, key := range *step.Key {
			// Defaulted keys, as a port's protocol, may be missing.
			if have, ok := m[key.Name]; ok && !value.Equals(key.Value, value.NewValueInterface(have)) {
				return false
			}
		}
		return contains(item, rest)
	})
}

// isContent reports whether a top-level field belongs to what an author writes.
func isContent(top fieldpath.PathElement) bool {
	if top.FieldName == nil {
		return false
	}
	switch *top.FieldName {
	case "apiVersion", "kind", "metadata", "status":
		return false
	}
	return true
}

// isReplicaCount reports whether a field is the number of replicas that clusters share.
func (k KindInfo) isReplicaCount(path fieldpath.Path) bool {
	return slices.EqualFunc(path, k.ReplicasPath(), func(step fieldpath.PathElement, name string) bool {
		return step.FieldName != nil && *step.FieldName == name
	})
}

func isToolOfPeople(manager string) bool {
	return slices.ContainsFunc(toolsOfPeople(), func(prefix string) bool { return strings.HasPrefix(manager, prefix) })
}

func setOf(entry metav1.ManagedFieldsEntry) (*fieldpath.Set, bool) {
	if entry.FieldsV1 == nil {
		return nil, false
	}
	set := fieldpath.NewSet()
	err := set.FromJSON(bytes.NewReader(entry.FieldsV1.GetRawBytes()))
	return set, err == nil
}

// TakeOver returns the managed fields of an object after the manager has taken added fields from their
// owners. When the manager then applies an object without these fields, they are removed. It returns
// false if the manager has applied nothing yet.
func TakeOver(obj *unstructured.Unstructured, added Added, manager string) ([]metav1.ManagedFieldsEntry, bool) {
	var out []metav1.ManagedFieldsEntry
	taken := false
	for _, entry := range obj.GetManagedFields() {
		set, ok := setOf(entry)
		switch {
		case !ok || entry.Subresource != "":
		case entry.Manager == manager && entry.Operation == metav1.ManagedFieldsOperationApply:
			set, taken = set.Union(added.Fields), true
		case slices.Contains(added.Managers, entry.Manager):
			if set = set.Difference(added.Fields); set.Empty() {
				continue
			}
		default:
			ok = false
		}
		if ok && entry.Subresource == "" {
			text, err := set.ToJSON()
			if err != nil {
				return nil, false
			}
			entry.FieldsV1 = metav1.NewFieldsV1(string(text))
		}
		out = append(out, entry)
	}
	return out, taken
}
