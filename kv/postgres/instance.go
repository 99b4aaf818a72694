package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/atoll-dev/atoll/kv"
)

// After a failover or a restore, the database may lack commits that only some servers know.
// A server that does not know them must not go on before the others have had the
// opportunity to record them as missing. So the database contains its own identity. The first
// server that finds another identity starts a pause, in which no request is served. Each
// server compares the database with the commits that it knows, records missing ones (in
// head.lost), and signs. The pause ends when all servers that were seen shortly before have signed, or
// after settleLimit: some may have failed together with the database.

const (
	// heartbeat is the interval at which a server is seen.
	heartbeat = 5 * time.Second
	// seenLimit is how long before the last heartbeat of any server the last one of a server
	// may have been that is waited for.
	seenLimit = 4 * heartbeat
	// settleLimit must be longer than a server needs to notice that its database does not
	// answer any more, and to connect to the next one.
	settleLimit = 15 * time.Second
	// jumpLimit is the distance of the database's clock from the last heartbeat of any server
	// from which on the clock must have been set, or no server reached the database.
	jumpLimit = 2 * heartbeat
)

// runningDatabase is an expression that identifies a running database.
const runningDatabase = `concat((SELECT system_identifier FROM pg_control_system()), ' ',
	extract(epoch FROM pg_postmaster_start_time()), ' ', substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))`

// instance is what a session found about the database.
type instance struct {
	running string // identifies the running database
	number  int64
	same    bool // the database is the one that is recorded
	settled bool // it may be used
	signed  bool // this process has compared it with the commits that it knows
}

// describesInstance reports whether the database is one of several that continue each other.
func (db *DB) describesInstance() bool { return db.dialect.instance != "" && !db.opts.readOnly }

// askInstance is the statement that reads the instance.
func (db *DB) askInstance() string {
	return `SELECT ` + runningDatabase + `, i.number, i.identity = ` + db.dialect.instance + `, i.settled, coalesce(s.instance = i.number, false), to_regclass('head')::oid
		FROM instance i LEFT JOIN server s ON s.id = ` + quoteLiteral(db.id)
}

// hearInstance reads the answer.
func (c *conn) hearInstance() (found instance, err error) {
	_, err = c.result(func(cols *columns) error {
		var table int64
		row := cols.cols
		if len(row) != 6 {
			return errors.New("read which database it is: the answer is invalid")
		}
		_, err := fmt.Sscan(string(row[1])+" "+string(row[5]), &found.number, &table)
		c.table = int32(uint32(table))
		found.running, found.same, found.settled, found.signed = string(row[0]), string(row[2]) == "t", string(row[3]) == "t", string(row[4]) == "t"
		return err
	})
	return found, err
}

// unsettledError is returned while servers compare another database with the commits that
// they know.
type unsettledError struct{}

func (unsettledError) Error() string {
	return fmt.Sprintf("it has just taken over or been restored, and not all servers that used it before have checked whether it lacks something (this takes at most %v)", settleLimit)
}

// settle makes sure that all servers have compared the database with the commits that they
// know.
func (db *DB) settle(a *arrival) error {
	if !db.describesInstance() {
		return nil
	}
	if a.same && a.settled && a.signed {
		db.signed.Store(a.number)
		return nil
	}
	id := quoteLiteral(db.id)
	begin := fmt.Sprintf(`UPDATE instance SET number = number + 1, identity = %[1]s, since = clock_timestamp(), settled = false WHERE identity <> %[1]s`, db.dialect.instance)
	sign := `INSERT INTO server (id, seen, instance) SELECT ` + id + `, '-infinity', number FROM instance
		ON CONFLICT (id) DO UPDATE SET instance = excluded.instance`
	// If the database's clock was set back, the pause begins again.
	clock := `UPDATE instance SET since = clock_timestamp() WHERE NOT settled AND since > clock_timestamp()`
	end := fmt.Sprintf(`UPDATE instance i SET settled = true WHERE NOT i.settled AND (
		i.since < clock_timestamp() - interval '%d s'
		OR NOT EXISTS (SELECT FROM server s WHERE s.instance < i.number
			AND s.seen > (SELECT max(seen) FROM server) - interval '%d s'))`, int(settleLimit.Seconds()), int(seenLimit.Seconds()))
	for _, text := range []string{begin, clock, sign, end} {
		if err := a.simple(text, nil); err != nil {
			return err
		}
	}
	settled := false
	err := a.simple(`SELECT i.settled, s.instance FROM instance i JOIN server s ON s.id = `+id, func(cols [][]byte) {
		settled = string(cols[0]) == "t"
		if number, err := strconv.ParseInt(string(cols[1]), 10, 64); err == nil {
			db.signed.Store(number)
		}
	})
	if err == nil && !settled {
		err = unsettledError{}
	}
	return err
}

