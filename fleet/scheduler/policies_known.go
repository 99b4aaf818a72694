package scheduler

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/fleet/placement"
)

// knownPolicies has the revisions of the keyspace up to which decisions follow all policies. Objects and policies arrive in different
// watches: an object may arrive before the policy that was created first, and would start in clusters where it must not run.
type knownPolicies struct {
	// newest is the revision of the newest object that has arrived.
	newest atomic.Uint64

	mu sync.Mutex
	// from is the revision of the caches when the session began, and at those for the Placements of a namespace; "" stands for ClusterPlacements.
	from uint64
	at   map[string]uint64
}

// knownNamespaces bounds how many revisions are kept.
const knownNamespaces = 10_000

// policyRetry is how soon an object is tried again whose policy has not arrived.
const policyRetry = 50 * time.Millisecond

func newKnownPolicies() *knownPolicies { return &knownPolicies{at: map[string]uint64{}} }

// arrived records an object that arrived.
func (p *knownPolicies) arrived(obj metav1.Object) {
	is := revision(obj.GetResourceVersion())
	for {
		newest := p.newest.Load()
		if is <= newest || p.newest.CompareAndSwap(newest, is) {
			return
		}
	}
}

// has reports whether all policies of a namespace are known that existed at a revision.
func (p *knownPolicies) has(namespace string, at uint64) bool {
	return at <= max(p.from, p.at[namespace])
}

func (p *knownPolicies) set(namespace string, at uint64) {
	if len(p.at) >= knownNamespaces {
		clear(p.at)
	}
	p.at[namespace] = max(p.at[namespace], at)
}

// revision returns that of a resourceVersion; 0 if it is none.
func revision(resourceVersion string) uint64 {
	n, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// knowsPolicies reports whether decisions about an object follow all policies that existed when it was written. Unless that
// is known, it asks the API which those are. If one of them has not arrived, the caller tries again after policyRetry.
func (s *scheduler) knowsPolicies(ctx context.Context, obj *unstructured.Unstructured) (bool, error) {
	s.known.mu.Lock()
	defer s.known.mu.Unlock()
	written := revision(obj.GetResourceVersion())
	for _, namespace := range []string{obj.GetNamespace(), ""} {
		if s.known.has(namespace, written) {
			continue
		}
		at, err := s.policiesAt(ctx, namespace, max(written, s.known.newest.Load()))
		if err != nil {
			return false, fmt.Errorf("read the policies that exist: %w", err)
		}
		if at < written {
			return false, nil
		}
		s.known.set(namespace, at)
	}
	return true, nil
}

// policiesAt returns a revision up to which the policies of a namespace are known: at, a later one, or 0.
func (s *scheduler) policiesAt(ctx context.Context, namespace string, at uint64) (uint64, error) {
	// The list as of a revision does not wait for anything, but may have policies that were deleted since.
	list, err := s.listPolicies(ctx, namespace, metav1.ListOptions{ResourceVersion: strconv.FormatUint(at, 10), ResourceVersionMatch: metav1.ResourceVersionMatchExact})
	if err == nil && s.followsAll(namespace, list) {
		return at, nil
	}
	if err != nil && !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		return 0, err
	}
	list, err = s.listPolicies(ctx, namespace, metav1.ListOptions{})
	if err != nil || !s.followsAll(namespace, list) {
		return 0, err
	}
	return revision(list.GetResourceVersion()), nil
}

func (s *scheduler) listPolicies(ctx context.Context, namespace string, options metav1.ListOptions) (*unstructured.UnstructuredList, error) {
	if namespace == "" {
		return s.Dynamic.Resource(v1alpha1.ClusterPlacementResource).List(ctx, options)
	}
	return s.Dynamic.Resource(v1alpha1.PlacementResource).Namespace(namespace).List(ctx, options)
}

// followsAll reports whether decisions follow these policies, or newer ones.
func (s *scheduler) followsAll(namespace string, list *unstructured.UnstructuredList) bool {
	informer := s.Policies.ClusterPlacements.Informer
	if namespace != "" {
		informer = s.Policies.Placements.Informer
	}
	for i := range list.Items {
		listed := &list.Items[i]
		obj, exists, err := informer.GetStore().GetByKey(controllers.CacheKey(types.NamespacedName{Namespace: namespace, Name: listed.GetName()}))
		if err != nil || !exists || !s.followsPolicy(obj, listed) {
			return false
		}
	}
	return true
}

// followsPolicy reports whether decisions follow a policy in the cache, and whether it is the listed one or newer.
func (s *scheduler) followsPolicy(obj any, listed *unstructured.Unstructured) bool {
	is, err := meta.Accessor(obj)
	if err != nil || is.GetUID() != listed.GetUID() || is.GetGeneration() < listed.GetGeneration() {
		return false
	}
	var subject placement.Subject
	switch policy := obj.(type) {
	case *v1alpha1.Placement:
		subject = placement.SubjectOf(policy)
	case *v1alpha1.ClusterPlacement:
		subject = placement.SubjectOfCluster(policy)
	default:
		return true // it cannot be read, and selects nothing
	}
	s.cache.mu.RLock()
	defer s.cache.mu.RUnlock()
	return s.cache.inputs[subject.Meta.UID] == subject.Inputs()
}

// knownFrom returns the revision up to which an informer that has synced knows its objects.
func knownFrom[T any](c controllers.Cache[T]) uint64 {
	return revision(c.Informer.LastSyncResourceVersion())
}
