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
func (t *table) Follow(ctx context.Context, heard func(kv.Revision)) error {
	f := &follower{t: t, heard: heard}
	if !t.db.news.add(f) {
		return fmt.Errorf("follow keyspace %q: %w", t.name, kv.ErrClosed)
	}
	defer t.db.news.remove(f)
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
	t     *table
	heard func(kv.Revision)
}

// news brings word of other servers' commits: for all keyspaces of a database
// one connection listens, where the database can notify; and all heads are
// read at an interval, and whenever the connection is new. Notifications are a
// hint that may get lost; the heads are the truth.
type news struct {
	db     *DB
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	asked  chan struct{} // somebody wants the heads now

	mu        sync.Mutex
	followers map[int32][]*follower
	running   bool
	stopped   bool
}

func newNews(db *DB) *news {
	n := &news{db: db, followers: map[int32][]*follower{}, asked: make(chan struct{}, 1)}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	return n
}

// add begins to tell a follower, at first where its keyspace stands.
func (n *news) add(f *follower) bool {
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

func (n *news) remove(f *follower) {
	n.mu.Lock()
	defer n.mu.Unlock()
	// A new slice: tell may be going through the old one.
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

func (n *news) stop() {
	n.mu.Lock()
	n.stopped = true
	n.mu.Unlock()
	n.cancel()
	n.wg.Wait()
}

func (n *news) ask() {
	select {
	case n.asked <- struct{}{}:
	default:
	}
}

func (n *news) tell(ks int32, rev kv.Revision) {
	n.mu.Lock()
	list := n.followers[ks]
	n.mu.Unlock()
	for _, f := range list {
		f.heard(rev)
	}
}

// Intervals between reading all heads.
const (
	pollAlone  = 20 * time.Millisecond
	pollBeside = time.Second // beside notifications
)

func (n *news) poll() {
	every := n.db.opts.poll
	if every == 0 {
		every = pollAlone
		if n.db.dialect.notify {
			every = pollBeside
		}
	}
	timer := n.db.clock.NewTimer(every)
	defer timer.Stop()
	for {
		select {
		case <-n.ctx.Done():
			return
		case <-n.asked:
		case <-timer.C():
		}
		// An error is one of the database's, which passes, or leaves its mark on
		// the table.
		_ = n.heads()
		timer.Reset(every)
	}
}

// heads reads where all keyspaces stand that somebody follows.
func (n *news) heads() error {
	n.mu.Lock()
	var tables []*table
	for _, list := range n.followers {
		tables = append(tables, list[0].t)
	}
	n.mu.Unlock()
	if len(tables) == 0 {
		return nil
	}
	return n.db.query(n.ctx, "read heads", func(c *conn) {
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
		if t := tables[i]; t.isSame(origin) == nil && t.saw(h, t.polled) == nil {
			n.tell(t.id, h.Revision)
		}
		return nil
	})
}

// notice is what a commit says to those who listen.
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

// listen keeps a connection that hears notifications.
func (n *news) listen() {
	for pause := firstPause; n.ctx.Err() == nil; pause = min(2*pause, lastPause) {
		begin := n.db.clock.Now()
		_ = n.listenOnce() // it ends with the connection, which is made again
		if n.db.clock.Since(begin) > time.Minute {
			pause = firstPause
		}
		select {
		case <-n.db.clock.After(pause):
		case <-n.ctx.Done():
		}
	}
}

// pingEvery is how long the connection may be silent before it is asked
// whether it is alive; the poll covers for it meanwhile.
const pingEvery = 10 * time.Second

func (n *news) listenOnce() error {
	ctx, cancel := context.WithTimeout(n.ctx, n.db.opts.timeout)
	defer cancel()
	c, err := n.db.connect(ctx)
	if err != nil {
		return err
	}
	defer c.close()
	c.notified = func(payload string) {
		// Anybody may notify on our channel.
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
	// What was committed between the last poll and LISTEN.
	n.ask()
	stop := context.AfterFunc(n.ctx, func() { _ = c.net.Close() })
	defer stop()
	for {
		if err := c.listen(pingEvery, n.db.opts.timeout); err != nil {
			return err
		}
	}
}

// listen waits for notifications, and asks for a sign of life after a time
// without any.
func (c *conn) listen(silence, patience time.Duration) error {
	_ = c.net.SetReadDeadline(time.Now().Add(silence))
	msg, err := c.receive()
	var timeout interface{ Timeout() bool }
	switch {
	case err == nil:
		return fmt.Errorf("unexpected message %T", msg)
	case !errors.As(err, &timeout) || !timeout.Timeout():
		return err
	}
	// The protocol's reader goes on where it was interrupted.
	c.broken = false
	_ = c.net.SetDeadline(time.Now().Add(patience))
	return c.simple("SELECT 1", nil)
}
