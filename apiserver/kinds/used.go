package kinds

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

// registryPrefix is the key prefix of upstream's stores.
const registryPrefix = "/registry/"

// usedKinds is discovery for controllers that process every kind. Of the kinds without
// CRDs it returns only those that have objects. Garbage collection and quota watch each
// kind that they know, and emptying a namespace takes two requests for each. With 1,500
// kinds of which thirty are used, that would be most of their cost.
//
// A kind that gets its first object appears at the next poll. For these controllers
// that is like a new CRD.
type usedKinds struct {
	discovery.DiscoveryInterface
	kinds *Server
}

// Used returns discovery that omits kinds without stored objects.
func (s *Server) Used(all discovery.DiscoveryInterface) discovery.DiscoveryInterface {
	return usedKinds{all, s}
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

// filter returns a list that came with an error as it is: it is incomplete, and the
// caller has to know that.
func (u usedKinds) filter(lists []*metav1.APIResourceList, err error) ([]*metav1.APIResourceList, error) {
	if err != nil {
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
		used, err := u.kinds.stored.resources(ctx, gv.Group)
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

// StoredResources returns the resources of a group that have stored objects, by plural
// name. The group need not be served.
func (s *Server) StoredResources(ctx context.Context, group string) ([]string, error) {
	used, err := s.stored.resources(ctx, group)
	return sets.List(used), err
}

// storedResources finds the resources that have stored objects. It is called every few
// seconds.
type storedResources struct {
	kv clientv3.KV

	mu sync.Mutex
	// witnesses are keys that existed at the last call, by group and resource. Reading
	// the first key of a range counts the whole range; reading one key does not.
	witnesses map[string]map[string]string
}

// resources returns the resources of a group that have stored objects. It reads one key
// of each, and looks for other resources between them.
func (s *storedResources) resources(ctx context.Context, group string) (sets.Set[string], error) {
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
		// Between the expected keys there is usually nothing.
		key, there, err := s.first(ctx, next, end)
		if err != nil {
			return nil, fmt.Errorf("find the kinds of %s that have objects: %w", group, err)
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
				return nil, fmt.Errorf("find the kinds of %s that have objects: %w", group, err)
			}
			if next = end; len(answer.Kvs) > 0 {
				found[resource] = known[resource]
				next = clientv3.GetPrefixRangeEnd(end)
			}
		}
	}
}

// first returns the first key of a range.
func (s *storedResources) first(ctx context.Context, from, end string) (key string, there bool, err error) {
	if from >= end {
		return "", false, nil
	}
	answer, err := s.kv.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(1), clientv3.WithKeysOnly())
	if err != nil || len(answer.Kvs) == 0 {
		return "", false, err
	}
	return string(answer.Kvs[0].Key), true, nil
}
