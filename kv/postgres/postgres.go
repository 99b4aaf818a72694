// Package postgres stores keyspaces in PostgreSQL, from version 14 on, in YugabyteDB and in
// CockroachDB.
//
// Any number of servers use one database concurrently, with equal rights: a server commits
// while it has locked the head row of a keyspace. An update costs two round trips. If the
// answer to a commit is lost, it is looked up before anything else is done. A database that
// has lost acknowledged writes is detected and no longer used. DESIGN.md explains the
// schema and how it fails.
package postgres

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/kv"
)

// DB is one database. It implements kv.Backend.
type DB struct {
	opts     options
	clock    clock.WithTicker
	where    string         // host and database, for messages
	config   *pgconn.Config // as given
	settings []string       // statements that prepare a session
	dialect  *dialect
	lz4      bool // the database supports this compression
	queries  [numQueries]statement
	pool     *pool
	notifier *notifier
	leases   *leaseReader
	heard    lastHeard
	hosts    hosts
	id       string // of this process among the users of the database

	generation atomic.Int64 // of connections
	checking   atomic.Bool  // checkAgain is running
	evicting   atomic.Bool  // evictFromAnother is running
	signed     atomic.Int64 // the instance that was compared with the known commits
	background sync.WaitGroup

	mu     sync.Mutex
	tables map[string]*table

	closing   chan struct{}
	closeOnce sync.Once
}

var _ kv.Backend = (*DB)(nil)

type options struct {
	schema   string
	maxConns int
	timeout  time.Duration
	poll     time.Duration
	clock    clock.WithTicker
	readOnly bool
	// acceptLoss uses a database although a server has recorded that it lacks something.
	acceptLoss bool
	// verified: sslmode is verify-full because nothing sets it.
	verified bool
	// oneWritable refuses a URL with several hosts that accept writes.
	oneWritable bool
}

// Option configures the use of a database.
type Option func(*options)

// WithSchema sets the name of the schema with all tables; "atoll" by default.
func WithSchema(name string) Option { return func(o *options) { o.schema = name } }

// WithMaxConns bounds the connections, one of which listens for notifications; 16 by
// default. pool_max_conns in the URL has precedence.
func WithMaxConns(n int) Option { return func(o *options) { o.maxConns = n } }

// WithTimeout is how long an operation waits for a database that does not answer, before it
// fails as unavailable; 10 s by default.
func WithTimeout(d time.Duration) Option { return func(o *options) { o.timeout = d } }

// WithPoll is the interval between reads of other servers' commits. The default is 20 ms if
// the database cannot notify, and otherwise one second, in case a notification is lost.
// poll_interval in the URL has precedence.
func WithPoll(d time.Duration) Option { return func(o *options) { o.poll = d } }

// ToRecover opens a database although a server has recorded that it lacks acknowledged
// writes. If the URL names several hosts, only one of them may accept writes. No server may
// be using it.
func ToRecover() Option { return func(o *options) { o.acceptLoss, o.oneWritable = true, true } }

// WithClock sets the clock for waits.
func WithClock(c clock.WithTicker) Option { return func(o *options) { o.clock = c } }

// Open connects to the database of a URL and upgrades its schema. The URL is that of libpq,
// which may have several hosts:
//
//	postgres://user:password@host1,host2:5432/database?sslmode=verify-full&pool_max_conns=16
//
// Missing parts come from libpq's environment variables and password file. Without sslmode it is verify-full, unless all
// hosts are on this machine. Databases whose
// settings could lose acknowledged writes are refused.
// Errors: kv.ErrNewerSchema, kv.ErrInvalidRequest, kv.ErrUnavailable.
func Open(ctx context.Context, url string, opts ...Option) (*DB, error) {
	return open(ctx, url, opts)
}

func open(ctx context.Context, url string, opts []Option) (_ *DB, err error) {
	o := options{schema: "atoll", maxConns: 16, timeout: 10 * time.Second, clock: clock.RealClock{}}
	for _, opt := range opts {
		opt(&o)
	}
	config, err := parse(url, &o)
	if err != nil {
		return nil, err
	}
	db := &DB{
		opts: o, clock: o.clock, config: config, where: describe(config),
		tables: map[string]*table{}, closing: make(chan struct{}), heard: lastHeard{begin: time.Now()},
		dialect: unknownDialect(), // for errors, until the database's version is known
		hosts:   hosts{all: splitHosts(config)}, id: uuid.NewString(),
	}
	if err := db.prepare(ctx); err != nil {
		return nil, db.fail(ctx, "open", err)
	}
	db.queries = buildQueries(db.dialect)
	db.settings = db.sessionSettings()
	db.pool = newPool(db, o.maxConns)
	db.notifier = newNotifier(db)
	db.leases = newLeaseReader(db)
	if o.oneWritable && !o.readOnly {
		if err := db.refuseServers(ctx); err != nil {
			db.Close()
			return nil, err
		}
	}
	// The first connections show whether sessions have the required settings, and keep them.
	if err := db.read(ctx, "open", o.timeout, func(c *conn) error { return db.checkSession(ctx, c) }); err != nil {
		db.Close()
		return nil, err
	}
	return db, nil
}

