package apiserver

import (
	"context"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/utils/clock"
)

// watchPause is how long a watch waits after a value could not be decrypted. Watch caches resume at once, from
// before that value: thousands of times a second, with a line in the log each time.
const watchPause = time.Second

// decryptionFailures records when a value of a resource could not be decrypted last.
type decryptionFailures struct {
	value.Transformer
	clock clock.Clock
	last  atomic.Int64 // in ns since 1970; 0 is never
}

func (d *decryptionFailures) TransformFromStorage(ctx context.Context, stored []byte, at value.Context) ([]byte, bool, error) {
	plain, stale, err := d.Transformer.TransformFromStorage(ctx, stored, at)
	if err != nil {
		d.last.Store(d.clock.Now().UnixNano())
	}
	return plain, stale, err
}

// pacedStore delays watches that follow a failure.
type pacedStore struct {
	storage.Interface
	failures *decryptionFailures
}

func (p pacedStore) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	if last := p.failures.last.Load(); last != 0 {
		if wait := watchPause - p.failures.clock.Since(time.Unix(0, last)); wait > 0 {
			select {
			case <-p.failures.clock.After(wait):
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	}
	return p.Interface.Watch(ctx, key, opts)
}
