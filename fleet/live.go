package fleet

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// errNotServed: whether an object exists cannot be found out now.
var errNotServed = errors.New("the control plane does not serve its type now")

// KindOf gives what is known of the kind that a binding is about, in the version
// that it is bound in. Of a custom kind that is no longer served that is what the
// binding itself says, which is enough to find the object in a cluster.
func (t *Term) KindOf(b *v1alpha1.ResourceBinding) (interpret.Kind, bool) {
	return t.Knowledge().Bound(b)
}

// Live gives an object of the control plane as it is now, past the cache, or nil if
// it is gone: because there is none of its name, or because its type is gone, with
// which the API server deletes all objects of it. That a type is merely not served,
// as happens while a server starts, is an error.
func (t *Term) Live(ctx context.Context, k interpret.Kind, key types.NamespacedName) (*unstructured.Unstructured, error) {
	obj, err := t.Dynamic.Resource(k.GVR()).Namespace(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	switch {
	case err == nil:
		return obj, nil
	case !apierrors.IsNotFound(err):
		return nil, fmt.Errorf("read %s %s: %w", k.Kind, CacheKey(key), err)
	case !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse):
		return nil, nil
	}
	gone, err := t.TypeGone(ctx, k)
	if err != nil {
		return nil, err
	}
	if !gone {
		return nil, fmt.Errorf("read %s %s: %w", k.Kind, CacheKey(key), errNotServed)
	}
	return nil, nil
}

// TypeGone tells whether a kind was a custom one and its CRD is gone, asked for
// live. A kind that Kubernetes has built in and this control plane does not serve is
// not gone: it may be switched on again.
func (t *Term) TypeGone(ctx context.Context, k interpret.Kind) (bool, error) {
	if _, known := t.types.defines(k.GroupKind()); known {
		return false, nil
	}
	if Native(k.GroupKind()) {
		return false, nil
	}
	name := k.GVR().GroupResource().String()
	_, err := t.Dynamic.Resource(crdResource()).Get(ctx, name, metav1.GetOptions{})
	switch {
	case err == nil:
		return false, nil
	case !apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse):
		return false, fmt.Errorf("make sure that type %s is gone: %w", name, err)
	}
	return true, nil
}

// TypeDeleted tells whether somebody deleted the CRD of a custom kind, as far as this
// term has seen: it is on its way out, or gone after it was. The API server deletes the
// objects of such a type, and whoever deletes it asks for that.
func (t *Term) TypeDeleted(gk schema.GroupKind) bool {
	if c, known := t.types.defines(gk); known {
		return c.DeletionTimestamp != nil
	}
	return t.types.wasDeleted(gk)
}

// TypeVanished tells whether a kind is a custom one whose CRD is missing, and this term
// has not seen anybody delete it: whatever became of the objects, nobody asked for it.
func (t *Term) TypeVanished(gk schema.GroupKind) bool {
	_, known := t.types.defines(gk)
	return !known && !Native(gk) && !t.types.wasDeleted(gk)
}

// Native tells whether a kind of the table is built into API servers. The others
// come from CRDs in any cluster.
func Native(gk schema.GroupKind) bool {
	k, known := interpret.Find(gk)
	return known && !k.Custom
}
