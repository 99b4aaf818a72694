package postgres

import (
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// dialect is what databases that speak PostgreSQL's protocol do differently. There
// is one for PostgreSQL, YugabyteDB and CockroachDB each, in files of their own.
type dialect struct {
	name string

	// serverQuery asks a database for name and value of what check judges, before
	// anything is done with it: check refuses, with the remedy, what could forget
	// what it acknowledged.
	serverQuery string
	check       func(found map[string]string, need int) error
	// sessionQuery asks one of our sessions for name and value of its settings:
	// checkSession refuses those that a role, a database or a proxy in between has
	// bent.
	sessionQuery string
	checkSession func(found map[string]string) error

	// optimistic: commits may be worked out before the head is held. Each statement
	// must see what was committed before it, not before its transaction.
	optimistic bool
	// notify: LISTEN and NOTIFY work; otherwise servers poll.
	notify bool
	// settings of every session. One that the database does not know ends the
	// connection.
	settings map[string]string

	begin, beginRead string
	// beginPatient begins a read that others' writes cannot make start again; it
	// may wait before. Used when beginRead has failed several times.
	beginPatient string
	// beginSweep begins a transaction of which each statement sees what was
	// committed before it.
	beginSweep string
	// lock is the clause that holds a row against other writers.
	lock string
	// lockWait is a statement, behind begin, that bounds how long the next one waits
	// for a lock, where lock_timeout does not.
	lockWait string
	// noTimeout is an expression that ends the statement timeout for the rest of
	// the transaction: see update.go.
	noTimeout string
	// async lets the transaction commit without waiting for the disk.
	async string
	// evict ends the transactions of others that hold a head and have been silent
	// for too long, where no setting does.
	evict string
	// size selects the bytes on disk of all tables of the schema, and of those
	// the ones in use.
	size string
	// forCheck are statements that give the check of the whole database the time and
	// the plans that it takes.
	forCheck []string

	// ddl makes a step of migrations one of this database.
	ddl func(text string) string
	// stepwise: statements that define tables commit by themselves, so each must
	// do no harm when it is repeated.
	stepwise bool
	// tune are statements after those of the schema that a database may refuse,
	// for want of a right.
	tune []string
	// joins, if not nil, is how statements are told to join by keys: those of a
	// database whose rows are elsewhere.
	joins *joins

	// again tells by an error that the transaction had no effect and should be run
	// again: because of others, so soon.
	again func(err *pgconn.PgError) bool
	// passing tells the same of what is wrong in the database itself for a while.
	passing func(err *pgconn.PgError) bool
	// waited tells that a lock was not to be had in time.
	waited func(code string) bool
	// unknown tells, by the code with which COMMIT has failed, that it may have
	// happened nevertheless.
	unknown func(code string) bool
}

// How long a session may hold a keyspace without a word, for instance because
// its server is frozen; and how long others wait for it, which must be longer.
const (
	idleLimit = 4 * time.Second
	lockLimit = 6 * time.Second
)

// statementLimit bounds a single read. It must suffice for a list of
// everything.
const statementLimit = 60 * time.Second

// checkLimit bounds a check of the whole database.
const checkLimit = 24 * time.Hour

func millis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// has tells whether the error's code is one of some.
func has(err *pgconn.PgError, codes ...string) bool {
	for _, code := range codes {
		if err.Code == code {
			return true
		}
	}
	return false
}
