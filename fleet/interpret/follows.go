package interpret

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
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
// these labels in a namespace.
func (a Attachment) Selects(namespace string, podLabels map[string]string) bool {
	return a.Pods != nil && a.To.Namespace == namespace && a.Pods.Matches(labels.Set(podLabels))
}

// Follows gives what obj goes along with: the opposite direction of Needs. An
// object that follows several is where any of them is. What it names need not
// exist.
func (k Kind) Follows(obj *unstructured.Unstructured) ([]Attachment, error) {
	if k.follows == nil {
		return nil, nil
	}
	return k.follows(obj)
}

func attached(refs ...Reference) []Attachment {
	out := make([]Attachment, len(refs))
	for i, r := range refs {
		out[i] = Attachment{To: r}
	}
	return out
}

// serviceFollows: a Service goes where the pods are that it selects.
func serviceFollows(obj *unstructured.Unstructured) ([]Attachment, error) {
	selector, _, err := unstructured.NestedStringMap(obj.Object, "spec", "selector")
	if err != nil || len(selector) == 0 {
		return nil, err
	}
	return []Attachment{{To: Reference{Namespace: obj.GetNamespace()}, Pods: labels.SelectorFromSet(selector)}}, nil
}