// beat records that this server uses the database.
func (db *DB) beat(ctx context.Context) {
	if !db.describesInstance() {
		return
	}
	id := quoteLiteral(db.id)
	// If the database's clock was set, the servers that were alive before still are. Otherwise
	// the first one that is seen after the jump would make the others look dead, or they
	// would make it look dead until the clock catches up.
	jumped := fmt.Sprintf(`UPDATE server SET seen = clock_timestamp() WHERE id IN (
		SELECT s.id FROM server s, (SELECT max(seen) AS last FROM server) m
		WHERE s.seen > m.last - interval '%[1]d s'
			AND (m.last < clock_timestamp() - interval '%[2]d s' OR m.last > clock_timestamp() + interval '%[2]d s')
		FOR UPDATE OF s SKIP LOCKED)`, int(seenLimit.Seconds()), int(jumpLimit.Seconds()))
	_ = db.read(ctx, "record that this server is alive", heartbeat, func(c *conn) error {
		// Rows of servers that ended without removing theirs are kept for a while.
		return c.transaction(db.dialect.async, jumped,
			fmt.Sprintf(`INSERT INTO server (id, seen, instance) VALUES (%s, clock_timestamp(), %d) ON CONFLICT (id) DO UPDATE SET seen = excluded.seen`, id, db.signed.Load()),
			// Without waiting for the rows of others, which would do the same.
			`DELETE FROM server WHERE id IN (SELECT id FROM server WHERE seen < clock_timestamp() - interval '1 hour' FOR UPDATE SKIP LOCKED)`)
	})
}

// aliveLimit is how long after its last heartbeat a server may still be alive.
const aliveLimit = 3 * heartbeat

// refuseServers refuses a database that servers use.
func (db *DB) refuseServers(ctx context.Context) error {
	if !db.describesInstance() {
		return nil
	}
	for again := false; ; again = true {
		alive, seen, later := "", "", ""
		err := db.read(ctx, "look for servers", db.opts.timeout, func(c *conn) error {
			return c.simple(fmt.Sprintf(`SELECT count(*) FILTER (WHERE seen <= clock_timestamp() + interval '%[2]d s'),
					coalesce(greatest(0, ceil(extract(epoch FROM clock_timestamp() - max(seen)))), 0)::int8,
					count(*) FILTER (WHERE seen > clock_timestamp() + interval '%[2]d s')
				FROM server WHERE seen > clock_timestamp() - interval '%[1]d s' AND id <> %[3]s`,
				int(aliveLimit.Seconds()), int(jumpLimit.Seconds()), quoteLiteral(db.id)),
				func(cols [][]byte) { alive, seen, later = string(cols[0]), string(cols[1]), string(cols[2]) })
		})
		switch {
		case err != nil:
			return err
		case alive != "0":
			return refuse("database %s is used by %s servers, and the last sign of one is %s s old: stop them first; after servers were killed, wait %d s",
				db.where, alive, seen, int(aliveLimit.Seconds()))
		case later == "0" || again:
			return nil
		}
		// The clock was set back. Servers that are alive are seen again soon.
		select {
		case <-db.clock.After(heartbeat + 2*time.Second):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// leave removes this server from those that are waited for.
func (db *DB) leave() {
	if !db.describesInstance() || db.pool == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = db.with(ctx, ctx, db.opts.timeout, func(c *conn) error {
		return c.simple(`DELETE FROM server WHERE id = `+quoteLiteral(db.id), nil)
	})
}

var _ kv.Identified = (*DB)(nil)

// Instance implements kv.Identified. A distributed database continues itself, whatever
// nodes it loses: there it is "".
func (db *DB) Instance(ctx context.Context) (identity string, err error) {
	if db.dialect.instance == "" {
		return "", nil
	}
	err = db.read(ctx, "identify the database", db.opts.timeout, func(c *conn) error {
		return c.simple(`SELECT `+db.dialect.instance, func(cols [][]byte) { identity = string(cols[0]) })
	})
	return identity, err
}
