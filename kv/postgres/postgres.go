// Package postgres stores keyspaces in PostgreSQL, from version 14 on, in YugabyteDB
// and in CockroachDB.
//
// Any number of servers use one database at once, all equal: whoever holds
// the row of a keyspace's head commits. An update costs two round trips. A
// commit whose answer is lost is looked up before anything else is done, and
// a database that has forgotten what it acknowledged is found out and not used
// any more. DESIGN.md explains the schema and how it fails.
package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/kv"
)

// DB is one database. It implements kv.Backend.
type DB struct {
	opts    options
	clock   clock.WithTicker
	where   string         // host and database, for people
	plain   *pgconn.Config // as given
	session *pgconn.Config // with our settings
	dialect *dialect
	lz4     bool // the database can compress with it
	queries [numQueries]statement
	pool    *pool
	news    *news

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
}

// Option changes how a database is used.
type Option func(*options)

// WithSchema names the schema that holds all tables; "atoll" by default.
func WithSchema(name string) Option { return func(o *options) { o.schema = name } }

// WithMaxConns bounds the connections, of which one more listens for news; 16 by
// default. pool_max_conns in the URL has precedence.
func WithMaxConns(n int) Option { return func(o *options) { o.maxConns = n } }

// WithTimeout is how long an operation waits for a database that does not
// answer, before it fails as unavailable; 10 s by default.
func WithTimeout(d time.Duration) Option { return func(o *options) { o.timeout = d } }

// WithPoll is how often to ask for other servers' commits: by default every
// 20 ms where the database cannot notify, and where it can every second, in case
// that a notification gets lost. poll_interval in the URL has precedence.
func WithPoll(d time.Duration) Option { return func(o *options) { o.poll = d } }

// WithClock sets the clock that waits go by.
func WithClock(c clock.WithTicker) Option { return func(o *options) { o.clock = c } }

// Open connects to the database that a URL names and brings its schema up to
// date. The URL is that of libpq, several hosts included:
//
//	postgres://user:password@host1,host2:5432/database?sslmode=verify-full&pool_max_conns=16
//
// What it leaves out comes from libpq's environment variables and password file.
// Databases that could lose acknowledged writes by their settings are refused.
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
		opts: o, clock: o.clock, plain: config, where: describe(config),
		tables: map[string]*table{}, closing: make(chan struct{}),
		dialect: postgresDialect(), // for errors, until the database has said what it is
	}
	if err := db.prepare(ctx); err != nil {
		return nil, db.fail(ctx, "open", err)
	}
	db.queries = buildQueries(db.dialect)
	db.session = db.sessionConfig()
	db.pool = newPool(db, o.maxConns)
	db.news = newNews(db)
	// The first connection shows whether sessions can be as they have to be.
	if err := db.read(ctx, "open", o.timeout, db.checkSession); err != nil {
		db.Close()
		return nil, err
	}
	return db, nil
}

// parse reads the URL; pool_max_conns and poll_interval are ours.
func parse(url string, o *options) (*pgconn.Config, error) {
	config, err := pgconn.ParseConfig(url)
	if err != nil {
		// The driver's message masks passwords as well as it can; where it cannot
		// tell, it must not be shown at all.
		return nil, fmt.Errorf("open database: %w: its URL cannot be read; write postgres://user:password@host:port/database?sslmode=verify-full and escape special characters as %%XX", kv.ErrInvalidRequest)
	}
	if n, ok := config.RuntimeParams["pool_max_conns"]; ok {
		delete(config.RuntimeParams, "pool_max_conns")
		if o.maxConns, err = strconv.Atoi(n); err != nil {
			return nil, fmt.Errorf("open database %s: %w: pool_max_conns=%q is no number", describe(config), kv.ErrInvalidRequest, n)
		}
	}
	if every, ok := config.RuntimeParams["poll_interval"]; ok {
		delete(config.RuntimeParams, "poll_interval")
		if o.poll, err = time.ParseDuration(every); err != nil || o.poll <= 0 {
			return nil, fmt.Errorf("open database %s: %w: poll_interval=%q is no time; write 20ms", describe(config), kv.ErrInvalidRequest, every)
		}
	}
	if o.maxConns < 2 {
		return nil, fmt.Errorf("open database %s: %w: it takes at least 2 connections, one to read and one to write, not %d",
			describe(config), kv.ErrInvalidRequest, o.maxConns)
	}
	if o.schema == "" || len(o.schema) > 63 || strings.HasPrefix(o.schema, "pg_") || strings.ContainsRune(o.schema, 0) {
		return nil, fmt.Errorf("open database %s: %w: %q is no name for a schema", describe(config), kv.ErrInvalidRequest, o.schema)
	}
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = 5 * time.Second
	}
	config.DialFunc = newDialer().DialContext
	if config.ValidateConnect == nil && !(o.readOnly && oneHost(config)) {
		// Of several hosts, the one that takes writes.
		config.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	if config.RuntimeParams["application_name"] == "" {
		config.RuntimeParams["application_name"] = "atoll"
	}
	return config, nil
}

