package interpret

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
)

// Attachment names what an object follows: it runs where that runs. It is one object, or all workloads
// of a namespace whose pods match a selector, or all objects of a kind whose properties match a selector.
type Attachment struct {
	// To is the object. With Pods, only its Namespace is set. With Properties, only its GroupKind.
	To Reference
	// Pods, if not nil, selects workloads by the labels of their pods.
	Pods labels.Selector
	// Properties, if not nil, selects objects of a cluster-scoped kind by their properties.
	Properties labels.Selector
}

// Selects reports whether the attachment selects the workload with these pod labels in a namespace.
// An empty label set can match too, so call it only for kinds that create pods.
func (a Attachment) Selects(namespace string, podLabels map[string]string) bool {
	return a.Pods != nil && a.To.Namespace == namespace && a.Pods.Matches(labels.Set(podLabels))
}

// MakesPods reports whether objects of the kind are workloads, to which others can attach by pod
// labels.
func (k KindInfo) MakesPods() bool { return k.template != nil || k.podLabels != nil }

// Follows returns the attachments of obj: the opposite direction of Needs. An object that follows
// several others runs where any of them runs. The referenced objects need not exist.
func (k KindInfo) Follows(obj *unstructured.Unstructured) ([]Attachment, error) {
	if k.follows == nil {
		return nil, nil
	}
	out := &attachments{refs: refs{namespace: obj.GetNamespace()}}
	if err := k.follows(obj, out); err != nil {
		return nil, fmt.Errorf("read the objects that %s %s follows: %w", k.Kind, obj.GetName(), err)
	}
	all := make([]Attachment, 0, len(out.list)+len(out.pods))
	for _, ref := range out.list {
		all = append(all, Attachment{To: ref})
	}
	for _, c := range out.chosen {
		all = append(all, Attachment{To: Reference{GroupKind: c.GroupKind}, Properties: c.Selector})
	}
	return append(all, out.pods...), nil
}

// attachments collects an object's attachments without duplicates.
type attachments struct {
	refs
	pods   []Attachment
	chosen []Choice
}

// selected adds the workloads of the object's namespace whose pods match.
func (a *attachments) selected(selector labels.Selector) { a.selectedIn(a.namespace, selector) }

func (a *attachments) selectedIn(namespace string, selector labels.Selector) {
	one := Attachment{To: Reference{Namespace: namespace}, Pods: selector}
	same := func(o Attachment) bool { return o.To == one.To && o.Pods.String() == selector.String() }
	if !slices.ContainsFunc(a.pods, same) {
		a.pods = append(a.pods, one)
	}
}

// everyWorkload attaches an object to all workloads of its namespace: it applies to all of them, or
// any of them may use it.
func everyWorkload(_ *unstructured.Unstructured, out *attachments) error {
	out.selected(labels.Everything())
	return nil
}

// selectedBy adds the workloads that a label selector of the object matches: all if it is empty,
// and none if it is nil.
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

// serviceFollows: a Service runs where the pods that it selects run. A Service without a selector
// (an ExternalName, or with manually written addresses) is used by name, so its users cannot be
// determined.
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
		return everyWorkload(obj, out) // a missing selector is an empty one
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
