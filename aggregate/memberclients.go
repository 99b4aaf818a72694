package aggregate

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
)

// clientTTL is how long the client of a member is cached: its kubeconfig may be
// replaced.
const clientTTL = 30 * time.Second

// ClientConfigFunc returns the configuration for requests to a member, and a digest
// that changes when the configuration does.
type ClientConfigFunc func(ctx context.Context, cluster string) (cfg *rest.Config, digest string, err error)

// perMember caches one value for each member, made from the configuration for requests
// to it. If the digest of the configuration changes, the value is made again.
type perMember[T any] struct {
	clientConfig ClientConfigFunc
	build        func(*rest.Config) (T, error)
	clock        clock.PassiveClock

	mu      sync.Mutex
	members map[string]cachedClient[T]
}

type cachedClient[T any] struct {
	value  T
	digest string
	since  time.Time
}

func newPerMember[T any](reach ClientConfigFunc, build func(*rest.Config) (T, error), clk clock.PassiveClock) *perMember[T] {
	return &perMember[T]{clientConfig: reach, build: build, clock: clk, members: map[string]cachedClient[T]{}}
}

// get returns the value of a member, and the digest of the configuration that it was
// made from.
func (p *perMember[T]) get(ctx context.Context, cluster string) (value T, digest string, err error) {
	now := p.clock.Now()
	p.mu.Lock()
	known, ok := p.members[cluster]
	p.mu.Unlock()
	if ok && now.Sub(known.since) < clientTTL {
		return known.value, known.digest, nil
	}
	cfg, digest, err := p.clientConfig(ctx, cluster)
	if err != nil {
		return value, "", err
	}
	if !ok || known.digest != digest {
		if known.value, err = p.build(cfg); err != nil {
			return value, "", fmt.Errorf("make a client of cluster %s: %w", cluster, err)
		}
		known.digest = digest
	}
	known.since = now
	p.mu.Lock()
	defer p.mu.Unlock()
	p.members[cluster] = known
	return known.value, known.digest, nil
}
