package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/atoll-dev/atoll/kv"
)

// If the URL names several hosts, more than one of them may accept writes: a standby was
// promoted, and the former primary has been started again as it was. Only one of them has
// all acknowledged writes. A connection is used if its host has all that this process knows,
// and if the running database was compared with those of the other hosts (see judge.go).

// hosts are the hosts of a URL.
type hosts struct {
	all []*pgconn.Config

	mu sync.Mutex
	// last is the host that was used last.
	last int
	// judged is the running database that was compared with the other hosts.
	judged string
	// outdated is since when no host has everything, while another one did not answer.
	outdated time.Time
}

// splitHosts returns a configuration for each host. pgconn has one entry for each host with
// TLS and one without, if both are allowed.
func splitHosts(config *pgconn.Config) (all []*pgconn.Config) {
	entries := append([]*pgconn.FallbackConfig{{Host: config.Host, Port: config.Port, TLSConfig: config.TLSConfig}}, config.Fallbacks...)
	for i, e := range entries {
		if i > 0 && e.Host == entries[i-1].Host && e.Port == entries[i-1].Port {
			last := all[len(all)-1]
			last.Fallbacks = append(last.Fallbacks, e)
			continue
		}
		one := config.Copy()
		one.Host, one.Port, one.TLSConfig, one.Fallbacks = e.Host, e.Port, e.TLSConfig, nil
		all = append(all, one)
	}
	return all
}

func hostOf(c *pgconn.Config) string { return net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port))) }

// order returns the hosts' numbers in the order in which to try them.
func (h *hosts) order() (order []int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range h.all {
		order = append(order, (h.last+i)%len(h.all))
	}
	return order
}

func (h *hosts) isJudged(running string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.judged == running
}

// use records the running database that is used from now on, and reports whether it replaces
// another one.
func (h *hosts) use(i int, running string) (replaces bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	replaces = h.judged != "" && h.judged != running
	h.last, h.judged, h.outdated = i, running, time.Time{}
	return replaces
}

// outdatedFor reports whether no host has had everything for at least limit.
func (h *hosts) outdatedFor(now time.Time, limit time.Duration) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.outdated.IsZero() {
		h.outdated = now
	}
	return now.Sub(h.outdated) >= limit
}

// prefer makes a host the first one to try.
func (h *hosts) prefer(i int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last = i
}

// arrival is a new connection, and the state of the database behind it.
type arrival struct {
	*conn
	host  string
	known knowledge
	lacks []lack
	// dropped are the known keyspaces that were dropped there.
	dropped []*table
	instance
}

// connect opens a connection that is ready to use.
func (db *DB) connect(ctx context.Context) (*conn, error) {
	if len(db.hosts.all) == 1 || db.dialect.instance == "" {
		a, err := db.connectTo(ctx, db.config)
		if err != nil {
			return nil, err
		}
		return db.use(ctx, a)
	}
	var behind *arrival
	var failed []error
	for _, i := range db.hosts.order() {
		a, err := db.connectTo(ctx, db.hosts.all[i])
		if err == nil && len(a.lacks) == 0 && !db.hosts.isJudged(a.running) {
			a, i, err = db.compareHosts(ctx, a, i)
		}
		switch {
		case err != nil:
			failed = append(failed, fmt.Errorf("%s: %w", hostOf(db.hosts.all[i]), err))
		case len(a.lacks) > 0:
			db.record(ctx, a)
			if behind == nil {
				behind = a
			} else {
				a.close()
			}
		default:
			if behind != nil {
				behind.close()
			}
			if db.hosts.use(i, a.running) {
				db.generation.Add(1) // the other connections lead to the former one
			}
			return db.use(ctx, a)
		}
	}
	switch {
	case behind == nil:
		return nil, errors.Join(failed...)
	case len(failed) == 0 || db.hosts.outdatedFor(db.clock.Now(), db.opts.timeout/3):
		return db.use(ctx, behind)
	}
	// A host that has everything may have refused just this connection. It is asked again before
	// all use of the keyspaces ends.
	behind.close()
	return nil, &lostError{errors.Join(append(failed, fmt.Errorf("%s: %s", behind.host, behind.lacks[0].what))...)}
}

// compareHosts replaces a connection by one to the host that has all commits of the others.
func (db *DB) compareHosts(ctx context.Context, a *arrival, i int) (*arrival, int, error) {
	best, found, err := db.judgeHosts(ctx)
	if err != nil {
		a.close()
		return nil, i, err
	}
	if found.running == a.running {
		return a, i, nil
	}
	a.close()
	a, err = db.connectTo(ctx, db.hosts.all[best])
	return a, best, err
}

// use applies the findings on a connection. The connection is returned when the database
// behind it may be used.
func (db *DB) use(ctx context.Context, a *arrival) (*conn, error) {
	stop := a.watch(ctx)
	db.record(ctx, a)
	a.known.apply(a.lacks, a.dropped)
	a.generation = db.generation.Load() // its database was compared
	err := db.settle(a)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		a.close()
		return nil, err
	}
	return a.conn, nil
}

