package mvcc

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/atoll-dev/atoll/kv"
)

// Timing of the watchdog.
const (
	// watchdogInterval is how often the watchdog checks, and the timeout of a probe.
	watchdogInterval = time.Second
	// probeAfter is the silence after which it probes the table.
	probeAfter = 3 * time.Second
	// defaultWatchSilence is the silence after which watches end, unless
	// Options.WatchSilence is set.
	defaultWatchSilence = 10 * time.Second
)

// watchdog ends watches that can no longer receive events. A server that is cut off from
// the table receives nothing, and its watches cannot distinguish that from a table without
// writes, while other servers continue. So after a while the watches end as unavailable,
// and their clients can reconnect to another server, as with an etcd member without a
// leader.
type watchdog struct {
	k *Keyspace
	// last is the time of the table's last answer, since begin: by a monotonic clock, if
	// there is one.
	begin time.Time
	last  atomic.Int64
}

func newWatchdog(k *Keyspace) *watchdog {
	return &watchdog{k: k, begin: k.opts.Clock.Now()}
}

// answered records an answer of the table.
func (c *watchdog) answered() { raise(&c.last, int64(c.k.opts.Clock.Since(c.begin))) }

func (c *watchdog) silence() time.Duration {
	return c.k.opts.Clock.Since(c.begin) - time.Duration(c.last.Load())
}

func (c *watchdog) loop() {
	for {
		select {
		case <-c.k.opts.Clock.After(watchdogInterval):
		case <-c.k.ctx.Done():
			return
		}
		c.check()
	}
}

func (c *watchdog) check() {
	if c.silence() > probeAfter {
		ctx, cancel := context.WithTimeout(c.k.ctx, watchdogInterval)
		_, _ = c.k.heads.get(ctx) // an answer is recorded by sharedTable
		cancel()
	}
	if silence := c.silence(); silence > c.k.opts.WatchSilence {
		c.k.hub.endAll(fmt.Errorf("watch: the database has not answered for %v: %w (watch through another server, or check the database connection)",
			silence.Round(time.Second), kv.ErrUnavailable))
	}
}
