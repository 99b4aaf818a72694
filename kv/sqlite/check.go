package sqlite

import (
	"context"
	"errors"
	"fmt"
)

// inconsistencies are queries that return no rows in a consistent database. Each row is
// (keyspace, affected object). Purge has removed only a part of a dropped keyspace, so those
// do not count.
var inconsistencies = []struct{ what, sql string }{
	{"current key refers to a change that is missing in the log, or differs", `
		SELECT c.ks, hex(c.key) FROM current c LEFT JOIN log l ON l.id = c.id
		WHERE l.id IS NULL OR (l.ks, l.key, l.rev, l.create_rev, l.version, l.lease)
			IS NOT (c.ks, c.key, c.mod, c.create_rev, c.version, c.lease)`},
	{"key in the log that is newer than its current state", `
		SELECT l.ks, hex(l.key) FROM log l LEFT JOIN current c ON c.ks = l.ks AND c.key = l.key
		WHERE c.id IS NULL OR c.id < l.id`},
	{"change above the compaction revision without a segment", `
		SELECT l.ks, l.rev FROM log l JOIN keyspace k ON k.id = l.ks
		WHERE l.rev > k.compacted AND NOT EXISTS (SELECT 1 FROM segment s
			WHERE s.ks = l.ks AND s.rev >= l.rev AND l.id >= s.id AND l.id < s.id + s.n)`},
	{"commit whose usage is not that of the present keys", `
		SELECT s.ks, s.rev FROM segment s JOIN keyspace k ON k.id = s.ks
		WHERE s.keys IS NOT NULL AND s.rev = (SELECT max(rev) FROM segment WHERE ks = s.ks)
			AND (s.keys, s.bytes) IS NOT (SELECT count(*), coalesce(sum(length(c.key) + length(l.value)), 0)
				FROM current c JOIN log l ON l.id = c.id WHERE c.ks = s.ks AND c.version > 0)`},
	{"change missing from a segment above the compaction revision", `
		SELECT s.ks, s.rev FROM segment s JOIN keyspace k ON k.id = s.ks
		WHERE s.rev > k.compacted AND NOT EXISTS (SELECT 1 FROM log l
			WHERE l.id = s.id + s.n - 1 AND l.ks = s.ks AND l.rev = s.rev)`},
	{"change above the compaction revision whose predecessor is missing", `
		SELECT l.ks, l.rev FROM log l JOIN keyspace k ON k.id = l.ks
		WHERE l.rev > k.compacted AND l.prev_rev <> 0
			AND NOT EXISTS (SELECT 1 FROM log p WHERE p.id = l.prev_id AND p.key = l.key AND p.rev = l.prev_rev)`},
	{"revisions of the log that do not ascend with its ids", `
		SELECT ks, rev FROM (SELECT ks, rev, lag(rev) OVER (PARTITION BY ks ORDER BY id) AS before FROM log)
		WHERE rev < before`},
	{"gap in the revisions above the compaction revision", `
		SELECT ks, rev FROM (SELECT l.ks, l.rev, k.compacted,
				lag(l.rev) OVER (PARTITION BY l.ks ORDER BY l.id) AS before
			FROM log l JOIN keyspace k ON k.id = l.ks WHERE l.rev > k.compacted)
		WHERE rev > coalesce(before, max(compacted, 1)) + 1`},
	{"key with a lease that does not exist", `
		SELECT c.ks, hex(c.key) FROM current c
		WHERE c.lease <> 0 AND NOT EXISTS (SELECT 1 FROM lease l WHERE l.ks = c.ks AND l.id = c.lease)`},
	{"key of a keyspace that does not exist", `
		SELECT c.ks, hex(c.key) FROM current c
		WHERE NOT EXISTS (SELECT 1 FROM keyspace k WHERE k.id = c.ks)`},
	{"change that a completed sweep did not remove", `
		SELECT l.ks, l.rev FROM log l JOIN keyspace k ON k.id = l.ks
		WHERE k.swept = k.compacted AND l.version = 0 AND l.rev < k.compacted
		UNION ALL
		SELECT p.ks, p.rev FROM log n JOIN keyspace k ON k.id = n.ks JOIN log p ON p.id = n.prev_id
		WHERE k.swept = k.compacted AND n.rev <= k.compacted`},
}

// Check verifies the whole database: SQLite's own structure, and that the log, the current
// state and the leases of every keyspace agree. It reads all data in one snapshot, which
// takes time; writers continue meanwhile. It returns all findings.
func (db *DB) Check(ctx context.Context) error {
	var found []error
	err := db.read(ctx, "check", func(c *conn) error {
		found = nil
		// One read transaction, so that all queries see the same state.
		if err := c.c.Exec(`BEGIN`); err != nil {
			return err
		}
		defer c.c.Exec(`COMMIT`)
		rows, err := c.textRows(`PRAGMA integrity_check`)
		if err != nil {
			return err
		}
		if len(rows) != 1 || rows[0] != "ok" {
			for _, r := range rows {
				found = append(found, fmt.Errorf("database %s: %s", db.path, r))
			}
		}
		for _, q := range inconsistencies {
			rows, err := c.textRows(`SELECT 'keyspace ' || ks || ': ' || x FROM (SELECT * FROM (` +
				`SELECT NULL AS ks, NULL AS x WHERE 0 UNION ALL ` + q.sql + `) WHERE ks NOT IN (SELECT ks FROM dropped) LIMIT 10)`)
			if err != nil {
				return fmt.Errorf("%s: %w", q.what, err)
			}
			for _, r := range rows {
				found = append(found, fmt.Errorf("database %s: %s: %s", db.path, q.what, r))
			}
		}
		return nil
	})
	return errors.Join(append(found, err)...)
}

// textRows runs SQL that returns one text column. It is for rare statements.
func (c *conn) textRows(sql string) (rows []string, err error) {
	s, _, err := c.c.Prepare(sql)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	for s.Step() {
		rows = append(rows, s.ColumnText(0))
	}
	return rows, s.Err()
}
