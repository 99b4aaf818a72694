package sqlite

import (
	"fmt"

	"github.com/atoll-dev/atoll/kv"
)

// applicationID marks the file as ours ("Atol"), in SQLite's own header field.
const applicationID = 0x41746f6c

// migrations[i] upgrades the schema from version i to i+1, in one transaction with the new
// version number. Released steps never change; add new ones.
var migrations = []string{
	`
-- One row per keyspace. Its head is the last row of segment, not a column
-- here: that saves a page of the write-ahead log in every commit.
CREATE TABLE keyspace (
	id        INTEGER PRIMARY KEY,
	name      TEXT    NOT NULL UNIQUE,
	compacted INTEGER NOT NULL DEFAULT 0, -- compaction revision
	swept     INTEGER NOT NULL DEFAULT 0, -- compaction revision that Sweep has finished
	sweep_rev INTEGER NOT NULL DEFAULT 0, -- where Sweep goes on
	sweep_id  INTEGER NOT NULL DEFAULT 0
) STRICT;

-- Every change, appended in order; ids rise with revisions within a keyspace
-- and are never used again. version 0 is a deletion. prev_id is the change of
-- the same key before this one (which may have been swept), 0 if there was none;
-- prev_rev its revision, 0 if the key did not exist.
CREATE TABLE log (
	id         INTEGER PRIMARY KEY,
	ks         INTEGER NOT NULL,
	rev        INTEGER NOT NULL,
	create_rev INTEGER NOT NULL,
	version    INTEGER NOT NULL,
	lease      INTEGER NOT NULL,
	prev_id    INTEGER NOT NULL,
	prev_rev   INTEGER NOT NULL,
	key        BLOB    NOT NULL,
	value      BLOB    NOT NULL
) STRICT;

-- One row per commit: the log's ids [id, id+n) are its changes, rev is the last
-- revision among them. So the log needs no index on revisions.
CREATE TABLE segment (
	ks  INTEGER NOT NULL,
	rev INTEGER NOT NULL,
	id  INTEGER NOT NULL,
	n   INTEGER NOT NULL,
	PRIMARY KEY (ks, rev)
) STRICT, WITHOUT ROWID;

-- The newest change of each key, deletions included until they are swept.
CREATE TABLE current (
	ks         INTEGER NOT NULL,
	key        BLOB    NOT NULL,
	id         INTEGER NOT NULL,
	mod        INTEGER NOT NULL,
	create_rev INTEGER NOT NULL,
	version    INTEGER NOT NULL,
	lease      INTEGER NOT NULL,
	PRIMARY KEY (ks, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX current_lease ON current (ks, lease) WHERE lease <> 0;

CREATE TABLE lease (
	ks  INTEGER NOT NULL,
	id  INTEGER NOT NULL,
	ttl INTEGER NOT NULL, -- seconds
	PRIMARY KEY (ks, id)
) STRICT, WITHOUT ROWID;

-- A number to change when a commit is needed that changes nothing else.
CREATE TABLE fence (n INTEGER NOT NULL) STRICT;
INSERT INTO fence (n) VALUES (0);
`,
	`
-- kv.LeaseRecord.Beat, by which engines that share a table see renewals.
ALTER TABLE lease ADD COLUMN beat INTEGER NOT NULL DEFAULT 0;
`,
	`
-- 1 while the keyspace has etcd's NOSPACE alarm (kv.Alarms).
ALTER TABLE keyspace ADD COLUMN nospace INTEGER NOT NULL DEFAULT 0;
`,
	`
-- AUTOINCREMENT: the id of a dropped keyspace is never used again, so an engine that still
-- has it open cannot read a new keyspace.
CREATE TABLE keyspace_new (
	id        INTEGER PRIMARY KEY AUTOINCREMENT,
	name      TEXT    NOT NULL UNIQUE,
	compacted INTEGER NOT NULL DEFAULT 0, -- compaction revision
	swept     INTEGER NOT NULL DEFAULT 0, -- compaction revision that Sweep has finished
	sweep_rev INTEGER NOT NULL DEFAULT 0, -- where Sweep goes on
	sweep_id  INTEGER NOT NULL DEFAULT 0,
	nospace   INTEGER NOT NULL DEFAULT 0  -- 1 while it has etcd's NOSPACE alarm (kv.Alarms)
) STRICT;
INSERT INTO keyspace_new (id, name, compacted, swept, sweep_rev, sweep_id, nospace)
	SELECT id, name, compacted, swept, sweep_rev, sweep_id, nospace FROM keyspace;
DROP TABLE keyspace;
ALTER TABLE keyspace_new RENAME TO keyspace;

-- The dropped keyspaces that Purge has not removed completely. They have no row in keyspace,
-- so nothing else finds them.
CREATE TABLE dropped (ks INTEGER PRIMARY KEY) STRICT;
`,
	`
-- The usage of the keyspace after the commit (kv.Usage): here because a row of its own would be
-- one more page in each commit. NULL if the commit did not count.
ALTER TABLE segment ADD COLUMN keys INTEGER;
ALTER TABLE segment ADD COLUMN bytes INTEGER;
`,
}

// migrate upgrades the schema, or refuses a file of another application.
func migrate(c *conn, path string) error {
	version, err := c.queryInt(`PRAGMA user_version`)
	if err != nil {
		return c.db.fail("open", err)
	}
	app, err := c.queryInt(`PRAGMA application_id`)
	if err != nil {
		return c.db.fail("open", err)
	}
	tables, err := c.queryInt(`SELECT count(*) FROM sqlite_schema`)
	if err != nil {
		return c.db.fail("open", err)
	}
	ours := int64(len(migrations))
	switch {
	case app != applicationID && (app != 0 || version != 0 || tables != 0):
		return fmt.Errorf("open database %s: %w: the file belongs to another application; use another file", path, kv.ErrInvalidRequest)
	case version > ours:
		return fmt.Errorf("open database %s: %w: its schema has version %d, but this program supports only up to %d; upgrade Atoll", path, kv.ErrNewerSchema, version, ours)
	}
	for v := version; v < ours; v++ {
		step := fmt.Sprintf("BEGIN IMMEDIATE;\n%s\nPRAGMA application_id = %d;\nPRAGMA user_version = %d;\nCOMMIT;",
			migrations[v], applicationID, v+1)
		if err := c.c.Exec(step); err != nil {
			return fmt.Errorf("open database %s: migrate its schema from version %d to %d: %w (nothing was changed)", path, v, v+1, err)
		}
	}
	return nil
}