// parse reads the URL; pool_max_conns and poll_interval are our own parameters.
func parse(url string, o *options) (*pgconn.Config, error) {
	if err := checkEncoded(url); err != nil {
		return nil, err
	}
	config, err := pgconn.ParseConfig(url)
	if err == nil {
		config, o.verified, err = withTLS(config, url)
	}
	if err != nil {
		// The driver masks passwords in its message as well as it can. If it cannot parse
		// the URL, the message must not be shown at all.
		return nil, fmt.Errorf("open database: %w: invalid URL; use postgres://user:password@host:port/database?sslmode=verify-full and escape special characters as %%XX", kv.ErrInvalidRequest)
	}
	if n, ok := config.RuntimeParams["pool_max_conns"]; ok {
		delete(config.RuntimeParams, "pool_max_conns")
		if o.maxConns, err = strconv.Atoi(n); err != nil {
			return nil, fmt.Errorf("open database %s: %w: pool_max_conns=%q is not a number", describe(config), kv.ErrInvalidRequest, n)
		}
	}
	if every, ok := config.RuntimeParams["poll_interval"]; ok {
		delete(config.RuntimeParams, "poll_interval")
		if o.poll, err = time.ParseDuration(every); err != nil || o.poll <= 0 {
			return nil, fmt.Errorf("open database %s: %w: poll_interval=%q is not a duration, such as 20ms", describe(config), kv.ErrInvalidRequest, every)
		}
	}
	if o.maxConns < 2 {
		return nil, fmt.Errorf("open database %s: %w: at least 2 connections are required, one to read and one to write, not %d",
			describe(config), kv.ErrInvalidRequest, o.maxConns)
	}
	if o.schema == "" || len(o.schema) > 63 || strings.HasPrefix(o.schema, "pg_") || strings.ContainsRune(o.schema, 0) {
		return nil, fmt.Errorf("open database %s: %w: %q is not a valid schema name", describe(config), kv.ErrInvalidRequest, o.schema)
	}
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = 5 * time.Second
	}
	config.DialFunc = newDialer().DialContext
	if config.ValidateConnect == nil && !(o.readOnly && oneHost(config)) {
		// If there are several hosts, connect to the one that accepts writes.
		config.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	config.ValidateConnect = guarded(config.ValidateConnect)
	if config.RuntimeParams["application_name"] == "" {
		config.RuntimeParams["application_name"] = "atoll"
	}
	return config, nil
}

// checkEncoded refuses a URL whose password contains a character that ends it. What follows
// would be taken for a host or a database, and be printed.
func checkEncoded(url string) error {
	_, rest, ok := strings.Cut(url, "://")
	if !ok {
		return nil
	}
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		return nil
	}
	authority, after := rest[:end], rest[end:]
	path, query, _ := strings.Cut(after, "?")
	_, port, _ := strings.Cut(authority, ":")
	number := strings.Trim(port, "0123456789") == "" || strings.ContainsAny(authority, ",]")
	switch {
	case strings.Contains(path, "@"), strings.Contains(path, "#"),
		strings.Contains(query, "@") && !strings.Contains(authority, "@") && !number:
		return fmt.Errorf("open database: %w: the URL's password contains a character that must be percent-encoded: write @ as %%40, / as %%2F, ? as %%3F, # as %%23 and %% as %%25", kv.ErrInvalidRequest)
	}
	return nil
}

// Where identifies the database in messages: hosts and database, without user and password.
func (db *DB) Where() string { return "postgres://" + db.where }

// describe identifies a database without its password.
func describe(c *pgconn.Config) string { return strings.Join(hostNames(c), ",") + "/" + c.Database }

func hostNames(c *pgconn.Config) []string {
	all := []string{net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port)))}
	for _, f := range c.Fallbacks {
		h := net.JoinHostPort(f.Host, strconv.Itoa(int(f.Port)))
		if h != all[len(all)-1] { // with and without TLS
			all = append(all, h)
		}
	}
	return all
}

func oneHost(c *pgconn.Config) bool { return len(hostNames(c)) == 1 }

// sessionSettings returns the statements that prepare our sessions. They are not parameters
// of the connection's start, because poolers such as PgBouncer refuse those that they do not
// know.
func (db *DB) sessionSettings() (statements []string) {
	set := func(name, value string) { statements = append(statements, "SET "+name+" = "+value) }
	for _, name := range slices.Sorted(maps.Keys(db.dialect.settings)) {
		set(name, quoteLiteral(db.dialect.settings[name]))
	}
	if db.lz4 {
		set("default_toast_compression", quoteLiteral("lz4"))
	}
	set("search_path", quoteIdentifier(db.opts.schema))
	return statements
}

// Size implements kv.Backend. The size in use is estimated from the database's statistics
// of dead rows.
func (db *DB) Size(ctx context.Context) (total, inUse int64, err error) {
	err = db.read(ctx, "measure size", statementLimit, func(c *conn) error {
		return c.simple(db.dialect.size, func(cols [][]byte) {
			total, _ = strconv.ParseInt(string(cols[0]), 10, 64)
			inUse, _ = strconv.ParseInt(string(cols[1]), 10, 64)
		})
	})
	return total, inUse, err
}

// query runs one statement in its own transaction.
func (db *DB) query(ctx context.Context, op string, send func(*conn), row func(*columns) error) error {
	return db.queryWithin(ctx, op, statementLimit, send, row)
}

func (db *DB) queryWithin(ctx context.Context, op string, limit time.Duration, send func(*conn), row func(*columns) error) error {
	return db.read(ctx, op, limit, func(c *conn) error {
		send(c)
		c.sync()
		if err := c.flush(); err != nil {
			return err
		}
		if _, err := c.result(row); err != nil {
			return err
		}
		return c.ready()
	})
}

func (db *DB) isClosing() bool {
	select {
	case <-db.closing:
		return true
	default:
		return false
	}
}

// Close waits for operations under way and closes all connections.
func (db *DB) Close() error {
	db.closeOnce.Do(func() {
		close(db.closing)
		db.notifier.stop()
		db.background.Wait()
		db.leave()
		db.pool.close()
	})
	return nil
}
