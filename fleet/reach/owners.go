package reach

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
)

// owners finds the object that pods of one cluster belong to: it follows their controllers to one that is a copy of an object
// in the control plane. An owner seldom changes its own, so a cached one stays valid.
type owners struct {
	cluster  string
	clock    clock.PassiveClock
	metadata metadata.Interface
	mapper   meta.ResettableRESTMapper
	origins  *origins

	mu    sync.Mutex
	known *lru.Cache // of ancestor, by UID
}

// maxOwners bounds how many owners are kept for a cluster, of some 300 B each.
const maxOwners = 50_000

// maxDepth is how far a chain of owners is followed. CronJob, Job and pod are two; a member could make it endless.
const maxDepth = 8

// ancestor is what a chain of owners needs of an object in a cluster.
type ancestor struct {
	kind   schema.GroupKind
	name   types.NamespacedName
	parent *metav1.OwnerReference
	source types.UID // of the object in the control plane whose copy this is, if it is marked as one
	gone   bool
	since  time.Time
}

// foreignTTL is how long an object without owner and marks is not read again: it may be adopted.
const foreignTTL = 10 * time.Second

func newOwners(cluster string, client metadata.Interface, mapper meta.ResettableRESTMapper, o *origins) *owners {
	return &owners{cluster: cluster, clock: o.clock, metadata: client, mapper: mapper, origins: o, known: lru.New(maxOwners)}
}

// ancestorOf returns what a chain of owners needs of an object.
func ancestorOf(kind schema.GroupKind, obj metav1.Object, cluster string) ancestor {
	a := ancestor{kind: kind, name: types.NamespacedName{Namespace: obj.GetNamespace(), Name: obj.GetName()}, parent: metav1.GetControllerOfNoCopy(obj)}
	if obj.GetLabels()[v1alpha1.ManagedLabel] == "true" && obj.GetAnnotations()[v1alpha1.ClusterAnnotation] == cluster {
		a.source = types.UID(obj.GetAnnotations()[v1alpha1.SourceUIDAnnotation])
	}
	if a.parent != nil {
		parent := *a.parent
		a.parent = &parent
	}
	return a
}

// bound reports whether an object belongs to one that is bound to the cluster. The cluster says who owns whom and which
// object is a copy; that the object exists and is bound to the cluster is read from the control plane.
func (o *owners) bound(ctx context.Context, obj metav1.Object) (bool, error) {
	return o.follow(ctx, obj.GetNamespace(), ancestor{parent: metav1.GetControllerOf(obj)})
}

// follow follows the owners of an object, and reports whether they lead to a bound one.
func (o *owners) follow(ctx context.Context, namespace string, at ancestor) (bool, error) {
	for range maxDepth {
		if at.gone {
			return false, nil
		}
		if at.source != "" {
			return o.origins.bound(ctx, at, o.cluster)
		}
		if at.parent == nil {
			return false, nil
		}
		next, err := o.read(ctx, namespace, *at.parent)
		if err != nil {
			return false, err
		}
		at = next
	}
	return false, nil
}

// read returns an owner.
func (o *owners) read(ctx context.Context, namespace string, ref metav1.OwnerReference) (ancestor, error) {
	if a, ok := o.cached(ref.UID); ok {
		return a, nil
	}
	client, kind, err := o.client(namespace, ref)
	if err != nil {
		return ancestor{}, err
	}
	if client == nil {
		return ancestor{gone: true}, nil
	}
	obj, err := client.Get(ctx, ref.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && obj.UID != ref.UID:
		o.keep(ref.UID, ancestor{gone: true}) // a UID never comes back
		return ancestor{gone: true}, nil
	case apierrors.IsForbidden(err) && strings.Contains(kind.Group, "."):
		// The syncer of a cluster in mode Pull may read only some custom resources. Pods of others are the cluster's own.
		o.keep(ref.UID, ancestor{kind: kind})
		return ancestor{kind: kind}, nil
	case err != nil:
		return ancestor{}, fmt.Errorf("read %s %s of cluster %s: %w", ref.Kind, ref.Name, o.cluster, err)
	}
	a := ancestorOf(kind, obj, o.cluster)
	o.keep(ref.UID, a)
	return a, nil
}

// client returns the client of an owner's kind; nil if the cluster has no such kind.
func (o *owners) client(namespace string, ref metav1.OwnerReference) (metadata.ResourceInterface, schema.GroupKind, error) {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return nil, schema.GroupKind{}, nil
	}
	kind := schema.GroupKind{Group: gv.Group, Kind: ref.Kind}
	mapping, err := o.mapper.RESTMapping(kind, gv.Version)
	switch {
	case meta.IsNoMatchError(err):
		return nil, kind, nil
	case err != nil:
		return nil, kind, fmt.Errorf("find kind %s of cluster %s: %w", kind, o.cluster, err)
	case mapping.Scope.Name() == meta.RESTScopeNameRoot:
		return o.metadata.Resource(mapping.Resource), kind, nil
	}
	return o.metadata.Resource(mapping.Resource).Namespace(namespace), kind, nil
}

// prefetch reads the owners of many objects, or what many events are about, with one list for each kind: a namespace with a
// thousand Deployments would otherwise take a thousand requests. A failure shows when an owner is read by itself.
func (o *owners) prefetch(ctx context.Context, namespace string, objects []object) {
	const few = 4
	unknown := map[schema.GroupVersionKind]map[types.UID]metav1.OwnerReference{}
	for _, obj := range objects {
		ref := ownerOf(obj)
		if ref == nil {
			continue
		}
		if _, ok := o.cached(ref.UID); ok {
			continue
		}
		kind := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)
		if unknown[kind] == nil {
			unknown[kind] = map[types.UID]metav1.OwnerReference{}
		}
		unknown[kind][ref.UID] = *ref
	}
	for _, refs := range unknown {
		if len(refs) <= few {
			continue
		}
		client, kind, err := o.client(namespace, anyOf(refs))
		if err != nil || client == nil {
			continue
		}
		_ = fleet.EachPage(ctx, metav1.ListOptions{ResourceVersion: "0"}, client.List, func(page *metav1.PartialObjectMetadataList) (bool, error) {
			for i := range page.Items {
				if _, wanted := refs[page.Items[i].UID]; wanted {
					o.keep(page.Items[i].UID, ancestorOf(kind, &page.Items[i], o.cluster))
				}
			}
			return true, nil
		})
	}
}

// ownerOf returns the object that another one is shown for.
func ownerOf(obj object) *metav1.OwnerReference {
	if event, is := obj.(*corev1.Event); is {
		about := event.InvolvedObject
		return &metav1.OwnerReference{APIVersion: about.APIVersion, Kind: about.Kind, Name: about.Name, UID: about.UID}
	}
	return metav1.GetControllerOfNoCopy(obj)
}

func anyOf(refs map[types.UID]metav1.OwnerReference) (ref metav1.OwnerReference) {
	for _, ref = range refs {
		break
	}
	return ref
}

func (o *owners) cached(uid types.UID) (ancestor, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	value, ok := o.known.Get(uid)
	if !ok {
		return ancestor{}, false
	}
	a := value.(ancestor)
	foreign := !a.gone && a.parent == nil && a.source == ""
	return a, !foreign || o.clock.Since(a.since) < foreignTTL
}

func (o *owners) keep(uid types.UID, a ancestor) {
	o.mu.Lock()
	defer o.mu.Unlock()
	a.since = o.clock.Now()
	o.known.Add(uid, a)
}
