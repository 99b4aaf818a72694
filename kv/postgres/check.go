package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/atoll-dev/atoll/kv"
)

// inconsistencies are queries that return no rows in a consistent database. Each row is
// (keyspace, affected object). Purge has removed only a part of a dropped keyspace, so those
// do not count.
var inconsistencies = []struct{ what, sql string }{
	{"current key refers to a change that is missing in the log, or differs", `
		SELECT c.ks, encode(c.key, 'hex') FROM current c LEFT JOIN log l ON l.ks = c.ks AND l.id = c.id
		WHERE l.id IS NULL OR (l.key, l.rev, l.create_rev, l.version, l.lease)
			IS DISTINCT FROM (c.key, c.mod, c.create_rev, c.version, c.lease)`},
	{"key in the log that is newer than its current state", `
		SELECT l.ks, encode(l.key, 'hex') FROM log l LEFT JOIN current c ON c.ks = l.ks AND c.key = l.key
		WHERE c.id IS NULL OR c.id < l.id`},
	{"keyspace whose head is not its last commit", `
		SELECT h.ks, h.rev::text FROM head h
		LEFT JOIN LATERAL (SELECT * FROM segment s WHERE s.ks = h.ks ORDER BY s.rev DESC, s.sub DESC LIMIT 1) s ON true
		WHERE (h.rev, h.sub) <> (1, 0) AND (h.rev, h.sub, h.next_id, h.token) IS DISTINCT FROM (s.rev, s.sub, s.id + s.n, s.token)`},
	{"keyspace whose usage is not that of the present keys", `
		SELECT h.ks, h.rev::text FROM head h
		CROSS JOIN LATERAL (SELECT count(*) AS keys, coalesce(sum(octet_length(c.key) + octet_length(l.value)), 0) AS bytes
			FROM current c JOIN log l ON l.ks = c.ks AND l.id = c.id WHERE c.ks = h.ks AND c.version > 0) u
		WHERE h.usage_rev = h.rev AND (h.usage_keys <> u.keys OR h.usage_bytes <> u.bytes)`},
	{"change at or above the next id of its keyspace, or without a keyspace", `
		SELECT l.ks, l.rev::text FROM log l LEFT JOIN head h ON h.ks = l.ks WHERE h.ks IS NULL OR l.id >= h.next_id OR l.rev > h.rev`},
	{"change above the compaction revision without a commit", `
		SELECT l.ks, l.rev::text FROM log l JOIN head h ON h.ks = l.ks
		WHERE l.rev > h.compacted AND NOT EXISTS (SELECT 1 FROM segment s
			WHERE s.ks = l.ks AND s.rev >= l.rev AND l.id >= s.id AND l.id < s.id + s.n)`},
	{"change missing from a commit above the compaction revision", `
		SELECT s.ks, s.rev::text FROM segment s JOIN head h ON h.ks = s.ks
		WHERE s.rev > h.compacted AND s.n > 0 AND NOT EXISTS (SELECT 1 FROM log l
			WHERE l.ks = s.ks AND l.id = s.id + s.n - 1 AND l.rev = s.rev)`},
	{"change above the compaction revision whose predecessor is missing", `
		SELECT l.ks, l.rev::text FROM log l JOIN head h ON h.ks = l.ks
		WHERE l.rev > h.compacted AND l.prev_rev <> 0 AND NOT EXISTS (SELECT 1 FROM log p
			WHERE p.ks = l.ks AND p.id = l.prev_id AND p.key = l.key AND p.rev = l.prev_rev)`},
	{"revisions of the log that do not ascend with its ids", `
		SELECT ks, rev::text FROM (SELECT ks, rev, lag(rev) OVER (PARTITION BY ks ORDER BY id) AS before FROM log) l
		WHERE rev < before`},
	{"gap in the revisions above the compaction revision", `
		SELECT ks, rev::text FROM (SELECT l.ks, l.rev, h.compacted,
				lag(l.rev) OVER (PARTITION BY l.ks ORDER BY l.id) AS before
			FROM log l JOIN head h ON h.ks = l.ks WHERE l.rev > h.compacted) l
		WHERE rev > coalesce(before, greatest(compacted, 1)) + 1`},
	{"keyspace that lacks a revision that a server has acknowledged (run atoll kv recover)", `
		SELECT ks, lost::text FROM head WHERE lost <> 0`},
	{"key with a lease that does not exist", `
		SELECT c.ks, encode(c.key, 'hex') FROM current c
		WHERE c.lease <> 0 AND NOT EXISTS (SELECT 1 FROM lease l WHERE l.ks = c.ks AND l.id = c.lease)`},
	{"key of a keyspace that does not exist", `
		SELECT c.ks, encode(c.key, 'hex') FROM current c WHERE NOT EXISTS (SELECT 1 FROM keyspace k WHERE k.id = c.ks)`},
	{"change that a completed sweep did not remove", `
		SELECT l.ks, l.rev::text FROM log l JOIN head h ON h.ks = l.ks JOIN sweep w ON w.ks = l.ks
		WHERE w.swept = h.compacted AND l.version = 0 AND l.rev < h.compacted
		UNION ALL
		SELECT p.ks, p.rev::text FROM log n JOIN head h ON h.ks = n.ks JOIN sweep w ON w.ks = n.ks
		JOIN log p ON p.ks = n.ks AND p.id = n.prev_id
		WHERE w.swept = h.compacted AND n.rev <= h.compacted`},
}

