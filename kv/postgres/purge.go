package postgres

import (
	"context"
	"fmt"
	"strings"
)

// purgeTable is a table whose rows Purge removes, in the order of its primary key after ks.
type purgeTable struct {
	name    string
	columns []string
	types   []string
}

// purgeTables returns the tables that Purge empties. dropped.stage is an index in this list,
// so add new ones at the end.
func purgeTables() []purgeTable {
	return []purgeTable{
		{"log", []string{"id"}, []string{"int8"}},
		{"current", []string{"key"}, []string{"bytea"}},
		{"segment", []string{"rev", "sub"}, []string{"int8", "int4"}},
		{"lease", []string{"id"}, []string{"int8"}},
		{"former", []string{"origin"}, []string{"bytea"}},
		{"alarm", []string{"ks"}, []string{"int4"}},
	}
}

// rememberDropped is how long the head of a dropped keyspace is kept, by the database's
// clock. A server that was cut off for longer finds no head, and takes the database for one
// that lacks the keyspace (kv.ErrBehind). Within this time, hosts that accept writes are
// also compared although one of them has dropped a keyspace (see judge.go).
const rememberDropped = "24 hours"

// purge is one step of a Purge.
type purge struct {
	mover
	stage int64
	place string // of the first row that is left, as text
	left  int    // rows that may still be removed
}

// Purge implements kv.Dropper. It locks the keyspace's row in dropped, which no writer uses;
// another server purges another keyspace meanwhile. The place where it continues is stored
// in the same transaction: without it, each step would read again over the rows that earlier
// ones have deleted. The transaction need not be durable, because lost steps are repeated.
func (db *DB) Purge(ctx context.Context, limit int) (more bool, err error) {
	if err := db.writable("purge dropped keyspaces"); err != nil {
		return false, err
	}
	err = db.read(ctx, "purge dropped keyspaces", statementLimit, func(c *conn) error {
		p := &purge{mover: mover{db: db, c: c}, left: max(limit, 1)}
		more = p.step()
		return p.err
	})
	return more, err
}

// step removes rows of one dropped keyspace, and reports whether there may be more rows.
func (p *purge) step() (more bool) {
	p.exec(p.db.dialect.beginSweep)
	if p.db.dialect.async != "" {
		p.exec(p.db.dialect.async)
	}
	tables := purgeTables()
	if !p.choose(len(tables)) {
		more = p.forget(len(tables))
		p.exec("COMMIT")
		return more && p.err == nil
	}
	for p.left > 0 && int(p.stage) < len(tables) && p.err == nil {
		if p.place = p.remove(tables[p.stage]); p.place == "" {
			p.stage++
		}
	}
	p.exec(fmt.Sprintf(`UPDATE dropped SET stage = %d, place = %s WHERE ks = %d`, p.stage, quoteLiteral(p.place), p.ks))
	p.exec("COMMIT")
	return p.err == nil
}

// selectUnfinished locks a dropped keyspace that has rows left, the most advanced one first. The order is that of an index: in
// another one, it would read all keyspaces that were dropped within a day.
func selectUnfinished(stages int) string {
	return fmt.Sprintf(`SELECT ks, stage, place FROM dropped WHERE stage < %d ORDER BY stage DESC, ks DESC LIMIT 1 FOR UPDATE SKIP LOCKED`, stages)
}

// selectForgotten locks dropped keyspaces whose last rows may be removed, the oldest first, by an index.
func selectForgotten(stages, limit int) string {
	return fmt.Sprintf(`SELECT ks FROM dropped WHERE stage >= %d AND since < now() - interval '%s' ORDER BY since, ks LIMIT %d FOR UPDATE SKIP LOCKED`,
		stages, rememberDropped, limit)
}

// choose locks a dropped keyspace that has rows left.
func (p *purge) choose(stages int) (found bool) {
	p.rows(selectUnfinished(stages), func(cols []string) {
		found = true
		if _, err := fmt.Sscan(cols[0]+" "+cols[1], &p.ks, &p.stage); err != nil && p.err == nil {
			p.err = err
		}
		p.place = cols[2]
	})
	return found && p.err == nil
}

// remove removes up to p.left rows of a table from p.place on, and returns the place of the
// next one, "" if none is left.
func (p *purge) remove(t purgeTable) (next string) {
	from := fmt.Sprintf(`ks = %d`, p.ks)
	if p.place != "" {
		from += ` AND ` + t.compare(">=", p.place)
	}
	columns := strings.Join(t.columns, ", ")
	p.rows(fmt.Sprintf(`SELECT %s FROM %s WHERE %s ORDER BY %s OFFSET %d LIMIT 1`, columns, t.name, from, columns, p.left), func(cols []string) {
		next = strings.Join(cols, ",")
	})
	if next != "" {
		from += ` AND ` + t.compare("<", next)
	}
	removed, _ := p.integers(`WITH d AS (DELETE FROM ` + t.name + ` WHERE ` + from + ` RETURNING ks) SELECT count(*) FROM d`)
	for _, n := range removed {
		p.left -= int(n)
	}
	return next
}

// compare returns the condition on a row's key with respect to a place.
func (t *purgeTable) compare(operator, place string) string {
	var values []string
	for i, v := range strings.Split(place, ",") {
		values = append(values, quoteLiteral(v)+"::"+t.types[min(i, len(t.types)-1)])
	}
	return fmt.Sprintf(`(%s) %s (%s)`, strings.Join(t.columns, ", "), operator, strings.Join(values, ", "))
}

// forget removes the last rows of keyspaces that no server can have open any more, and
// reports whether there may be more of them.
func (p *purge) forget(stages int) (more bool) {
	var ids []string
	p.rows(selectForgotten(stages, max(p.left/2, 1)), func(cols []string) { ids = append(ids, cols[0]) })
	if len(ids) == 0 {
		return false
	}
	for _, row := range []string{`head`, `dropped`} {
		p.exec(`DELETE FROM ` + row + ` WHERE ks IN (` + strings.Join(ids, ", ") + `)`)
	}
	return true
}
