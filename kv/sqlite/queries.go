package sqlite

// query identifies a prepared statement.
type query int

const (
	qBegin query = iota
	qCommit
	qRollback
	qSavepoint
	qRelease
	qRollbackTo
	qKeyspaces
	qKeyspace
	qNewKeyspace
	qHead
	qLoad
	qLoadValue
	qLogRow
	qLogRowMeta
	qAppend
	qSetCurrent
	qSegment
	qUsage
	qCountUsage
	qChanges
	qCompact
	qKept
	qKeptIDs
	qSweepState
	qSweepRows
	qSweepLog
	qSweepCurrent
	qSweepSegments
	qSweepProgress
	qLeases
	qLease
	qPutLease
	qDeleteLease
	qLeaseKeys
	qFence
	qAlarm
	qSetAlarm
	qPartitions
	qDropMark
	qDropRows
	qRename
	qPurgeNext
	qPurgeKey
	qPurgeLog
	qPurgeRest
	qPurgeCurrent
	qPurgeSegments
	qPurgeLeases
	qPurgeDone

	// Families of statements by kind of span: add a spanKind.
	qRange
	qRangeKeys = qRange + query(numSpanKinds)
	qAt        = qRangeKeys + query(numSpanKinds)
	qAtKeys    = qAt + query(numSpanKinds)
	qCount     = qAtKeys + query(numSpanKinds)
	qCountAt   = qCount + query(numSpanKinds)
	qNewerThan = qCountAt + query(numSpanKinds)
	numQueries = qNewerThan + query(numSpanKinds)
)

// spanKind selects the statement for a span: a missing bound cannot be a parameter, and
// with one statement for all kinds, the index could not read a range.
type spanKind int

const (
	spanOne     spanKind = iota // key = ?2
	spanBounded                 // ?2 <= key < ?3
	spanToEnd                   // ?2 <= key
	numSpanKinds
)

var spanWhere = [numSpanKinds]string{
	` WHERE c.ks = ?1 AND c.key = ?2`,
	` WHERE c.ks = ?1 AND c.key >= ?2 AND c.key < ?3`,
	` WHERE c.ks = ?1 AND c.key >= ?2`,
}

// queries contains the text of every statement. No plan may depend on statistics: CROSS
// JOIN fixes the join order, and every WHERE begins with a key. TestPlans verifies it.
var queries = buildQueries()

