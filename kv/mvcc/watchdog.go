package mvcc

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/atoll-dev/atoll/kv"
)

// Bounds of silence between an engine and a shared table.
const (
	// contactCheck is how often to look, and how long a probe may take.
	contactCheck = time.Second
	// contactProbe is the silence after which to ask for an answer.
	contactProbe = 3 * time.Second
	// contactLost is the silence after which watches end, unless Options.WatchSilence says otherwise.
	contactLost = 10 * time.Second
)

// contact sees to it that nobody sits on a silent watch. A server that is cut off
// from the table hears of nothing, and to those who watch that looks as if
// nothing happened, while other servers go on. So after a while their watches
// end as unavailable, and they can go to a server that knows more; as etcd's do
// on a member without a leader.
type contact struct {
	k *Keyspace
	// last is when the table last answered, since begin: by a clock that nobody
	// sets, if there is one.
	begin time.Time
	last  atomic.Int64
}

func newContact(k *Keyspace) *contact {
	return &contact{k: k, begin: k.opts.Clock.Now()}
}

// made notes an answer of the table.
func (c *contact) made() { raise(&c.last, int64(c.k.opts.Clock.Since(c.begin))) }

func (c *contact) silence() time.Duration {
	return c.k.opts.Clock.Since(c.begin) - time.Duration(c.last.Load())
}

func (c *contact) loop() {
	for {
		select {
		case <-c.k.opts.Clock.After(contactCheck):
		case <-c.k.ctx.Done():
			return
		}
		c.check()
	}
}

func (c *contact) check() {
	if c.silence() > contactProbe {
		ctx, cancel := context.WithTimeout(c.k.ctx, contactCheck)
		_, _ = c.k.heads.ask(ctx) // whether it answers is noted elsewhere
		cancel()
	}
	if silence := c.silence(); silence > c.k.opts.WatchSilence {
		c.k.hub.end(fmt.Errorf("watch: the database has not answered for %v: %w (watch through another server, or check the database)",
			silence.Round(time.Second), kv.ErrUnavailable))
	}
}
