package tenancy

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// follow runs the directory of a forest until the test ends, and waits until it knows the workspace with that UID.
func (f *forest) follow(t *testing.T, uid string) {
	t.Helper()
	if err := f.Directory.NotifyFollowers(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Directory.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	fakeapi.Eventually(t, "the watch has the workspace", func() error {
		if _, known := f.Directory.ByUID(uid); !known {
			return errors.New("unknown")
		}
		return nil
	})
}

const movesAway = `{"spec":{"movedTo":{"path":"x","uid":"y"}}}`

// TestAwaitLeaving: requests find a workspace until the watch says that it leaves, and no longer.
func TestAwaitLeaving(t *testing.T) {
	f := newForest(t)
	uid := f.plant("a")
	f.follow(t, uid)
	release := f.api.Hold(v1alpha1.WorkspaceResource)
	f.api.Merge(v1alpha1.WorkspaceResource, "", "a", movesAway)
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := f.Directory.AwaitLeaving(short, "a", uid); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the watch does not know yet: %v", err)
	}
	if _, err := f.Directory.Find(t.Context(), "a"); err != nil {
		t.Errorf("until then it is found: %v", err)
	}
	release()
	if err := f.Directory.AwaitLeaving(t.Context(), "a", uid); err != nil {
		t.Error(err)
	}
	if _, err := f.Directory.Find(t.Context(), "a"); !errors.Is(err, ErrNotFound) {
		t.Errorf("afterwards: %v", err)
	}
	for _, other := range []string{"a", "b"} { // another workspace of the name, and none
		if err := f.Directory.AwaitLeaving(t.Context(), other, "another"); err != nil {
			t.Errorf("%s: %v", other, err)
		}
	}
}

// TestFoundBeforeLeaving: a request that found a workspace before it began to leave, and comes to open it after its requests were ended, is
// refused. One that found it after it has ceased to leave is served, although the watch does not know that yet.
func TestFoundBeforeLeaving(t *testing.T) {
	f := newForest(t)
	uid := f.plant("a")
	f.follow(t, uid)
	opening, proceed := make(chan struct{}), make(chan struct{})
	f.Pool.config.Open = func(_ context.Context, key string) (string, error) {
		close(opening)
		<-proceed
		return key, nil
	}
	acquired := make(chan error, 1)
	go func() {
		_, _, _, err := f.Acquire(t.Context(), "a")
		acquired <- err
	}()
	<-opening
	f.api.Merge(v1alpha1.WorkspaceResource, "", "a", movesAway)
	if err := f.Directory.AwaitLeaving(t.Context(), "a", uid); err != nil {
		t.Error(err)
	}
	close(proceed)
	if err := <-acquired; !errors.Is(err, ErrNotFound) {
		t.Errorf("it is acquired: %v", err)
	}
	f.api.Hold(v1alpha1.WorkspaceResource)
	f.api.Merge(v1alpha1.WorkspaceResource, "", "a", `{"spec":{"movedTo":null}}`)
	if _, _, release, err := f.Acquire(t.Context(), "a"); err != nil {
		t.Errorf("it does not leave any more: %v", err)
	} else {
		release()
	}
}
