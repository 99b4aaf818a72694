package apiserver

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/discovery"
)

// registryPrefix is where upstream's stores keep everything.
const registryPrefix = "/registry/"

// usedKinds is discovery for controllers that look into every kind there is: of the
// kinds without CRDs it tells those that have objects. Garbage collection and quota watch each kind
// that they know, and to empty a namespace takes two requests for each; with 1,500 kinds of which thirty
// are used that would be most of what they cost.
//
// A kind gets its first object before the next look at it. Then they learn of it as
// they do of a new CRD.
type usedKinds struct {
	discovery.DiscoveryInterface
	kinds *kindServer // nil if there are none
	store *usedStore
}

// ServerPreferredResources implements discovery.ServerResourcesInterface.
func (u usedKinds) ServerPreferredResources() ([]*metav1.APIResourceList, error) {
	lists, err := u.DiscoveryInterface.ServerPreferredResources()
	return u.filter(lists, err)
}

// ServerPreferredNamespacedResources implements discovery.ServerResourcesInterface.
func (u usedKinds) ServerPreferredNamespacedResources() ([]*metav1.APIResourceList, error) {
	lists, err := u.DiscoveryInterface.ServerPreferredNamespacedResources()
	return u.filter(lists, err)
}

// filter passes on what it was given with an error: then it is incomplete, which the
// caller has to know.
func (u usedKinds) filter(lists []*metav1.APIResourceList, err error) ([]*metav1.APIResourceList, error) {
	if err != nil || u.kinds == nil {
		return lists, err
	}
	const limit = 30 * time.Second
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	versions := u.kinds.table.Load().versions
	out := make([]*metav1.APIResourceList, 0, len(lists))
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if _, ours := versions[gv]; err != nil || !ours {
			out = append(out, list)
			continue
		}
		used, err := u.store.resources(ctx, gv.Group)
		if err != nil {
			return nil, err
		}
		few := &metav1.APIResourceList{TypeMeta: list.TypeMeta, GroupVersion: list.GroupVersion}
		for _, r := range list.APIResources {
			if used.Has(r.Name) {
				few.APIResources = append(few.APIResources, r)
			}
		}
		if len(few.APIResources) > 0 {
			out = append(out, few)
		}
	}
	return out, nil
}

// StoredResources are the resources of a group without CRDs of which any object is stored, by their plural names.
func (s *Server) StoredResources(ctx context.Context, group string) ([]string, error) {
	used, err := s.controllers.store.resources(ctx, group)
	return sets.List(used), err
}

// usedStore tells of which resources something is stored. It is asked every few seconds.
type usedStore struct {
	kv clientv3.KV

	mu sync.Mutex
	// witnesses are keys that were there when it was looked last, by group and resource. To ask for the first key of a range has
	// the whole range counted, and to ask for one key does not.
	witnesses map[string]map[string]string
}

// resources of a group of which something is stored. It reads one key of each, and looks for others between them.
func (s *usedStore) resources(ctx context.Context, group string) (sets.Set[string], error) {
	prefix := registryPrefix + group + "/"
	under := func(resource string) string { return prefix + resource + "/" }
	s.mu.Lock()
	known := maps.Clone(s.witnesses[group])
	s.mu.Unlock()
	expected := slices.SortedFunc(maps.Keys(known), func(a, b string) int { return strings.Compare(under(a), under(b)) })
	found := map[string]string{}
	for next := prefix; ; {
		end := clientv3.GetPrefixRangeEnd(prefix)
		if len(expected) > 0 {
			end = under(expected[0])
		}
		// Between those that are expected there is nothing, as a rule.
		key, there, err := s.first(ctx, next, end)
		if err != nil {
			return nil, fmt.Errorf("look which kinds of %s are used: %w", group, err)
		}
		switch {
		case there:
			resource, _, _ := strings.Cut(strings.TrimPrefix(key, prefix), "/")
			found[resource] = key
			next = clientv3.GetPrefixRangeEnd(under(resource))
		case len(expected) == 0:
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.witnesses == nil {
				s.witnesses = map[string]map[string]string{}
			}
			s.witnesses[group] = found
			return sets.KeySet(found), nil
		default:
			resource := expected[0]
			expected = expected[1:]
			answer, err := s.kv.Get(ctx, known[resource], clientv3.WithKeysOnly())
			if err != nil {
				return nil, fmt.Errorf("look which kinds of %s are used: %w", group, err)
			}
			if next = end; len(answer.Kvs) > 0 {
				found[resource] = known[resource]
				next = clientv3.GetPrefixRangeEnd(end)
			}
		}
	}
}

// first gives the first key of a range.
func (s *usedStore) first(ctx context.Context, from, end string) (key string, there bool, err error) {
	if from >= end {
		return "", false, nil
	}
	answer, err := s.kv.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(1), clientv3.WithKeysOnly())
	if err != nil || len(answer.Kvs) == 0 {
		return "", false, err
	}
	return string(answer.Kvs[0].Key), true, nil
}
