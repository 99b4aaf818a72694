package postgres

import (
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// dialect describes the differences of a database with PostgreSQL's protocol. There is one
// for PostgreSQL, YugabyteDB and CockroachDB each, in their own files.
type dialect struct {
	name string

	// serverQuery returns names and values for check, which runs before the database is
	// used. check refuses settings that could lose acknowledged writes, and names the
	// remedy.
	serverQuery string
	check       func(found map[string]string, need int) error
	// sessionQuery returns names and values of a session's settings. checkSession refuses
	// settings that a role, a database or a proxy has overridden.
	sessionQuery string
	checkSession func(found map[string]string) error

	// optimistic: commits may be computed without the head's lock. This requires that each
	// statement sees all commits before it, not only those before its transaction.
	optimistic bool
	// notify: LISTEN and NOTIFY work; otherwise servers poll.
	notify bool
	// settings of every session. A setting that the database does not know ends the
	// connection.
	settings map[string]string

	begin, beginRead string
	// beginUndisturbed begins a read that concurrent writes cannot force to restart; it may
	// wait first. It is used after several failures of beginRead.
	beginUndisturbed string
	// beginSweep begins a transaction in which each statement sees all commits before it.
	beginSweep string
	// table is an expression for the identity of the table of a row h of head, which another
	// table of the same name does not have; 0 if tables are not replaced under servers.
	table string
	// instance is an expression for the identity of the database, which another one that
	// continues it does not have: a promoted standby, a restored copy. Empty if there is only
	// one, as in databases that replicate by consensus.
	instance string
	// lock is the clause that locks a row against other writers.
	lock string
	// lockWait is a statement after begin that bounds how long the next one waits for a
	// lock, where lock_timeout does not.
	lockWait string
	// noTimeout is an expression that disables the statement timeout for the rest of the
	// transaction: see update.go.
	noTimeout string
	// async makes the transaction commit without waiting for the disk.
	async string
	// evict ends transactions of other sessions that hold a head and have been silent for
	// too long, where no setting does.
	evict string
	// standbyWaits returns a row if a session that holds a head waits for the synchronous
	// standby.
	standbyWaits string
	// size selects the size on disk of all tables of the schema, and the part in use, in
	// bytes.
	size string
	// forCheck are statements that allow the check of the whole database enough time and
	// efficient plans.
	forCheck []string

	// ddl converts a migration step to this database's SQL.
	ddl func(text string) string
	// stepwise: statements that define tables commit separately, so each must be
	// idempotent.
	stepwise bool
	// tune are statements after those of the schema that a database may refuse for lack of
	// privileges.
	tune []string
	// joins, if not nil, determines how statements join by keys, in a database whose rows
	// are on other nodes.
	joins *joins

	// again reports whether an error means that the transaction had no effect and should be
	// retried soon, because of concurrent transactions.
	again func(err *pgconn.PgError) bool
	// passing reports the same for temporary problems of the database itself.
	passing func(err *pgconn.PgError) bool
	// waited reports whether a lock was not available in time.
	waited func(code string) bool
	// unknown reports whether a COMMIT that failed with this code may have happened
	// nevertheless.
	unknown func(code string) bool
}

// unknownDialect returns the dialect of a database whose version is not known yet. An error
// that is temporary in one of the databases is retried: otherwise one that is recovering
// would end the start of a server.
func unknownDialect() *dialect {
	out, all := postgresDialect(), []*dialect{postgresDialect(), yugabyteDialect(), cockroachDialect()}
	out.again = func(err *pgconn.PgError) bool {
		// In PostgreSQL, this one is a setting that is too short.
		return !has(err, codeCanceled) && slices.ContainsFunc(all, func(d *dialect) bool { return d.again(err) })
	}
	out.passing = func(err *pgconn.PgError) bool {
		return slices.ContainsFunc(all, func(d *dialect) bool { return d.passing(err) })
	}
	return out
}

// The time that a session may lock a keyspace without sending anything, for instance
// because its server is frozen; and the time that others wait for the lock, which must be
// longer.
const (
	idleLimit = 4 * time.Second
	lockLimit = 6 * time.Second
)

// statementLimit bounds a single read. It must suffice for a list of all keys.
const statementLimit = 60 * time.Second

// checkLimit bounds a check of the whole database.
const checkLimit = 24 * time.Hour

func millis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// has reports whether the error's code is one of codes.
func has(err *pgconn.PgError, codes ...string) bool {
	for _, code := range codes {
		if err.Code == code {
			return true
		}
	}
	return false
}