var _ kv.Checker = (*DB)(nil)

var _ kv.Inspector = (*table)(nil)

// Inspect implements kv.Inspector. It counts rows by their indexes. PostgreSQL knows the
// time of the last commit only with track_commit_timestamp on.
func (t *table) Inspect(ctx context.Context) (*kv.Inspection, error) {
	out := &kv.Inspection{}
	all := t.scan(kv.RangeRequest{Span: kv.Prefix(nil), CountOnly: true}, true)
	err := t.snapshot(ctx, "inspect", func(c *conn) {
		all.send(c)
		c.send(qHistory, int4(t.id))
	}, func(c *conn, h head) error {
		res, err := all.receive(c, h.Head)
		if err != nil {
			return err
		}
		out.Keys = res.Count
		_, err = c.result(func(cols *columns) error {
			out.History = cols.int() - out.Keys
			return nil
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// Check implements kv.Checker: it verifies that the log, the current state, the commits and
// the leases of every keyspace agree. It does not check the structure of tables and indexes
// (use pg_amcheck).
func (db *DB) Check(ctx context.Context) error {
	var found []error
	// It joins whole tables: separate statements, with the planner's own plans and without
	// a time limit.
	err := db.retry(ctx, "check", func(wait context.Context) error {
		found = nil
		return db.with(ctx, wait, checkLimit, func(c *conn) error {
			defer func() { c.broken = true }() // its settings differ from the other connections'
			for _, text := range append([]string{db.dialect.beginRead}, db.dialect.forCheck...) {
				if err := c.simple(text, nil); err != nil {
					return err
				}
			}
			for _, q := range inconsistencies {
				err := c.simple(`SELECT 'keyspace ' || coalesce((SELECT name FROM keyspace WHERE id = ks), ks::text) || ': ' || x
					FROM (SELECT * FROM (`+q.sql+`) f (ks, x) WHERE ks NOT IN (SELECT d.ks FROM dropped d) LIMIT 10) f`,
					func(cols [][]byte) {
						found = append(found, fmt.Errorf("database %s: %s: %s", db.where, q.what, cols[0]))
					})
				if err != nil {
					return fmt.Errorf("%s: %w", q.what, err)
				}
			}
			return c.simple("COMMIT", nil)
		})
	})
	return errors.Join(append(found, err)...)
}
