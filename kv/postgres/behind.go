package postgres

import (
	"bytes"
	"fmt"
	"slices"

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
	layout int32       // counts splits and merges; droppedLayout after a drop
	lost   kv.Revision // the highest revision that a server knows and the database lacks
	table  int32       // identity of the table that this was read from
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
	h.lost, h.table = cols.int(), cols.int32()
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
	case h.layout == droppedLayout:
		return t.dropped()
	case h.last.before(floor):
		return t.fallBehind(lack{t: t, lost: floor.rev,
			what: fmt.Sprintf("it is at revision %d, but revision %d was acknowledged before", h.Revision, floor.rev)})
	case h.last.rev == t.newest.rev && h.last.sub == t.newest.sub && h.last.token != t.newest.token && t.newest.rev != 0:
		return t.fallBehind(lack{t: t, lost: h.Revision,
			what: fmt.Sprintf("its revision %d differs from the one acknowledged before", h.Revision)})
	case h.lost != 0 && !t.db.opts.acceptLoss:
		return t.fallBehind(lackOfOthers(t, h.Revision, h.lost))
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

// lack is a commit, or a keyspace, that a server knows and the database lacks.
type lack struct {
	t    *table
	what string
	// lost is the known revision that is missing, which other servers must not give out
	// again. It is 0 if the database belongs to another history.
	lost kv.Revision
	// until is set if the database has not reached this commit. Otherwise it has another one.
	until commitID
	// marked: another server has found it, and has recorded it in the database.
	marked bool
	gone   bool // the keyspace does not exist
}

// lackOfOthers is the lack that another server has recorded.
func lackOfOthers(t *table, at, lost kv.Revision) lack {
	return lack{t: t, lost: lost, marked: true,
		what: fmt.Sprintf("it is at revision %d, but another server acknowledged revision %d before", at, lost)}
}

// fallBehind ends the use of a table until the database lacks nothing. The caller holds
// t.mu.
func (t *table) fallBehind(l lack) error {
	if t.behind == nil {
		t.behind = t.unusable(l.what, "A lagging standby has taken over, or a backup was restored. The keyspace is not served. "+
			"Either bring the former primary back, and servers go on by themselves, or accept the loss: stop all servers of this database, "+
			"run `atoll kv recover --datastore URL --all`, and restart them")
		t.db.checkAgain()
	}
	return t.behind
}

func (t *table) unusable(what, remedy string) error {
	return fmt.Errorf("keyspace %q: database %s: %w: %s. %s", t.name, t.db.where, kv.ErrBehind, what, remedy)
}

// usable returns the reason why a table cannot be used at present.
func (t *table) usable() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.behind
}

// hasEnded reports whether a table is never used again.
func (t *table) hasEnded() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ended
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
		if floor := t.floor(); floor.rev != 0 || t.usable() != nil {
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

// hear returns what the database lacks, and the keyspaces that were dropped in it.
func (k knowledge) hear(c *conn) (lacks []lack, dropped []*table, err error) {
	if len(k.tables) == 0 {
		return nil, nil, nil
	}
	_, err = c.result(func(cols *columns) error {
		i := int(cols.int()) - 1
		origin := cols.next()
		at := commitID{rev: cols.int(), sub: cols.int32()}
		token := cols.next()
		oldest, lost, layout := cols.int(), cols.int(), cols.int32()
		switch {
		case cols.err != nil:
		case layout == droppedLayout:
			dropped = append(dropped, k.tables[i])
		default:
			if l := k.tables[i].compare(k.floors[i], origin, at, token, oldest, lost); l != nil {
				lacks = append(lacks, *l)
			}
		}
		return nil
	})
	return lacks, dropped, err
}

// compare compares the database's answer with the known commit floor. It returns nil if the
// database has it.
func (t *table) compare(floor commitID, origin []byte, at commitID, token []byte, oldest, lost kv.Revision) *lack {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case !t.sameOrigin(origin):
		return &lack{t: t, what: replacedText, gone: origin == nil}
	case at.before(floor):
		return &lack{t: t, lost: floor.rev, until: floor,
			what: fmt.Sprintf("it is at revision %d, but revision %d was acknowledged before", at.rev, floor.rev)}
	case token == nil && floor.rev >= oldest && oldest != 0 && floor.rev > 1 && !t.trimmed(floor, at):
		return &lack{t: t, lost: floor.rev, what: fmt.Sprintf("it lacks the commit of revision %d that was acknowledged before", floor.rev)}
	case token != nil && !bytes.Equal(token, floor.token[:]):
		return &lack{t: t, lost: floor.rev, what: fmt.Sprintf("its revision %d differs from the one acknowledged before", floor.rev)}
	case lost != 0 && !t.db.opts.acceptLoss:
		l := lackOfOthers(t, at.rev, lost)
		return &l
	}
	return nil
}

// apply records the result of comparing the knowledge with a database that is used from now
// on: tables that lack something are not used, and those that were not used before and lack
// nothing are used again. Those that were dropped in it have ended.
func (k knowledge) apply(lacks []lack, dropped []*table) {
	missing := map[*table]lack{}
	for _, l := range lacks {
		missing[l.t] = l
	}
	for _, t := range k.tables {
		t.mu.Lock()
		l, lacking := missing[t]
		switch {
		case t.ended:
		case slices.Contains(dropped, t):
			_ = t.dropped()
		case lacking && l.lost == 0:
			_ = t.replaced(l.gone)
		case lacking:
			_ = t.fallBehind(l)
		case t.behind != nil:
			t.behind = nil
			t.db.generation.Add(1) // other connections may lead to another database
		}
		t.mu.Unlock()
	}
}

// trimmed reports whether the row of a commit that made no revision may have been removed
// (see update.go).
func (t *table) trimmed(floor, at commitID) bool {
	return floor.sub > 0 && (at.rev > floor.rev || at.sub-floor.sub >= keepIdle)
}
