package apiserver_test

import (
	"context"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/features"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"

	"github.com/atoll-dev/atoll/kv/mvcc"
)

// TestStorageSuite runs upstream's complete exported suite for implementations of
// storage.Interface against the etcd3 store over our keyspace: the functions that
// upstream runs against a real etcd.
//
// RunTestOptionalWatchBookmarksWithCorrectResourceVersion is for stores that create
// bookmarks themselves, as the watch cache does: TestWatchCacheSuite.
func TestStorageSuite(t *testing.T) { onEachAndPartition(t, storageSuite) }

// together runs a function of upstream's suite in parallel with others. Functions that
// enable process-wide features, measure time, or use a one-second lease without waiting
// for it, run before that, serially.
func together(t *testing.T, name string) {
	switch name {
	case "WatchSemantics", "WatchSemanticInitialEventsExtended", "WatchListMatchSingle", "WatchWithUnsafeDelete", "WatcherTimeout", "Get":
	default:
		t.Parallel()
	}
}

func storageSuite(t *testing.T, in datastore) {
	type plain = func(context.Context, *testing.T, *subject)
	for name, test := range map[string]plain{
		"Create": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunTestCreate(ctx, t, s, s.validateStored)
		},
		"CreateWithTTL": func(ctx context.Context, t *testing.T, s *subject) { storagetesting.RunTestCreateWithTTL(ctx, t, s) },
		"CreateWithKeyExist": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunTestCreateWithKeyExist(ctx, t, s)
		},
		"Get": func(ctx context.Context, t *testing.T, s *subject) { storagetesting.RunTestGet(ctx, t, s) },
		"UnconditionalDelete": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunTestUnconditionalDelete(ctx, t, s)
		},
		"ConditionalDelete": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunTestConditionalDelete(ctx, t, s)
		},
		"DeleteWithSuggestion": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunTestDeleteWithSuggestion(ctx, t, s)
		},
		"DeleteWithSuggestionAndConflict": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunTestDeleteWithSuggestionAndConflict(ctx, t, s)
		},
		"DeleteWithSuggestionOfDeletedObject": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunTestDeleteWithSuggestionOfDeletedObject(ctx, t, s)
		},
		"ValidateDeletionWithSuggestion": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunTestValidateDeletionWithSuggestion(ctx, t, s)
		},
		"ValidateDeletionWithOnlySuggestionValid": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunTestValidateDeletionWithOnlySuggestionValid(ctx, t, s)
		},
		"DeleteWithConflict": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunTestDeleteWithConflict(ctx, t, s)
		},
		"PreconditionalDeleteWithSuggestion": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunTestPreconditionalDeleteWithSuggestion(ctx, t, s)
		},
		"PreconditionalDeleteWithOnlySuggestionPass": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunTestPreconditionalDeleteWithOnlySuggestionPass(ctx, t, s)
		},
		"ListPaging": func(ctx context.Context, t *testing.T, s *subject) { storagetesting.RunTestListPaging(ctx, t, s) },
		"GetListNonRecursive": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunTestGetListNonRecursive(ctx, t, s.bump, s)
		},
		"GetListRecursivePrefix": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunTestGetListRecursivePrefix(ctx, t, s)
		},
		"KeySchema": func(ctx context.Context, t *testing.T, s *subject) { storagetesting.RunTestKeySchema(ctx, t, s) },
		"GuaranteedUpdate": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunTestGuaranteedUpdate(ctx, t, s, s.validateStored)
		},
		"GuaranteedUpdateWithTTL": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunTestGuaranteedUpdateWithTTL(ctx, t, s)
		},
		"GuaranteedUpdateChecksStoredData": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunTestGuaranteedUpdateChecksStoredData(ctx, t, s)
		},
		"GuaranteedUpdateWithConflict": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunTestGuaranteedUpdateWithConflict(ctx, t, s)
		},
		"GuaranteedUpdateWithSuggestionAndConflict": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunTestGuaranteedUpdateWithSuggestionAndConflict(ctx, t, s)
		},
		"TransformationFailure": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunTestTransformationFailure(ctx, t, s)
		},
		"List": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunTestList(ctx, t, s, s.compact, false, s.recorder)
		},
		"ConsistentList": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunTestConsistentList(ctx, t, s, s.bump, false, true, false)
		},
		"CompactRevision": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunTestCompactRevision(ctx, t, s, s.bump, s.compact)
		},
		"ListContinuation": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunTestListContinuation(ctx, t, s, s.validateCalls)
		},
		"ListPaginationRareObject": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunTestListPaginationRareObject(ctx, t, s, s.validateCalls)
		},
		"ListContinuationWithFilter": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunTestListContinuationWithFilter(ctx, t, s, s.validateCalls)
		},
		"NamespaceScopedList": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunTestNamespaceScopedList(ctx, t, s)
		},
		"ListInconsistentContinuation": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunTestListInconsistentContinuation(ctx, t, s, s.compact)
		},
		"ListResourceVersionMatch": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunTestListResourceVersionMatch(ctx, t, s)
		},
		"Stats": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunTestStats(ctx, t, s, s.codec, s.transformer, false)
		},
		"StatsWithSizes": func(ctx context.Context, t *testing.T, s *subject) {
			if err := s.EnableResourceSizeEstimation(s.keys); err != nil {
				t.Fatal(err)
			}
			storagetesting.RunTestStats(ctx, t, s, s.codec, s.transformer, true)
		},
	} {
		t.Run(name, func(t *testing.T) {
			together(t, name)
			test(context.Background(), t, newSubject(t, in, mvcc.Options{}))
		})
	}
}

