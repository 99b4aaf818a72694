package postgres

import (
	"bytes"
	"fmt"

	"github.com/atoll-dev/atoll/kv"
)

// tokenSize is the number of random bytes that identify a commit.
const tokenSize = 16

// commitID identifies a commit: the revision it reached, a counter among the commits that
// reached that revision without making one, and a random token.
type commitID struct {
	rev   kv.Revision
	sub   int32
	token [tokenSize]byte
}

// before reports whether a is earlier than b in one history.
func (a commitID) before(b commitID) bool {
	return a.rev < b.rev || a.rev == b.rev && a.sub < b.sub
}

// head is the head row of a keyspace.
type head struct {
	kv.Head
	last   commitID
	nextID int64
	layout int32 // counts splits and merges
}

// readHead decodes the leading columns of statements that return a head.
func readHead(cols *columns) (h head) {
	h.Revision = cols.int()
	h.last.rev, h.last.sub = h.Revision, cols.int32()
	h.Compacted, h.nextID = cols.int(), cols.int()
	if copy(h.last.token[:], cols.next()) != tokenSize {
		cols.fail("the head of a keyspace has no token")
	}
	h.layout = cols.int32()
	return h
}

// floor returns the newest known commit: later reads must not be older.
func (t *table) floor() commitID {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.newest
}

// observe compares a head that was just read with the newest commit known when the read
// began, and records it.
func (t *table) observe(h head, floor commitID) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case h.last.before(floor):
		return t.fallBehind(fmt.Sprintf("it is at revision %d, but revision %d was acknowledged before", h.Revision, floor.rev))
	case h.last.rev == t.newest.rev && h.last.sub == t.newest.sub && h.last.token != t.newest.token && t.newest.rev != 0:
		return t.fallBehind(fmt.Sprintf("its revision %d differs from the one acknowledged before", h.Revision))
	case t.met && h.layout != t.layout:
		return t.repartitioned()
	case t.newest.before(h.last):
		t.newest = h.last
	}
	t.marks.add(h.Revision, h.nextID)
	if t.behind == nil {
		t.met, t.layout = true, h.layout
	}
	return t.behind
}

// fallBehind ends the use of a table that has lost acknowledged writes. The caller holds
// t.mu.
func (t *table) fallBehind(what string) error {
	return t.end(what, "A lagging standby has taken over, or a backup was restored. The keyspace is not served. "+
		"Either restore the former primary, or accept the loss: stop all servers of this database, "+
		"run `atoll kv recover --datastore URL --all`, and restart them")
}

// end ends the use of a table. The caller holds t.mu.
func (t *table) end(what, remedy string) error {
	if t.behind == nil {
		t.behind = fmt.Errorf("keyspace %q: database %s: %w: %s. %s", t.name, t.db.where, kv.ErrBehind, what, remedy)
		close(t.fell)
	}
	return t.behind
}

// usable returns the error that ended the use of a table.
func (t *table) usable() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.behind
}

// knowledge is the known state of all tables. It is compared with the database behind a new
// connection, which may be a different one.
type knowledge struct {
	tables []*table
	floors []commitID
}

func (db *DB) known() knowledge {
	db.mu.Lock()
	defer db.mu.Unlock()
	var k knowledge
	for _, t := range db.tables {
		if floor := t.floor(); floor.rev != 0 {
			k.tables = append(k.tables, t)
			k.floors = append(k.floors, floor)
		}
	}
	return k
}

func (k knowledge) ask(c *conn) {
	if len(k.tables) == 0 {
		return
	}
	n := len(k.tables)
	c.send(qVerify, int4s(n, func(i int) int32 { return k.tables[i].id }),
		int8s(n, func(i int) int64 { return k.floors[i].rev }),
		int4s(n, func(i int) int32 { return k.floors[i].sub }))
}

func (k knowledge) hear(c *conn) error {
	if len(k.tables) == 0 {
		return nil
	}
	_, err := c.result(func(cols *columns) error {
		i := int(cols.int()) - 1
		origin := cols.next()
		at := commitID{rev: cols.int(), sub: cols.int32()}
		token := cols.next()
		oldest := cols.int()
		if cols.err == nil {
			k.tables[i].verify(k.floors[i], origin, at, token, oldest)
		}
		return nil
	})
	return err
}

// verify compares the database's answer with the known commit floor.
func (t *table) verify(floor commitID, origin []byte, at commitID, token []byte, oldest kv.Revision) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case !t.sameOrigin(origin):
		_ = t.endReplaced(origin == nil)
	case at.before(floor):
		t.fallBehind(fmt.Sprintf("it is at revision %d, but revision %d was acknowledged before", at.rev, floor.rev))
	case token == nil && floor.rev >= oldest && oldest != 0 && floor.rev > 1 && !t.trimmed(floor, at):
		t.fallBehind(fmt.Sprintf("it lacks the commit of revision %d that was acknowledged before", floor.rev))
	case token != nil && !bytes.Equal(token, floor.token[:]):
		t.fallBehind(fmt.Sprintf("its revision %d differs from the one acknowledged before", floor.rev))
	}
}

// trimmed reports whether the row of a commit that made no revision may have been removed
// (see update.go).
func (t *table) trimmed(floor, at commitID) bool {
	return floor.sub > 0 && (at.rev > floor.rev || at.sub-floor.sub >= keepIdle)
}