// record records the missing revisions in a database, so that servers that do not know them
// do not go on with it. A failure is harmless as far as this server is concerned, and the next
// connection tries again. The update may wait for a restore that brings the missing revisions, and
// then no longer applies.
func (db *DB) record(ctx context.Context, a *arrival) {
	for _, l := range a.lacks {
		if l.lost == 0 || l.marked || db.opts.readOnly {
			continue
		}
		text := fmt.Sprintf(`UPDATE head h SET lost = greatest(h.lost, %d) WHERE h.ks = %d`, l.lost, l.t.id)
		if l.until != (commitID{}) {
			text += fmt.Sprintf(` AND (h.rev, h.sub) < (%d, %d)`, l.until.rev, l.until.sub)
		}
		if a.table != 0 {
			text += fmt.Sprintf(` AND %s = %d`, db.dialect.table, uint32(a.table))
		}
		_ = a.within(ctx, db.opts.timeout, func() error { return a.simple(text, nil) })
	}
}

// probeLimit bounds the time to ask one host while all of them are compared.
const probeLimit = 3 * time.Second

// judgeHosts compares the databases of all hosts and returns the one to use.
func (db *DB) judgeHosts(ctx context.Context) (host int, _ *candidate, err error) {
	probes := make([]*probe, len(db.hosts.all))
	failed := make([]error, len(db.hosts.all))
	db.each(ctx, func(ctx context.Context, i int) {
		probes[i], failed[i] = db.probe(ctx, db.hosts.all[i])
	})
	defer func() {
		for _, p := range probes {
			if p != nil {
				_ = p.c.Close(context.WithoutCancel(ctx))
			}
		}
	}()
	var all []*candidate
	var from []int
	for i, p := range probes {
		if p != nil && !slices.ContainsFunc(all, func(c *candidate) bool { return c.running == p.running }) {
			all = append(all, p.candidate)
			from = append(from, i)
		}
	}
	if len(all) == 0 {
		return 0, nil, errors.Join(failed...)
	}
	if len(all) > 1 {
		db.each(ctx, func(ctx context.Context, i int) {
			if p := probes[i]; p != nil {
				failed[i] = db.compareWith(ctx, p, all)
			}
		})
		for _, i := range from {
			if failed[i] != nil {
				return 0, nil, failed[i]
			}
		}
	}
	best, err := judge(all)
	if err != nil {
		return 0, nil, fmt.Errorf("database %s: %w", db.where, err)
	}
	db.markOutdated(ctx, all, best, from, probes)
	return from[best], all[best], nil
}

// markOutdated records in the databases that were not chosen which revisions they lack.
func (db *DB) markOutdated(ctx context.Context, all []*candidate, best int, from []int, probes []*probe) {
	if db.opts.readOnly {
		return
	}
	for j := range all {
		if j == best {
			continue
		}
		for name, h := range all[best].heads {
			old, ok := all[j].heads[name]
			if !ok || !old.commit.before(h.commit) || old.origin != h.origin {
				continue
			}
			schema := quoteIdentifier(db.opts.schema)
			// An older schema has no column for it.
			_, _ = execText(ctx, probes[from[j]].c, fmt.Sprintf(`UPDATE %s.head SET lost = greatest(lost, %d)
				WHERE ks = (SELECT id FROM %s.keyspace WHERE name = %s) AND rev <= %d`, schema, h.commit.rev, schema, quoteLiteral(name), h.commit.rev))
		}
	}
}

// compareEvery is the interval at which a server compares all hosts although its
// connections are well.
const compareEvery = 15 * time.Second

// checkOtherHosts finds a former primary that was started again, and records in it that it
// is outdated, before a server is started while it is the only host that answers. If another
// host has taken over, it lets all connections end.
func (db *DB) checkOtherHosts(ctx context.Context) {
	if len(db.hosts.all) == 1 || db.dialect.instance == "" {
		return
	}
	host, best, err := db.judgeHosts(ctx)
	if err != nil || db.hosts.isJudged(best.running) {
		return
	}
	db.hosts.prefer(host)
	db.generation.Add(1)
}

// each calls f for every host, at the same time.
func (db *DB) each(ctx context.Context, f func(ctx context.Context, i int)) {
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	var wg sync.WaitGroup
	for i := range db.hosts.all {
		wg.Go(func() { f(ctx, i) })
	}
	wg.Wait()
}

// probe is a connection for comparing hosts.
type probe struct {
	*candidate
	c *pgconn.PgConn
}

