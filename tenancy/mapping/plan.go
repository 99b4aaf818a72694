package mapping

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// State is what both APIs have.
type State struct {
	Child Child
	// Kinds are those of Sources and Copies. Each was listed completely.
	Kinds []interpret.KindInfo
	// Namespaces are those of the child, by name, and Sources its objects.
	Namespaces map[string]*unstructured.Unstructured
	Sources    map[schema.GroupKind][]*unstructured.Unstructured
	// ParentNamespaces are those that the child owns, and those with a name that it needs. Copies are the child's copies in its own.
	ParentNamespaces map[string]*unstructured.Unstructured
	Copies           map[schema.GroupKind][]*unstructured.Unstructured
}

// Verb is what an Action does.
type Verb string

const (
	// ApplyNamespace creates a namespace of the parent, or sets its labels.
	ApplyNamespace Verb = "apply namespace"
	// DeleteNamespace deletes a namespace of the parent, if the child has its source no longer.
	DeleteNamespace Verb = "delete namespace"
	// Apply writes a copy.
	Apply Verb = "apply"
	// Delete deletes a copy, if the child has its source no longer.
	Delete Verb = "delete"
	// WriteStatus writes the status of a source.
	WriteStatus Verb = "write status"
	// Wait does nothing: Why is in the way.
	Wait Verb = "wait"
)

// Action is one change that is to be made.
type Action struct {
	Verb Verb
	Kind interpret.KindInfo
	// Object is to be written or deleted.
	Object *unstructured.Unstructured
	// Source is the object of the child that it is about; nil for namespaces, and for Delete.
	Source *unstructured.Unstructured
	// Why is the reason of Wait.
	Why string
}

// Plan returns the changes that make both APIs agree, in their order.
func Plan(s State) ([]Action, error) {
	blocked, actions, err := s.planNamespaces()
	if err != nil {
		return nil, err
	}
	var applies, deletes, statuses []Action
	for _, k := range s.Kinds {
		copies := map[types.NamespacedName]*unstructured.Unstructured{}
		for _, c := range s.Copies[k.GroupKind()] {
			copies[types.NamespacedName{Namespace: c.GetNamespace(), Name: c.GetName()}] = c
		}
		for _, source := range s.Sources[k.GroupKind()] {
			if !isCopied(k, source) {
				continue
			}
			desired, err := s.Child.Copy(k, source)
			if err != nil {
				return nil, err
			}
			key := types.NamespacedName{Namespace: desired.GetNamespace(), Name: desired.GetName()}
			found := copies[key]
			delete(copies, key)
			action := Action{Verb: Wait, Kind: k, Object: desired, Source: source, Why: blocked[desired.GetNamespace()]}
			if action.Why == "" {
				action = s.planObject(k, source, desired, found)
			}
			switch action.Verb {
			case WriteStatus:
				statuses = append(statuses, action)
			case Delete:
				deletes = append(deletes, action)
			case Apply, Wait:
				applies = append(applies, action)
			}
		}
		for _, rest := range copies {
			deletes = append(deletes, Action{Verb: Delete, Kind: k, Object: rest})
		}
	}
	slices.SortFunc(deletes, func(a, b Action) int { return compareNames(a.Object, b.Object) })
	return slices.Concat(actions, deletes, applies, statuses, s.unusedNamespaces()), nil
}

// planObject decides about one object of the child and its copy, which may be nil.
func (s State) planObject(k interpret.KindInfo, source, desired, found *unstructured.Unstructured) (none Action) {
	switch {
	case found == nil && k.Finished(source):
		return none // a new copy of a Job would run once more
	case found == nil:
		return Action{Verb: Apply, Kind: k, Object: desired, Source: source}
	case !isCopyOf(found, source):
		return Action{Verb: Delete, Kind: k, Object: found}
	case found.GetDeletionTimestamp() != nil:
		return Action{Verb: Wait, Kind: k, Object: desired, Source: source, Why: "its copy is being deleted"}
	case !isCurrent(found, desired):
		return Action{Verb: Apply, Kind: k, Object: desired, Source: source}
	}
	status := Status(source, found)
	if status == nil || equality.Semantic.DeepEqual(status, source.Object["status"]) {
		return none
	}
	written := source.DeepCopy()
	written.Object["status"] = status
	return Action{Verb: WriteStatus, Kind: k, Object: written, Source: source}
}

// planNamespaces returns the namespaces of the parent in which nothing can be written now, with the reasons, and the actions for the others.
func (s State) planNamespaces() (blocked map[string]string, actions []Action, err error) {
	blocked = map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(s.UsedNamespaces())) {
		desired, err := s.namespace(name)
		if err != nil {
			return nil, nil, err
		}
		found := s.ParentNamespaces[desired.GetName()]
		switch {
		case found == nil:
		case !s.Child.Owns(found):
			blocked[desired.GetName()] = fmt.Sprintf("namespace %s exists in the workspace above and is not that of this workspace: ask an administrator there to remove it, or use another namespace here", desired.GetName())
			continue
		case found.GetDeletionTimestamp() != nil:
			blocked[desired.GetName()] = fmt.Sprintf("namespace %s of the workspace above is being deleted", desired.GetName())
			continue
		case found.GetAnnotations()[v1alpha1.SourceDigestAnnotation] == desired.GetAnnotations()[v1alpha1.SourceDigestAnnotation]:
			continue
		}
		actions = append(actions, Action{Verb: ApplyNamespace, Object: desired})
	}
	return blocked, actions, nil
}

// UsedNamespaces returns the namespaces of the child with objects that the parent is to have.
func (s State) UsedNamespaces() map[string]bool {
	used := map[string]bool{}
	for _, k := range s.Kinds {
		for _, source := range s.Sources[k.GroupKind()] {
			if !used[source.GetNamespace()] && isCopied(k, source) {
				used[source.GetNamespace()] = true
			}
		}
	}
	return used
}

// namespace returns the namespace of the parent for one of the child.
func (s State) namespace(name string) (*unstructured.Unstructured, error) {
	labels := merged(s.Child.NamespaceLabels, s.Child.labels())
	content, err := json.Marshal([]any{labels, name})
	if err != nil {
		return nil, err
	}
	out := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace"}}
	out.SetName(s.Child.Namespace(name))
	out.SetLabels(labels)
	out.SetAnnotations(map[string]string{v1alpha1.SourceNamespaceAnnotation: name, v1alpha1.SourceDigestAnnotation: digest(content)})
	return out, nil
}

// unusedNamespaces returns the deletions of the namespaces of the parent whose sources do not exist any more.
func (s State) unusedNamespaces() (out []Action) {
	for _, name := range slices.Sorted(maps.Keys(s.ParentNamespaces)) {
		found := s.ParentNamespaces[name]
		source := found.GetAnnotations()[v1alpha1.SourceNamespaceAnnotation]
		if s.Child.Owns(found) && source != "" && s.Namespaces[source] == nil && found.GetDeletionTimestamp() == nil {
			out = append(out, Action{Verb: DeleteNamespace, Object: found})
		}
	}
	return out
}

func compareNames(a, b *unstructured.Unstructured) int {
	return slices.Compare([]string{a.GetKind(), a.GetNamespace(), a.GetName()}, []string{b.GetKind(), b.GetNamespace(), b.GetName()})
}