func buildQueries() (q [numQueries]string) {
	q[qBegin] = `BEGIN IMMEDIATE`
	q[qCommit] = `COMMIT`
	q[qRollback] = `ROLLBACK`
	q[qSavepoint] = `SAVEPOINT one`
	q[qRelease] = `RELEASE one`
	q[qRollbackTo] = `ROLLBACK TO one`

	q[qKeyspaces] = `SELECT name FROM keyspace ORDER BY name`
	q[qKeyspace] = `SELECT id FROM keyspace WHERE name = ?1`
	q[qNewKeyspace] = `INSERT INTO keyspace (name) VALUES (?1)`
	q[qHead] = `SELECT (SELECT rev FROM segment WHERE ks = ?1 ORDER BY rev DESC LIMIT 1), compacted
		FROM keyspace WHERE id = ?1`

	q[qLoad] = `SELECT version, mod, create_rev, lease FROM current WHERE ks = ?1 AND key = ?2`
	q[qLoadValue] = `SELECT c.version, c.mod, c.create_rev, c.lease, l.value
		FROM current c CROSS JOIN log l ON l.id = c.id WHERE c.ks = ?1 AND c.key = ?2`
	q[qLogRow] = `SELECT rev, version, create_rev, lease, prev_id, value FROM log WHERE id = ?1`
	q[qLogRowMeta] = `SELECT rev, version, create_rev, lease, prev_id FROM log WHERE id = ?1`

	q[qAppend] = `INSERT INTO log (id, ks, rev, create_rev, version, lease, prev_rev, prev_id, key, value)
		VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7,
			coalesce((SELECT id FROM current WHERE ks = ?2 AND key = ?8), 0), ?8, ?9)`
	q[qSetCurrent] = `REPLACE INTO current (ks, id, mod, create_rev, version, lease, key)
		VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)`
	q[qSegment] = `INSERT INTO segment (ks, rev, id, n, keys, bytes) VALUES (?1, ?2, ?3, ?4, ?5, ?6)`
	q[qUsage] = `SELECT keys, bytes FROM segment WHERE ks = ?1 AND rev = ?2 AND keys IS NOT NULL`
	// length reads no value: the header of a row has it.
	q[qCountUsage] = `SELECT count(*), coalesce(sum(length(c.key) + length(l.value)), 0)
		FROM current c CROSS JOIN log l ON l.id = c.id WHERE c.ks = ?1 AND c.version > 0`

	q[qChanges] = `SELECT l.rev, l.version, l.create_rev, l.lease, l.prev_id, l.prev_rev, l.key, l.value
		FROM segment s CROSS JOIN log l ON l.id >= s.id AND l.id < s.id + s.n
		WHERE s.ks = ?1 AND s.rev > ?2 AND l.rev > ?2 ORDER BY s.rev, l.id`

	q[qCompact] = `UPDATE keyspace SET compacted = ?2 WHERE id = ?1`
	q[qKept] = `SELECT rev, n FROM segment WHERE ks = ?1 AND rev > ?2 AND rev <= ?3 ORDER BY rev LIMIT ?4`
	q[qKeptIDs] = `SELECT (SELECT id FROM segment WHERE ks = ?1 AND rev > ?2 ORDER BY rev LIMIT 1),
		(SELECT id + n FROM segment WHERE ks = ?1 AND rev <= ?3 ORDER BY rev DESC LIMIT 1)`
	q[qSweepState] = `SELECT compacted, swept, sweep_rev, sweep_id FROM keyspace WHERE id = ?1`
	q[qSweepRows] = `SELECT l.id, l.rev, l.version, l.prev_id, l.key
		FROM segment s CROSS JOIN log l ON l.id >= max(s.id, ?3) AND l.id < s.id + s.n
		WHERE s.ks = ?1 AND s.rev >= ?2 AND l.rev >= ?2
		ORDER BY s.rev, l.id`
	q[qSweepLog] = `DELETE FROM log WHERE id = ?1`
	q[qSweepCurrent] = `DELETE FROM current WHERE ks = ?1 AND id = ?2 AND key = ?3`
	q[qSweepSegments] = `DELETE FROM segment WHERE ks = ?1 AND rev < ?2`
	q[qSweepProgress] = `UPDATE keyspace SET swept = ?2, sweep_rev = ?3, sweep_id = ?4 WHERE id = ?1`

	q[qLeases] = `SELECT id, ttl, beat FROM lease WHERE ks = ?1 ORDER BY id`
	q[qLease] = `SELECT ttl, beat FROM lease WHERE ks = ?1 AND id = ?2`
	q[qPutLease] = `REPLACE INTO lease (ks, id, ttl, beat) VALUES (?1, ?2, ?3, ?4)`
	q[qDeleteLease] = `DELETE FROM lease WHERE ks = ?1 AND id = ?2`
	q[qLeaseKeys] = `SELECT key FROM current INDEXED BY current_lease
		WHERE ks = ?1 AND lease = ?2 AND lease <> 0 ORDER BY key`

	// SQLite does not write a page without a change: the number must change so that a frame
	// is written to the log.
	q[qFence] = `UPDATE fence SET n = n + 1`
	q[qAlarm] = `SELECT nospace FROM keyspace WHERE id = ?1`
	q[qSetAlarm] = `UPDATE keyspace SET nospace = ?2 WHERE id = ?1`

	// ?1 and ?2 bound the names of partitions.
	const partitions = `name >= ?1 AND name < ?2`
	q[qPartitions] = `SELECT name FROM keyspace WHERE ` + partitions + ` ORDER BY name`
	q[qDropMark] = `INSERT INTO dropped (ks) SELECT id FROM keyspace WHERE ` + partitions + ` UNION ALL SELECT ?3`
	q[qDropRows] = `DELETE FROM keyspace WHERE ` + partitions + ` OR id = ?3`
	q[qRename] = `UPDATE keyspace SET name = ?2 WHERE name = ?1`
	q[qPurgeNext] = `SELECT ks FROM dropped WHERE ks > 0 ORDER BY ks LIMIT 1`
	q[qPurgeKey] = `SELECT key, id FROM current WHERE ks = ?1 ORDER BY key LIMIT 1`
	q[qPurgeLog] = `DELETE FROM log WHERE id = ?1 AND ks = ?2 RETURNING prev_id`
	q[qPurgeRest] = `UPDATE current SET id = ?3 WHERE ks = ?1 AND key = ?2`
	q[qPurgeCurrent] = `DELETE FROM current WHERE ks = ?1 AND key = ?2`
	q[qPurgeSegments] = `DELETE FROM segment WHERE ks = ?1 AND rev IN (SELECT rev FROM segment WHERE ks = ?1 ORDER BY rev LIMIT ?2)`
	q[qPurgeLeases] = `DELETE FROM lease WHERE ks = ?1 AND id IN (SELECT id FROM lease WHERE ks = ?1 ORDER BY id LIMIT ?2)`
	q[qPurgeDone] = `DELETE FROM dropped WHERE ks = ?1`

	for k := range numSpanKinds {
		const meta = `SELECT c.version, c.mod, c.create_rev, c.lease, c.key, c.id`
		const join = `, l.value FROM current c CROSS JOIN log l ON l.id = c.id`
		const alive, order = ` AND c.version > 0`, ` ORDER BY c.key`
		w := spanWhere[k]
		q[qRange+query(k)] = meta + join + w + alive + order
		q[qRangeKeys+query(k)] = meta + ` FROM current c` + w + alive + order
		q[qAt+query(k)] = meta + join + w + order
		q[qAtKeys+query(k)] = meta + ` FROM current c` + w + order
		q[qCount+query(k)] = `SELECT count(*) FROM current c` + w + alive
		q[qCountAt+query(k)] = `SELECT count(*) FROM current c` + w + alive + ` AND c.mod <= ?4`
		q[qNewerThan+query(k)] = `SELECT c.id FROM current c` + w + ` AND c.mod > ?4`
	}
	return q
}