// probe describes the database of a host that accepts writes.
func (db *DB) probe(ctx context.Context, config *pgconn.Config) (_ *probe, err error) {
	c, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", hostOf(config), err)
	}
	defer func() {
		if err != nil {
			_ = c.Close(context.WithoutCancel(ctx))
			err = fmt.Errorf("%s: %w", hostOf(config), err)
		}
	}()
	d, err := detect(ctx, c)
	if err != nil {
		return nil, err
	}
	p := &probe{c: c, candidate: &candidate{host: hostOf(config), heads: map[string]position{}}}
	if d.instance == "" {
		return p, nil // its nodes agree
	}
	rows, err := execText(ctx, c, `SELECT `+runningDatabase+`, substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8)`)
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return nil, noAnswer()
	}
	timeline, err := strconv.ParseUint(rows[0][1], 16, 32)
	if err != nil {
		return nil, fmt.Errorf("read the timeline: %w", err)
	}
	p.running, p.timeline = rows[0][0], uint32(timeline)
	schema := quoteIdentifier(db.opts.schema)
	rows, err = execText(ctx, c, `SELECT k.name, encode(k.origin, 'hex'), h.rev, h.sub, encode(h.token, 'hex'), coalesce(to_jsonb(h) ->> 'lost', '0')
		FROM `+schema+`.keyspace k JOIN `+schema+`.head h ON h.ks = k.id`)
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && (pgErr.Code == codeUndefinedTable || pgErr.Code == codeUndefinedSchema) {
		return p, nil // never used
	}
	for _, row := range rows {
		var at position
		if at, err = readPosition(row[1:]); err != nil {
			return nil, err
		}
		p.heads[row[0]] = at
	}
	if err != nil {
		return p, err
	}
	p.dropped, err = droppedIn(ctx, c, schema)
	return p, err
}

// droppedIn returns the origins of dropped keyspaces. An older schema has no table for them.
func droppedIn(ctx context.Context, c *pgconn.PgConn, schema string) (map[string]bool, error) {
	rows, err := execText(ctx, c, `SELECT encode(origin, 'hex') FROM `+schema+`.dropped`)
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code == codeUndefinedTable {
		return nil, nil
	}
	origins := map[string]bool{}
	for _, row := range rows {
		origins[row[0]] = true
	}
	return origins, err
}

// readPosition reads origin, revision, sub, token and lost revision.
func readPosition(row []string) (p position, err error) {
	p.origin = row[0]
	if p.commit.rev, err = strconv.ParseInt(row[1], 10, 64); err != nil {
		return p, err
	}
	sub, err := strconv.ParseInt(row[2], 10, 32)
	if err != nil {
		return p, err
	}
	p.commit.sub, p.token = int32(sub), row[3]
	p.lost, err = strconv.ParseInt(row[4], 10, 64)
	return p, err
}

// compareWith asks a database for the last commits of the others.
func (db *DB) compareWith(ctx context.Context, p *probe, others []*candidate) error {
	schema := quoteIdentifier(db.opts.schema)
	rows, err := execText(ctx, p.c, `SELECT to_regclass(`+quoteLiteral(schema+".former")+`) IS NOT NULL, to_regclass(`+quoteLiteral(schema+".segment")+`) IS NOT NULL`)
	if err != nil {
		return fmt.Errorf("%s: %w", p.host, err)
	}
	if len(rows) == 0 {
		return fmt.Errorf("%s: %w", p.host, noAnswer())
	}
	former := `false`
	if rows[0][0] == "t" {
		former = `EXISTS (SELECT FROM ` + schema + `.former f WHERE f.ks = k.id AND f.origin = decode(y.origin, 'hex'))`
	}
	p.has = make([]map[string]match, len(others))
	for j, other := range others {
		p.has[j] = map[string]match{}
		if len(other.heads) == 0 || rows[0][1] != "t" {
			continue
		}
		var values []string
		for name, at := range other.heads {
			values = append(values, fmt.Sprintf("(%s, %s, %d::int8, %d::int4)", quoteLiteral(name), quoteLiteral(at.origin), at.commit.rev, at.commit.sub))
		}
		found, err := execText(ctx, p.c, `SELECT y.name, coalesce(encode(s.token, 'hex'), ''), `+former+`
			FROM (VALUES `+strings.Join(values, ", ")+`) y (name, origin, rev, sub)
			JOIN `+schema+`.keyspace k ON k.name = y.name
			LEFT JOIN `+schema+`.segment s ON s.ks = k.id AND s.rev = y.rev AND s.sub = y.sub`)
		if err != nil {
			return fmt.Errorf("%s: %w", p.host, err)
		}
		for _, row := range found {
			p.has[j][row[0]] = match{token: row[1], former: row[2] == "t"}
		}
	}
	return nil
}

// oneWritableHost refuses a URL with several hosts that accept writes, for operations that
// change which history is the valid one.
func (db *DB) oneWritableHost(ctx context.Context) error {
	var mu sync.Mutex
	var writable []string
	db.each(ctx, func(ctx context.Context, i int) {
		p, err := db.probe(ctx, db.hosts.all[i])
		if err != nil {
			return
		}
		defer p.c.Close(context.WithoutCancel(ctx))
		mu.Lock()
		defer mu.Unlock()
		writable = append(writable, p.String())
	})
	if len(writable) < 2 {
		return nil
	}
	slices.Sort(writable)
	return fmt.Errorf("%w: several hosts of the URL accept writes: %s; name the one to recover alone, and stop the others",
		kv.ErrInvalidRequest, strings.Join(writable, "; "))
}
