package apiserver

import (
	"context"
	"errors"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
	testingclock "k8s.io/utils/clock/testing"
)

// openedStore reports each watch.
type openedStore struct {
	storage.Interface
	opened chan struct{}
}

func (o openedStore) Watch(context.Context, string, storage.ListOptions) (watch.Interface, error) {
	o.opened <- struct{}{}
	return watch.NewEmptyWatch(), nil
}

// TestWatchesPauseAfterFailures: watches of a resource wait for a second after one of its values could not be
// decrypted, and no longer.
func TestWatchesPauseAfterFailures(t *testing.T) {
	clock := testingclock.NewFakeClock(time.Now())
	failures := &decryptionFailures{Transformer: identity.NewEncryptCheckTransformer(), clock: clock}
	store := pacedStore{openedStore{opened: make(chan struct{}, 1)}, failures}
	opened := store.Interface.(openedStore).opened
	open := func(ctx context.Context) <-chan error {
		done := make(chan error, 1)
		go func() {
			_, err := store.Watch(ctx, "", storage.ListOptions{})
			done <- err
		}()
		return done
	}
	if err := <-open(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-opened
	if _, _, err := failures.TransformFromStorage(t.Context(), []byte("k8s:enc:unknown"), value.DefaultContext("a")); err == nil {
		t.Fatal("no failure")
	}
	ctx, cancel := context.WithCancel(t.Context())
	canceled, done := open(ctx), open(t.Context())
	for clock.Waiters() < 2 {
		select {
		case <-opened:
			t.Fatal("the watch did not wait")
		case <-time.After(time.Millisecond):
		}
	}
	cancel()
	if err := <-canceled; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	clock.Step(watchPause)
	if err := <-done; err != nil {
		t.Error(err)
	}
	<-opened
	if err := <-open(t.Context()); err != nil {
		t.Error(err)
	}
}
