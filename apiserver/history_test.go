package apiserver

import (
	"context"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
)

// windowOf is upstream's options with a history window.
type windowOf time.Duration

func (w windowOf) GetRESTOptions(resource schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	cfg := storagebackend.Config{EventsHistoryWindow: time.Duration(w)}
	return generic.RESTOptions{StorageConfig: cfg.ForResource(resource)}, nil
}

// Resources with many writes and few readers have no watch cache.
func TestFewReaders(t *testing.T) {
	for resource, want := range map[schema.GroupResource]bool{
		{Resource: "events"}:                                            true,
		{Group: "events.k8s.io", Resource: "events"}:                    true,
		{Group: "fleet.atoll.dev", Resource: "resourcebindings"}:        true,
		{Group: "fleet.atoll.dev", Resource: "clusterresourcebindings"}: true,
		{Group: "infra.atoll.dev", Resource: "resourcestates"}:          true,
		{Group: "infra.atoll.dev", Resource: "planchanges"}:             true,
		{Group: "infra.atoll.dev", Resource: "plansecrets"}:             true,
		{Group: "infra.atoll.dev", Resource: "plans"}:                   false,
		{Group: "fleet.atoll.dev", Resource: "clusters"}:                false,
		{Group: "example.com", Resource: "events"}:                      false,
		{Group: "apps", Resource: "deployments"}:                        false,
	} {
		if got := fewReaders(resource); got != want {
			t.Errorf("%s: %v", resource, got)
		}
	}
}

// asked is a store that records the options of its last watch.
type asked struct {
	storage.Interface
	opts storage.ListOptions
}

func (a *asked) Watch(_ context.Context, _ string, opts storage.ListOptions) (watch.Interface, error) {
	a.opts = opts
	return watch.NewEmptyWatch(), nil
}

// Without a watch cache, only watches that ask for bookmarks get them.
func TestUncachedWatchesSendBookmarks(t *testing.T) {
	for _, bookmarks := range []bool{true, false} {
		store := &asked{}
		opts := storage.ListOptions{Predicate: storage.SelectionPredicate{AllowWatchBookmarks: bookmarks}}
		if _, err := (progressStore{store}).Watch(t.Context(), "/", opts); err != nil || store.opts.ProgressNotify != bookmarks {
			t.Errorf("bookmarks %v: progress requested %v, %v", bookmarks, store.opts.ProgressNotify, err)
		}
	}
}

func TestCustomResourceHistoryWindow(t *testing.T) {
	upstream := windowOf(storagebackend.DefaultEventsHistoryWindow)
	for _, tt := range []struct {
		name   string
		getter func(*keyspaceStorage) generic.RESTOptionsGetter
		want   time.Duration
	}{
		{"built in", func(s *keyspaceStorage) generic.RESTOptionsGetter { return s.options(upstream) }, 75 * time.Second},
		{"custom", func(s *keyspaceStorage) generic.RESTOptionsGetter { return s.customOptions(upstream, time.Hour) }, 5 * time.Minute},
		{"custom, retention by default", func(s *keyspaceStorage) generic.RESTOptionsGetter { return s.customOptions(upstream, 0) }, 5 * time.Minute},
		{"custom, kept for less", func(s *keyspaceStorage) generic.RESTOptionsGetter { return s.customOptions(upstream, 2*time.Minute) }, 2 * time.Minute},
		{"custom, kept for less than upstream's window", func(s *keyspaceStorage) generic.RESTOptionsGetter {
			return s.customOptions(upstream, 10*time.Second)
		}, 75 * time.Second},
	} {
		opts, err := tt.getter(&keyspaceStorage{}).GetRESTOptions(schema.GroupResource{Group: "example.com", Resource: "notes"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := opts.StorageConfig.EventsHistoryWindow; got != tt.want {
			t.Errorf("%s: watches go back %s, want %s", tt.name, got, tt.want)
		}
	}
}
