package partition

import (
	"context"

	"github.com/atoll-dev/atoll/kv"
)

// limitedEngine is an Engine whose usage can be limited, such as one of kv/mvcc.
type limitedEngine interface {
	SetLimits(kv.Limits)
	Usage(context.Context) (kv.Usage, error)
}

// SetLimits replaces the limits. They apply to the parent and to each partition alone: their commits are not in one order, so no sum
// could be exact.
func (k *Keyspace) SetLimits(limits kv.Limits) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.limits = limits
	for _, e := range k.layout.Load().engines() {
		k.limit(e)
	}
}

// limit sets the limits of an engine. The caller holds k.mu, or is Open.
func (k *Keyspace) limit(e Engine) {
	if l, ok := e.(limitedEngine); ok {
		l.SetLimits(k.limits)
	}
}

// Usage returns what the keyspace has stored, with all partitions.
func (k *Keyspace) Usage(ctx context.Context) (sum kv.Usage, err error) {
	for try := 0; ; try++ {
		l := k.layout.Load()
		if sum, err = l.usage(ctx); !k.shouldRetry(ctx, l, try, err) {
			return sum, err
		}
	}
}

func (l *layout) usage(ctx context.Context) (sum kv.Usage, err error) {
	for _, e := range l.engines() {
		limited, ok := e.(limitedEngine)
		if !ok {
			continue
		}
		used, err := limited.Usage(ctx)
		if err != nil {
			return kv.Usage{}, err
		}
		sum = sum.Plus(used)
	}
	return sum, nil
}

// Limits returns the present limits.
func (k *Keyspace) Limits() kv.Limits {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.limits
}
