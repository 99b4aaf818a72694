package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/atoll-dev/atoll/kv"
)

// Follow implements kv.SharedTable.
func (t *table) Follow(ctx context.Context, notify func(kv.Revision)) error {
	f := &follower{t: t, notify: notify}
	if !t.db.notifier.add(f) {
		return fmt.Errorf("follow keyspace %q: %w", t.name, kv.ErrClosed)
	}
	defer t.db.notifier.remove(f)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.fell:
		return t.usable()
	case <-t.db.closing:
		return fmt.Errorf("follow keyspace %q: %w", t.name, kv.ErrClosed)
	}
}

// follower is one running Follow.
type follower struct {
	t      *table
	notify func(kv.Revision)
}

// notifier reports other servers' commits. For all keyspaces of a database, one connection
// listens, if the database can notify. All heads are also read at an interval, and whenever
// the connection is new. Notifications are hints that may be lost; the heads are
// authoritative.
type notifier struct {
	db     *DB
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	asked  chan struct{} // the heads are requested now

	mu        sync.Mutex
	followers map[int32][]*follower
	running   bool
	stopped   bool
}

func newNotifier(db *DB) *notifier {
	n := &notifier{db: db, followers: map[int32][]*follower{}, asked: make(chan struct{}, 1)}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	return n
}

// add adds a follower, which first gets its keyspace's current revision.
func (n *notifier) add(f *follower) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stopped {
		return false
	}
	n.followers[f.t.id] = append(n.followers[f.t.id], f)
	if !n.running {
		n.running = true
		n.wg.Go(n.poll)
		if n.db.dialect.notify {
			n.wg.Go(n.listen)
		}
	}
	n.ask()
	return true
}

func (n *notifier) remove(f *follower) {
	n.mu.Lock()
	defer n.mu.Unlock()
	// A new slice: tell may be iterating over the old one.
	var rest []*follower
	for _, other := range n.followers[f.t.id] {
		if other != f {
			rest = append(rest, other)
		}
	}
	if len(rest) == 0 {
		delete(n.followers, f.t.id)
		return
	}
	n.followers[f.t.id] = rest
}

// follows reports whether the heads are read at an interval.
func (n *notifier) follows() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.running && !n.stopped && len(n.followers) > 0
}

func (n *notifier) stop() {
	n.mu.Lock()
	n.stopped = true
	n.mu.Unlock()
	n.cancel()
	n.wg.Wait()
}

func (n *notifier) ask() {
	select {
	case n.asked <- struct{}{}:
	default:
	}
}

func (n *notifier) tell(ks int32, rev kv.Revision) {
	n.mu.Lock()
	list := n.followers[ks]
	n.mu.Unlock()
	for _, f := range list {
		if f.t.usable() == nil {
			f.notify(rev)
		}
	}
}

// Intervals between reads of all heads.
const (
	pollAlone  = 20 * time.Millisecond
	pollBeside = time.Second // in addition to notifications
)

func (n *notifier) poll() {
	every := n.db.opts.poll
	if every == 0 {
		every = pollAlone
		if n.db.dialect.notify {
			every = pollBeside
		}
	}
	timer := n.db.clock.NewTimer(every)
	defer timer.Stop()
	var seen, compared time.Time
	for {
		now := n.db.clock.Now()
		if now.Sub(seen) >= heartbeat {
			seen = now
			n.db.beat(n.ctx)
		}
		if now.Sub(compared) >= compareEvery {
			compared = now
			n.wg.Go(func() { n.db.checkOtherHosts(n.ctx) })
		}
		select {
		case <-n.ctx.Done():
			return
		case <-n.asked:
		case <-timer.C():
		}
		// An error of the database is temporary, or recorded in the table.
		_ = n.heads()
		timer.Reset(every)
	}
}

