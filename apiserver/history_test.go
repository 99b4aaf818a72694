package apiserver

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage/storagebackend"
)

// windowOf is upstream's choice of options, with its window.
type windowOf time.Duration

func (w windowOf) GetRESTOptions(resource schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	cfg := storagebackend.Config{EventsHistoryWindow: time.Duration(w)}
	return generic.RESTOptions{StorageConfig: cfg.ForResource(resource)}, nil
}

func TestWatchesOfCustomResourcesGoFurtherBack(t *testing.T) {
	upstream := windowOf(storagebackend.DefaultEventsHistoryWindow)
	for _, tt := range []struct {
		name   string
		getter func(*keyspaceStorage) generic.RESTOptionsGetter
		want   time.Duration
	}{
		{"what is built in", func(s *keyspaceStorage) generic.RESTOptionsGetter { return s.options(upstream) }, 75 * time.Second},
		{"custom", func(s *keyspaceStorage) generic.RESTOptionsGetter { return s.customOptions(upstream, time.Hour) }, 5 * time.Minute},
		{"custom, retention by default", func(s *keyspaceStorage) generic.RESTOptionsGetter { return s.customOptions(upstream, 0) }, 5 * time.Minute},
		{"custom, kept for less", func(s *keyspaceStorage) generic.RESTOptionsGetter { return s.customOptions(upstream, 2*time.Minute) }, 2 * time.Minute},
		{"custom, kept for less than upstream remembers", func(s *keyspaceStorage) generic.RESTOptionsGetter {
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
