package apiserver_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"

	"github.com/atoll-dev/atoll/kv/mvcc"
)

// TestWatchCacheSuite runs the suite's functions about lists and watches against
// upstream's watch cache over our keyspace, as every resource but Events is served.
// Progress is what matters here: a consistent read from the cache waits until the
// keyspace has confirmed that the cache is up to date.
func TestWatchCacheSuite(t *testing.T) { onEachAndPartition(t, watchCacheSuite) }

func watchCacheSuite(t *testing.T, in datastore) {
	ignoreKey := func(context.Context, *testing.T, string) {}
	for name, test := range map[string]func(context.Context, *testing.T, *subject){
		"Create": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunTestCreate(ctx, t, s, ignoreKey)
		},
		"Get":            func(ctx context.Context, t *testing.T, s *subject) { storagetesting.RunTestGet(ctx, t, s) },
		"ListPaging":     func(ctx context.Context, t *testing.T, s *subject) { storagetesting.RunTestListPaging(ctx, t, s) },
		"KeySchema":      func(ctx context.Context, t *testing.T, s *subject) { storagetesting.RunTestKeySchema(ctx, t, s) },
		"Watch":          func(ctx context.Context, t *testing.T, s *subject) { storagetesting.RunTestWatch(ctx, t, s) },
		"WatchSemantics": func(ctx context.Context, t *testing.T, s *subject) { storagetesting.RunWatchSemantics(ctx, t, s) },
		"ConsistentList": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunTestConsistentList(ctx, t, s, s.bump, true, true, true)
		},
		"GetListNonRecursive": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunTestGetListNonRecursive(ctx, t, s.bump, s)
		},
		"GetListRecursivePrefix": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunTestGetListRecursivePrefix(ctx, t, s)
		},
		"DeleteTriggerWatch": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunTestDeleteTriggerWatch(ctx, t, s)
		},
		"WatchFromNonZero": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunTestWatchFromNonZero(ctx, t, s)
		},
		"DelayedWatchDelivery": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunTestDelayedWatchDelivery(ctx, t, s)
		},
		"WatcherTimeout": func(ctx context.Context, t *testing.T, s *subject) { storagetesting.RunTestWatcherTimeout(ctx, t, s) },
		"WatchDeleteEventObjectHaveLatestRV": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunTestWatchDeleteEventObjectHaveLatestRV(ctx, t, s)
		},
		"WatchInitializationSignal": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunTestWatchInitializationSignal(ctx, t, s)
		},
		"NamespaceScopedWatch": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunTestNamespaceScopedWatch(ctx, t, s)
		},
		"WatchDispatchBookmarkEvents": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunTestWatchDispatchBookmarkEvents(ctx, t, s, true)
		},
		"WatchBookmarksWithCorrectResourceVersion": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunTestOptionalWatchBookmarksWithCorrectResourceVersion(ctx, t, s)
		},
		"SendInitialEventsBackwardCompatibility": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunSendInitialEventsBackwardCompatibility(ctx, t, s)
		},
		"WatchSemanticInitialEventsExtended": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunWatchSemanticInitialEventsExtended(ctx, t, s)
		},
		"WatchListMatchSingle": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunWatchListMatchSingle(ctx, t, s)
		},
	} {
		t.Run(name, func(t *testing.T) {
			together(t, name)
			test(context.Background(), t, newSubject(t, in, mvcc.Options{}).behindCache(t))
		})
	}
}

// behindCache puts upstream's watch cache in front of the store.
func (s *subject) behindCache(t *testing.T) *subject {
	t.Helper()
	cache, err := cacher.NewCacherFromConfig(cacher.Config{
		Storage:             s.Interface,
		Versioner:           storage.APIObjectVersioner{},
		GroupResource:       schema.GroupResource{Resource: "pods"},
		EventsHistoryWindow: cacher.DefaultEventFreshDuration,
		ResourcePrefix:      "/pods/",
		KeyFunc: func(obj runtime.Object) (string, error) {
			pod := obj.(*example.Pod)
			if pod.Namespace == "" {
				return "/pods/" + pod.Name, nil
			}
			return fmt.Sprintf("/pods/%s/%s", pod.Namespace, pod.Name), nil
		},
		GetAttrsFunc: func(obj runtime.Object) (labels.Set, fields.Set, error) {
			pod := obj.(*example.Pod)
			return pod.Labels, fields.Set{
				"metadata.name":      pod.Name,
				"metadata.namespace": pod.Namespace,
				"spec.nodeName":      pod.Spec.NodeName,
				"spec.restartPolicy": string(pod.Spec.RestartPolicy),
				"status.phase":       string(pod.Status.Phase),
			}, nil
		},
		NewFunc:     func() runtime.Object { return &example.Pod{} },
		NewListFunc: func() runtime.Object { return &example.PodList{} },
		Codec:       s.codec,
	})
	if err != nil {
		t.Fatal(err)
	}
	delegator := cacher.NewCacheDelegator(cache, s.Interface)
	t.Cleanup(func() {
		delegator.Stop()
		cache.Stop()
	})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := cache.Wait(ctx); err != nil {
		t.Fatalf("the watch cache does not fill: %v", err)
	}
	behind := *s
	behind.Interface = delegator
	return &behind
}