// heads reads the heads of all followed keyspaces.
func (n *notifier) heads() error {
	n.mu.Lock()
	var tables []*table
	for _, list := range n.followers {
		tables = append(tables, list[0].t)
	}
	n.mu.Unlock()
	if len(tables) == 0 {
		return nil
	}
	var asked *conn
	// A short limit: a server should soon connect to the database that has taken over.
	return n.db.queryWithin(n.ctx, "read heads", n.db.opts.timeout/2, func(c *conn) {
		asked = c
		for _, t := range tables {
			t.polled = t.floor()
		}
		c.send(qHeads, int4s(len(tables), func(i int) int32 { return tables[i].id }))
	}, func(cols *columns) error {
		h := readHead(cols)
		i := cols.int() - 1
		if cols.err != nil || i < 0 || i >= int64(len(tables)) {
			return cols.err
		}
		origin := cols.next()
		if cols.err != nil {
			return cols.err
		}
		if err := asked.sameTable(h); err != nil {
			return err
		}
		t := tables[i]
		if h.layout == droppedLayout {
			origin = t.expectedOrigin() // it has none any more
		}
		if t.checkOrigin(origin) == nil && t.observe(h, t.polled) == nil {
			n.tell(t.id, h.Revision)
		}
		return nil
	})
}

// notice returns the payload of a commit's notification.
func notice(ks int32, rev kv.Revision) []byte {
	return strconv.AppendInt(append(strconv.AppendInt(nil, int64(ks), 10), ' '), rev, 10)
}

func readNotice(text string) (ks int32, rev kv.Revision, err error) {
	first, second, _ := strings.Cut(text, " ")
	id, err := strconv.ParseInt(first, 10, 32)
	if err != nil {
		return 0, 0, err
	}
	rev, err = strconv.ParseInt(second, 10, 64)
	return int32(id), rev, err
}

// listen maintains a connection that receives notifications.
func (n *notifier) listen() {
	for pause := firstPause; n.ctx.Err() == nil; pause = min(2*pause, lastPause) {
		begin := n.db.clock.Now()
		_ = n.listenOnce() // it ends with the connection, which is then replaced
		if n.db.clock.Since(begin) > time.Minute {
			pause = firstPause
		}
		select {
		case <-n.db.clock.After(pause):
		case <-n.ctx.Done():
		}
	}
}

// pingEvery is how long the connection may be silent before it is checked; meanwhile, the
// poll compensates.
const pingEvery = 10 * time.Second

func (n *notifier) listenOnce() error {
	ctx, cancel := context.WithTimeout(n.ctx, n.db.opts.timeout)
	defer cancel()
	c, err := n.db.connect(ctx)
	if err != nil {
		return err
	}
	defer c.close()
	c.notified = func(payload string) {
		// Any role may notify on our channel.
		if ks, rev, err := readNotice(payload); err == nil {
			n.tell(ks, rev)
		}
	}
	err = c.within(n.ctx, n.db.opts.timeout, func() error {
		return c.simple("LISTEN "+quoteIdentifier(n.db.opts.schema), nil)
	})
	if err != nil {
		return err
	}
	// There may be commits between the last poll and LISTEN.
	n.ask()
	stop := context.AfterFunc(n.ctx, func() { _ = c.net.Close() })
	defer stop()
	for {
		if err := c.listen(pingEvery, n.db.opts.timeout); err != nil {
			return err
		}
	}
}

// listen waits for notifications, and pings the server after a time without any.
func (c *conn) listen(silence, pongTimeout time.Duration) error {
	_ = c.net.SetReadDeadline(time.Now().Add(silence))
	msg, err := c.receive()
	var timeout interface{ Timeout() bool }
	switch {
	case err == nil:
		return fmt.Errorf("unexpected message %T", msg)
	case !errors.As(err, &timeout) || !timeout.Timeout():
		return err
	}
	// The protocol's reader continues where it was interrupted.
	c.broken = false
	_ = c.net.SetDeadline(time.Now().Add(pongTimeout))
	return c.simple("SELECT 1", nil)
}
