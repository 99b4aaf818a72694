package apiserver

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// loadingKinds are kinds that are known once the channel is closed.
type loadingKinds struct {
	KindServer
	loaded chan struct{}
}

func (k loadingKinds) Await(ctx context.Context) error {
	select {
	case <-k.loaded:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// A controller that deletes objects of removed kinds starts only when all kinds are
// known.
func TestControllersWaitForKinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kinds := loadingKinds{loaded: make(chan struct{})}
		l := &leadership{controllerManager: &controllerManager{kinds: kinds}}
		var begun atomic.Bool
		go l.afterKindsLoaded(func(context.Context) { begun.Store(true) })(t.Context())
		synctest.Wait()
		if begun.Load() {
			t.Error("it started too early")
		}
		close(kinds.loaded)
		synctest.Wait()
		if !begun.Load() {
			t.Error("it does not start")
		}
	})
}