// TestStorageWatchSuite is the part of the suite about watches.
func TestStorageWatchSuite(t *testing.T) { onEach(t, storageWatchSuite) }

func storageWatchSuite(t *testing.T, in datastore) {
	for name, test := range map[string]func(context.Context, *testing.T, *subject){
		"Watch": func(ctx context.Context, t *testing.T, s *subject) { storagetesting.RunTestWatch(ctx, t, s) },
		"ClusterScopedWatch": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunTestClusterScopedWatch(ctx, t, s)
		},
		"NamespaceScopedWatch": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunTestNamespaceScopedWatch(ctx, t, s)
		},
		"DeleteTriggerWatch": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunTestDeleteTriggerWatch(ctx, t, s)
		},
		"WatchFromZero": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunTestWatchFromZero(ctx, t, s, s.compact)
		},
		"WatchFromNonZero": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunTestWatchFromNonZero(ctx, t, s)
		},
		"DelayedWatchDelivery": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunTestDelayedWatchDelivery(ctx, t, s)
		},
		"WatchError": func(ctx context.Context, t *testing.T, s *subject) { storagetesting.RunTestWatchError(ctx, t, s) },
		"WatchContextCancel": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunTestWatchContextCancel(ctx, t, s)
		},
		"WatcherTimeout": func(ctx context.Context, t *testing.T, s *subject) { storagetesting.RunTestWatcherTimeout(ctx, t, s) },
		"WatchDeleteEventObjectHaveLatestRV": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunTestWatchDeleteEventObjectHaveLatestRV(ctx, t, s)
		},
		"WatchInitializationSignal": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunTestWatchInitializationSignal(ctx, t, s)
		},
		"ProgressNotify": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunOptionalTestProgressNotify(ctx, t, s, s.bump)
		},
		"WatchWithUnsafeDelete": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunTestWatchWithUnsafeDelete(ctx, t, s)
		},
		"WatchDispatchBookmarkEvents": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunTestWatchDispatchBookmarkEvents(ctx, t, s, false)
		},
		"SendInitialEventsBackwardCompatibility": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunSendInitialEventsBackwardCompatibility(ctx, t, s)
		},
		"WatchSemantics": func(ctx context.Context, t *testing.T, s *subject) { storagetesting.RunWatchSemantics(ctx, t, s) },
		"WatchSemanticInitialEventsExtended": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunWatchSemanticInitialEventsExtended(ctx, t, s)
		},
		"WatchListMatchSingle": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunWatchListMatchSingle(ctx, t, s)
		},
		"WatchErrorIsBlockingFurtherEvents": func(ctx context.Context, t *testing.T, s *subject) {
			storagetesting.RunWatchErrorIsBlockingFurtherEvents(ctx, t, s)
		},
	} {
		t.Run(name, func(t *testing.T) {
			together(t, name)
			if name == "WatchWithUnsafeDelete" {
				featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.AllowUnsafeMalformedObjectDeletion, true)
			}
			// As often as upstream's etcd sends notifications in these tests.
			test(context.Background(), t, newSubject(t, in, mvcc.Options{ProgressInterval: time.Second}))
		})
	}
	t.Run("WatchSemanticsWithConcurrentDecode", func(t *testing.T) {
		featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.ConcurrentWatchObjectDecode, true)
		storagetesting.RunWatchSemantics(context.Background(), t, newSubject(t, in, mvcc.Options{}))
	})
}
