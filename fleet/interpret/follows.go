package interpret

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
)

// Attachment names what an object goes along with: where that is, the object is
// too. It is either one object, or all workloads of a namespace whose pods a
// selector selects.
type Attachment struct {
	// To is the object. With Pods, only its Namespace is set.
	To Reference
	// Pods, if not nil, selects workloads by the labels of their pods.
	Pods labels.Selector
}

// Selects tells whether the attachment is to the workload that has pods with
// these labels in a namespace. A workload whose pods have no labels has pods all
// the same: ask only about kinds that make some.
func (a Attachment) Selects(namespace string, podLabels map[string]string) bool {
	return a.Pods != nil && a.To.Namespace == namespace && a.Pods.Matches(labels.Set(podLabels))
}

// MakesPods tells whether objects of the kind are workloads to which others can be
// attached by the labels of their pods.
func (k Kind) MakesPods() bool { return k.template != nil || k.podLabels != nil }

// Follows gives what obj goes along with: the opposite direction of Needs. An
// object that follows several is where any of them is. What it names need not
// exist.
func (k Kind) Follows(obj *unstructured.Unstructured) ([]Attachment, error) {
	if k.follows == nil {
		return nil, nil
	}
	out := &attachments{refs: refs{namespace: obj.GetNamespace()}}
	if err := k.follows(obj, out); err != nil {
		return nil, fmt.Errorf("what %s %s goes along with: %w", k.Kind, obj.GetName(), err)
	}
	all := make([]Attachment, 0, len(out.list)+len(out.pods))
	for _, ref := range out.list {
		all = append(all, Attachment{To: ref})
	}
	return append(all, out.pods...), nil
}

// attachments gathers what an object goes along with, each once.
type attachments struct {
	refs
	pods []Attachment
}

// selected adds the workloads of the object's namespace whose pods are selected.
func (a *attachments) selected(selector labels.Selector) { a.selectedIn(a.namespace, selector) }

func (a *attachments) selectedIn(namespace string, selector labels.Selector) {
	one := Attachment{To: Reference{Namespace: namespace}, Pods: selector}
	same := func(o Attachment) bool { return o.To == one.To && o.Pods.String() == selector.String() }
	if !slices.ContainsFunc(a.pods, same) {
		a.pods = append(a.pods, one)
	}
}

// everyWorkload is for what holds for, or may be used by, all of a namespace.
func everyWorkload(_ *unstructured.Unstructured, out *attachments) error {
	out.selected(labels.Everything())
	return nil
}

// selectedBy adds the workloads that a label selector of the object selects: all,
// if it is empty, and none if there is none.
func (a *attachments) selectedBy(field map[string]any) error {
	if field == nil {
		return nil
	}
	var s metav1.LabelSelector
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(field, &s); err != nil {
		return fmt.Errorf("selector: %w", err)
	}
	selector, err := metav1.LabelSelectorAsSelector(&s)
	if err == nil {
		a.selected(selector)
	}
	return err
}

// serviceFollows: a Service goes where the pods are that it selects. One that
// selects none (an ExternalName, or addresses that somebody wrote by hand) is used
// by name, and nobody can see by whom.
func serviceFollows(obj *unstructured.Unstructured, out *attachments) error {
	selector, _, err := unstructured.NestedStringMap(obj.Object, "spec", "selector")
	switch {
	case err != nil:
		return err
	case len(selector) == 0:
		return everyWorkload(obj, out)
	}
	out.selected(labels.SelectorFromSet(selector))
	return nil
}

func endpointsFollows(obj *unstructured.Unstructured, out *attachments) error {
	out.core("Service", obj.GetName())
	return nil
}

func endpointSliceFollows(obj *unstructured.Unstructured, out *attachments) error {
	out.core("Service", obj.GetLabels()[serviceNameLabel])
	return nil
}

func networkPolicyFollows(obj *unstructured.Unstructured, out *attachments) error {
	pods := object(obj.Object, "spec", "podSelector")
	if pods == nil {
		return everyWorkload(obj, out) // left out it is empty
	}
	return out.selectedBy(pods)
}

func apiServiceFollows(obj *unstructured.Unstructured, out *attachments) error {
	out.add(refer("", "Service", text(obj.Object, "spec", "service", "namespace"), text(obj.Object, "spec", "service", "name")))
	return nil
}

func webhookFollows(obj *unstructured.Unstructured, out *attachments) error {
	for _, hook := range items(obj.Object, "webhooks") {
		out.add(refer("", "Service", text(hook, "clientConfig", "service", "namespace"), text(hook, "clientConfig", "service", "name")))
	}
	return nil
}
