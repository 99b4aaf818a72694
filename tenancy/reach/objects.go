package reach

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	members "github.com/atoll-dev/atoll/fleet/reach"
)

const (
	// sourcesKept bounds Shared.sources, of some 200 B each.
	sourcesKept = 20_000
	// warningCode is that of Kubernetes' warnings. maxWarnings and maxWarning bound what a parent says about one request.
	warningCode = 299
	maxWarnings = 64
	maxWarning  = 1024
)

var parameters = scheme.ParameterCodec

func contains(all []string, one string) bool { return slices.Contains(all, one) }

func newObject(resource string) members.Object {
	if resource == members.Events {
		return &corev1.Event{}
	}
	return &corev1.Pod{}
}

func newList(resource string) runtime.Object {
	if resource == members.Events {
		return &corev1.EventList{}
	}
	return &corev1.PodList{}
}

// show gives an object of the parent the namespace that the child knows.
func show(of owned, obj members.Object) {
	obj.SetNamespace(of.namespace)
	event, is := obj.(*corev1.Event)
	if !is {
		return
	}
	if event.InvolvedObject.Namespace == of.above {
		event.InvolvedObject.Namespace = of.namespace
	}
	if event.Related != nil && event.Related.Namespace == of.above {
		event.Related.Namespace = of.namespace
	}
}

// complete reports whether the child sees an object of the parent. An event about a copy becomes one about the object of the child: kubectl describe looks
// for its UID.
func (p *Parent) complete(ctx context.Context, of owned, obj members.Object) (bool, error) {
	if obj.GetNamespace() != of.above {
		return false, nil
	}
	event, is := obj.(*corev1.Event)
	if !is {
		return true, nil
	}
	about := &event.InvolvedObject
	if about.Namespace != of.above {
		return false, nil
	}
	k, known := interpret.Find(schema.FromAPIVersionAndKind(about.APIVersion, about.Kind).GroupKind())
	if !known || k.ClusterScoped || about.Kind == "Pod" || about.UID == "" {
		return true, nil
	}
	source, err := p.sourceOf(ctx, k, *about)
	if source != "" {
		about.UID = source
	}
	return err == nil, err
}

// copyKey identifies a copy of an object of a child.
type copyKey struct{ child, uid types.UID }

// sourceOf returns the UID of the child's object whose copy an event is about; "" if that is none of the child's copies, or gone.
func (p *Parent) sourceOf(ctx context.Context, k interpret.KindInfo, about corev1.ObjectReference) (types.UID, error) {
	key := copyKey{p.Child.UID, about.UID}
	if known, ok := p.sources.Get(key); ok {
		return known.(types.UID), nil
	}
	found, err := p.objects.Resource(k.GVR()).Namespace(about.Namespace).Get(ctx, about.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsForbidden(err):
		return "", nil // of a kind that the parent does not place
	case apierrors.IsNotFound(err):
		p.sources.Add(key, types.UID("")) // the UID does not come back
		return "", nil
	case err != nil:
		return "", ofParent(err)
	}
	source := types.UID("")
	if found.GetUID() == about.UID && p.Child.Owns(found) {
		source = types.UID(found.GetAnnotations()[v1alpha1.SourceUIDAnnotation])
	}
	p.sources.Add(key, source)
	return source, nil
}