// Where names the database for people: hosts and database, no user or password.
func (db *DB) Where() string { return "postgres://" + db.where }

// describe names a database without its password.
func describe(c *pgconn.Config) string { return strings.Join(hosts(c), ",") + "/" + c.Database }

func hosts(c *pgconn.Config) []string {
	all := []string{net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port)))}
	for _, f := range c.Fallbacks {
		h := net.JoinHostPort(f.Host, strconv.Itoa(int(f.Port)))
		if h != all[len(all)-1] { // with and without TLS
			all = append(all, h)
		}
	}
	return all
}

func oneHost(c *pgconn.Config) bool { return len(hosts(c)) == 1 }

// sessionConfig is the configuration with the settings of our sessions.
func (db *DB) sessionConfig() *pgconn.Config {
	config := db.plain.Copy()
	for name, value := range db.dialect.settings {
		config.RuntimeParams[name] = value
	}
	if db.lz4 {
		config.RuntimeParams["default_toast_compression"] = "lz4"
	}
	config.RuntimeParams["search_path"] = quoteIdentifier(db.opts.schema)
	return config
}

// Open implements kv.Backend.
func (db *DB) Open(ctx context.Context, keyspace string) (kv.Table, error) {
	if keyspace == "" || strings.ContainsRune(keyspace, 0) {
		return nil, fmt.Errorf("open keyspace %q: %w: it needs a name without zero bytes", keyspace, kv.ErrInvalidRequest)
	}
	db.mu.Lock()
	old := db.tables[keyspace]
	db.mu.Unlock()
	if old != nil && !errors.Is(old.usable(), kv.ErrRepartitioned) {
		return old, nil
	}
	_, _, partition := kv.ParsePartitionName(keyspace)
	origin := make([]byte, tokenSize)
	rand.Read(origin)
	t := newTable(db, keyspace)
	// Who comes second in making one changes nothing and finds the other's.
	err := db.read(ctx, "open keyspace", db.opts.timeout, func(c *conn) error {
		for range 2 {
			found, err := t.find(c)
			if err != nil || found {
				return err
			}
			if db.opts.readOnly {
				return fmt.Errorf("database %s: %w", db.where, kv.ErrKeyNotFound)
			}
			if partition {
				// Made by Split, and by nobody who has only heard of it.
				return kv.ErrKeyNotFound
			}
			c.send(qNewKeyspace, []byte(keyspace), origin)
			c.sync()
			if err := c.flush(); err != nil {
				return err
			}
			if _, err := c.result(nil); err != nil {
				return err
			}
			if err := c.ready(); err != nil {
				return err
			}
		}
		found, err := t.find(c)
		if err == nil && !found {
			err = fmt.Errorf("%w: made, and not there", kv.ErrUnavailable)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open keyspace %q: %w", keyspace, err)
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	if other := db.tables[keyspace]; other != nil && other != old {
		return other, nil
	}
	if old != nil && old.id == t.id {
		t.newest = old.floor() // what was known must still be there
	}
	db.tables[keyspace] = t
	return t, nil
}

// find looks the keyspace up by its name.
func (t *table) find(c *conn) (found bool, err error) {
	c.send(qKeyspace, []byte(t.name))
	c.sync()
	if err := c.flush(); err != nil {
		return false, err
	}
	_, err = c.result(func(cols *columns) error {
		t.id, t.origin, found = cols.int32(), cols.bytes(), true
		return nil
	})
	if err != nil {
		return false, err
	}
	return found, c.ready()
}

// Keyspaces implements kv.Backend.
func (db *DB) Keyspaces(ctx context.Context) (names []string, err error) {
	err = db.query(ctx, "list keyspaces", func(c *conn) { names = nil; c.send(qKeyspaces) }, func(cols *columns) error {
		names = append(names, string(cols.next()))
		return nil
	})
	return names, err
}

// Size implements kv.Backend. What is in use is estimated by the database's
// statistics of dead rows.
func (db *DB) Size(ctx context.Context) (total, inUse int64, err error) {
	err = db.read(ctx, "measure size", statementLimit, func(c *conn) error {
		return c.simple(db.dialect.size, func(cols [][]byte) {
			total, _ = strconv.ParseInt(string(cols[0]), 10, 64)
			inUse, _ = strconv.ParseInt(string(cols[1]), 10, 64)
		})
	})
	return total, inUse, err
}

// query runs one statement in a transaction of its own.
func (db *DB) query(ctx context.Context, op string, send func(*conn), row func(*columns) error) error {
	return db.read(ctx, op, statementLimit, func(c *conn) error {
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

// Close waits for what is under way and closes all connections.
func (db *DB) Close() error {
	db.closeOnce.Do(func() {
		close(db.closing)
		db.news.stop()
		db.pool.close()
	})
	return nil
}
