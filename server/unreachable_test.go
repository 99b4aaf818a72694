package server_test

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/playground/pgproxy"
	"github.com/atoll-dev/atoll/playground/postgres"
	"github.com/atoll-dev/atoll/server"
)

// TestUnreachableDatastore: requests that need an unreachable datastore fail within 5 s,
// at once while the outage is known, and no longer soon after it ends. A watch from
// before continues.
func TestUnreachableDatastore(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a PostgreSQL; not with -short")
	}
	db, err := postgres.Start(t.Context(), postgres.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Stop() })
	proxy, err := pgproxy.Start(pgproxy.Config{Server: db.Address()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	url, err := proxy.URL(db.URL(), "atoll")
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t, server.Config{DataDir: t.TempDir(), Datastore: url, WithoutWorkloadAPIs: true})
	t.Cleanup(func() {
		proxy.Thaw()
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	})
	api := s.client(t).CoreV1()
	create := func(ctx context.Context, namespace, name string) error {
		obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
		return api.RESTClient().Post().Namespace(namespace).Resource("configmaps").Body(obj).Do(ctx).Error()
	}
	if err := create(t.Context(), "default", "before"); err != nil {
		t.Fatal(err)
	}
	watching, err := api.ConfigMaps("default").Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=after"})
	if err != nil {
		t.Fatal(err)
	}
	defer watching.Stop()

	get := func() *rest.Request {
		return api.RESTClient().Get().Namespace("default")
	}
	reads := map[string]func(context.Context) error{
		"get":                    func(ctx context.Context) error { return get().Resource("configmaps").Name("before").Do(ctx).Error() },
		"list":                   func(ctx context.Context) error { return get().Resource("configmaps").Do(ctx).Error() },
		"list without a cache":   func(ctx context.Context) error { return get().Resource("events").Do(ctx).Error() },
		"create in no namespace": func(ctx context.Context) error { return create(ctx, "nowhere", "x") },
	}
	writes := map[string]func(context.Context) error{
		"create": func(ctx context.Context) error { return create(ctx, "default", "meanwhile") },
		"delete": func(ctx context.Context) error {
			return api.RESTClient().Delete().Namespace("default").Resource("configmaps").Name("before").Do(ctx).Error()
		},
	}
	proxy.Freeze()
	tell := func(limit time.Duration, unknownToo bool) {
		t.Helper()
		var wg sync.WaitGroup
		check := func(name string, do func(context.Context) error, write bool) {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				begin := time.Now()
				err := do(ctx)
				took := time.Since(begin)
				_, again := apierrors.SuggestsClientDelay(err)
				unavailable := apierrors.IsServiceUnavailable(err) && code(err) == http.StatusServiceUnavailable && !again
				unknown := apierrors.IsTimeout(err) && code(err) == http.StatusGatewayTimeout && !again
				if !unavailable && !(write && unknownToo && unknown) || took > limit {
					t.Errorf("%s: after %v: %v", name, took, err)
				}
			})
		}
		for name, do := range reads {
			check(name, do, false)
		}
		for name, do := range writes {
			check(name, do, true)
		}
		wg.Wait()
	}
	tell(5*time.Second, true)
	tell(time.Second, false)

	// Data in memory can still be read.
	if _, err := api.ConfigMaps("default").Get(t.Context(), "before", metav1.GetOptions{ResourceVersion: "0"}); err != nil {
		t.Error(err)
	}

	proxy.Thaw()
	eventually(t, "the datastore is back", func(ctx context.Context) error { return create(ctx, "default", "after") })
	select {
	case e := <-watching.ResultChan():
		if e.Type != watch.Added {
			t.Errorf("watch gets %+v", e)
		}
	case <-time.After(20 * time.Second):
		t.Error("the watch from before gets no event")
	}
}

func code(err error) int32 {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return status.Status().Code
	}
	return 0
}
