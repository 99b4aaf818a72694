package apiserver

import (
	"context"
	"fmt"
	"strings"
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
	store clientv3.KV
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
		used, err := usedResources(ctx, u.store, gv.Group)
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
	used, err := usedResources(ctx, s.controllers.store, group)
	return sets.List(used), err
}

// usedResources are the resources of a group of which something is stored. It reads one
// key of each.
func usedResources(ctx context.Context, store clientv3.KV, group string) (sets.Set[string], error) {
	prefix := registryPrefix + group + "/"
	used := sets.New[string]()
	for next := prefix; ; {
		answer, err := store.Get(ctx, next, clientv3.WithRange(clientv3.GetPrefixRangeEnd(prefix)), clientv3.WithLimit(1), clientv3.WithKeysOnly())
		if err != nil {
			return nil, fmt.Errorf("look which kinds of %s are used: %w", group, err)
		}
		if len(answer.Kvs) == 0 {
			return used, nil
		}
		resource, _, _ := strings.Cut(strings.TrimPrefix(string(answer.Kvs[0].Key), prefix), "/")
		used.Insert(resource)
		next = clientv3.GetPrefixRangeEnd(prefix + resource + "/")
	}
}
