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

// errNotServed is returned when it cannot be determined now whether an object exists.
var errNotServed = errors.New("the control plane does not serve its type at the moment")

// KindOf returns the interpretation of a binding's kind, in the version that is bound. For a custom
// kind that is no longer served, it is built from the binding alone, which is enough to find the
// object in a cluster.
func (s *Session) KindOf(b *v1alpha1.ResourceBinding) (interpret.KindInfo, bool) {
	return s.Catalog().ForBinding(b)
}

// Live reads an object from the control plane, not from the cache. It returns nil if the object is
// gone: it does not exist, or its type is gone, with which the API server deletes all its objects.
// If the type exists and is merely not served, as happens while a server starts, Live returns an
// error.
func (s *Session) Live(ctx context.Context, k interpret.KindInfo, key types.NamespacedName) (*unstructured.Unstructured, error) {
	obj, err := s.Dynamic.Resource(k.GVR()).Namespace(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	switch {
	case err == nil:
		return obj, nil
	case !apierrors.IsNotFound(err):
		return nil, fmt.Errorf("read %s %s: %w", k.Kind, CacheKey(key), err)
	case !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse):
		return nil, nil
	}
	gone, err := s.TypeGone(ctx, k)
	if err != nil {
		return nil, err
	}
	if !gone {
		return nil, fmt.Errorf("read %s %s: %w", k.Kind, CacheKey(key), errNotServed)
	}
	return nil, nil
}

// TypeGone reports whether a kind was custom and its CRD is gone. It reads the CRD from the API,
// not from the cache. A kind that is built into Kubernetes and disabled in this control plane is
// not gone: it may be enabled again.
func (s *Session) TypeGone(ctx context.Context, k interpret.KindInfo) (bool, error) {
	if _, known := s.types.defines(k.GroupKind()); known {
		return false, nil
	}
	if Native(k.GroupKind()) {
		return false, nil
	}
	name := k.GVR().GroupResource().String()
	_, err := s.Dynamic.Resource(crdResource()).Get(ctx, name, metav1.GetOptions{})
	switch {
	case err == nil:
		return false, nil
	case !apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse):
		return false, fmt.Errorf("check that type %s is gone: %w", name, err)
	}
	return true, nil
}

// TypeDeleted reports whether this session has seen a user delete the CRD of a custom kind: it is
// being deleted, or was seen being deleted before it disappeared. The API server deletes the
// objects of such a type, so the user requested that too.
func (s *Session) TypeDeleted(gk schema.GroupKind) bool {
	if c, known := s.types.defines(gk); known {
		return c.DeletionTimestamp != nil
	}
	return s.types.wasDeleted(gk)
}

// TypeVanished reports whether the CRD of a custom kind is missing and this session has not seen
// its deletion. No user requested the removal of its objects.
func (s *Session) TypeVanished(gk schema.GroupKind) bool {
	_, known := s.types.defines(gk)
	return !known && !Native(gk) && !s.types.wasDeleted(gk)
}

// Native reports whether a kind of the built-in table is also built into API servers. The others
// come from CRDs in any cluster.
func Native(gk schema.GroupKind) bool {
	k, known := interpret.Find(gk)
	return known && !k.Custom
}
