package postgres

import (
	"regexp"
	"strconv"
	"strings"
)

// query identifies a prepared statement.
type query int

const (
	qBegin query = iota
	qBeginRead
	qBeginUndisturbed
	qBeginSweep
	qLockWait
	qCommit
	qKeyspaces
	qPartitions
	qKeyspace
	qNewKeyspace
	qRenew
	qVerify
	qHeads
	qGets
	qLock
	qHead
	qLoad
	qAppend
	qNewCurrent
	qSetCurrent
	qCommitRow
	qCommitRowUsage
	qUsage
	qCountUsage
	qTrimCommits
	qCompact
	qFindCommit
	qFence
	qNotify
	qPeek
	qClaim
	qAppendOptimistic
	qNewCurrentOptimistic
	qSetCurrentOptimistic
	qNotifyHead
	qFindOptimistic
	qChanges
	qChangesPrev
	qCommitAfter
	qLeases
	qLeasesByID
	qPutLease
	qDeleteLease
	qLeaseKeys
	qAsync
	qSweepState
	qSweepRows
	qSweepLog
	qSweepCurrent
	qSweepSegments
	qSweepProgress
	qHistory
	qKept
	qAlarm
	qRaiseAlarm
	qDisarm

	// Families of statements by kind of span: add a spanKind.
	qRange
	qRangeKeys = qRange + query(numSpanKinds)
	qAt        = qRangeKeys + query(numSpanKinds)
	qAtKeys    = qAt + query(numSpanKinds)
	qCount     = qAtKeys + query(numSpanKinds)
	qCountAt   = qCount + query(numSpanKinds)
	qAtEnd     = qCountAt + query(numSpanKinds)
	numQueries = qAtEnd + query(numSpanKinds)
)

// spanKind selects the statement for a span: a missing bound cannot be a parameter, and
// with one statement for all kinds, the index could not read a range.
type spanKind int

const (
	spanOne     spanKind = iota // key = $2
	spanBounded                 // $2 <= key < $3
	spanToEnd                   // $2 <= key
	numSpanKinds
)

var spanWhere = [numSpanKinds]string{
	` WHERE c.ks = $1 AND c.key = $2`,
	` WHERE c.ks = $1 AND c.key >= $2 AND c.key < $3`,
	` WHERE c.ks = $1 AND c.key >= $2`,
}

// Parameter types, by their object IDs.
const (
	oidBool      = 16
	oidBytes     = 17
	oidInt8      = 20
	oidInt4      = 23
	oidText      = 25
	oidBoolArray = 1000
	oidByteArray = 1001
	oidInt4Array = 1007
	oidInt8Array = 1016
)

// statement is SQL text with the types of its parameters.
type statement struct {
	sql    string
	params []uint32
}

// keepCommits is the number of revisions for which the rows of commits are kept, regardless
// of sweeps. They record the outcome of a commit, and identify the history.
const keepCommits = 100_000

// onConflict makes an insert into current update an existing row.
const onConflict = ` ON CONFLICT (ks, key) DO UPDATE SET id = excluded.id, mod = excluded.mod,
			create_rev = excluded.create_rev, version = excluded.version, lease = excluded.lease`

var parameter = regexp.MustCompile(`\$(\d+)`)

// parameters returns the number of a statement's parameters. Not every database accepts
// types of missing parameters, so the optional parameters of a family are at the end.
func parameters(sql string) (n int) {
	for _, m := range parameter.FindAllStringSubmatch(sql, -1) {
		i, _ := strconv.Atoi(m[1])
		n = max(n, i)
	}
	return n
}

// buildQueries returns the text of every statement. No plan may depend on statistics. Joins
// are LATERAL subqueries with OFFSET 0, which the planner can neither flatten nor reorder,
// so the left side is read first. Every WHERE begins with a key. Sessions disable the other
// ways of joining and scanning. TestPlans verifies it.
func buildQueries(d *dialect) (q [numQueries]statement) {
	set := func(name query, sql string, params ...uint32) {
		q[name] = statement{strings.ReplaceAll(sql, "{table}", d.table), params[:parameters(sql)]}
	}

	set(qBegin, d.begin)
	set(qBeginRead, d.beginRead)
	set(qBeginUndisturbed, d.beginUndisturbed)
	set(qBeginSweep, d.beginSweep)
	set(qLockWait, d.lockWait)
	set(qCommit, `COMMIT`)

	set(qKeyspaces, `SELECT name FROM keyspace ORDER BY name`)
	set(qPartitions, `SELECT k.name FROM keyspace k WHERE k.name >= $1 AND k.name < $2 ORDER BY k.name`, oidText, oidText)
	set(qKeyspace, `SELECT k.id, k.origin FROM keyspace k WHERE k.name = $1`, oidText)
	set(qNewKeyspace, `WITH k AS (
			INSERT INTO keyspace (name, origin) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING RETURNING id
		), s AS (
			INSERT INTO sweep (ks, swept, id) SELECT id, 0, 1 FROM k RETURNING ks
		)
		INSERT INTO head (ks, rev, sub, compacted, next_id, fence, token) SELECT id, 1, 0, 0, 1, 0, $2 FROM k`,
		oidText, oidBytes)

	set(qRenew, `WITH f AS (
			INSERT INTO former (ks, origin) SELECT k.id, k.origin FROM keyspace k WHERE k.id = $1
			ON CONFLICT (ks, origin) DO NOTHING RETURNING ks
		), h AS (
			UPDATE head SET lost = 0 WHERE ks = $1 RETURNING ks
		)
		UPDATE keyspace SET origin = $2 WHERE id = $1`, oidInt4, oidBytes)

	// Compares a server's knowledge of a keyspace (origin, and a commit) with the database.
	set(qVerify, `SELECT u.i, k.origin, h.rev, h.sub, s.token,
			(SELECT f.rev FROM segment f WHERE f.ks = u.ks ORDER BY f.rev LIMIT 1), h.lost, h.layout
		FROM unnest($1::int4[], $2::int8[], $3::int4[]) WITH ORDINALITY u(ks, rev, sub, i)
		LEFT JOIN LATERAL (SELECT k.origin FROM keyspace k WHERE k.id = u.ks OFFSET 0) k ON true
		LEFT JOIN LATERAL (SELECT h.rev, h.sub, h.lost, h.layout FROM head h WHERE h.ks = u.ks OFFSET 0) h ON true
		LEFT JOIN LATERAL (SELECT s.token FROM segment s WHERE s.ks = u.ks AND s.rev = u.rev AND s.sub = u.sub OFFSET 0) s ON true`,
		oidInt4Array, oidInt8Array, oidInt4Array)

	set(qHeads, `SELECT `+headColumns+`, u.i, k.origin
		FROM unnest($1::int4[]) WITH ORDINALITY u(ks, i)
		CROSS JOIN LATERAL (SELECT `+headColumns+` FROM head h WHERE h.ks = u.ks OFFSET 0) h
		LEFT JOIN LATERAL (SELECT k.origin FROM keyspace k WHERE k.id = u.ks OFFSET 0) k ON true`, oidInt4Array)
	set(qGets, `SELECT `+headColumns+`, u.i, c.version, c.mod, c.create_rev, c.lease, l.value
		FROM head h
		LEFT JOIN LATERAL (SELECT * FROM unnest($2::bytea[], $3::bool[]) WITH ORDINALITY u(key, want, i) OFFSET 0) u ON true
		LEFT JOIN LATERAL (SELECT c.id, c.version, c.mod, c.create_rev, c.lease FROM current c
			WHERE c.ks = $1 AND c.key = u.key AND c.version > 0 OFFSET 0) c ON true
		LEFT JOIN LATERAL (SELECT l.value FROM log l WHERE l.ks = $1 AND l.id = c.id AND u.want OFFSET 0) l ON true
		WHERE h.ks = $1`, oidInt4, oidByteArray, oidBoolArray)
	set(qLock, `SELECT `+headColumns+`, `+usageColumns+`, `+d.noTimeout+` FROM head h WHERE h.ks = $1 `+d.lock, oidInt4)
	set(qHead, `SELECT `+headColumns+` FROM head h WHERE h.ks = $1`, oidInt4)
	set(qLoad, `SELECT u.i, c.id, c.version, c.mod, c.create_rev, c.lease, l.value
		FROM unnest($2::bytea[], $3::bool[]) WITH ORDINALITY u(key, want, i)
		CROSS JOIN LATERAL (SELECT c.id, c.version, c.mod, c.create_rev, c.lease FROM current c
			WHERE c.ks = $1 AND c.key = u.key OFFSET 0) c
		LEFT JOIN LATERAL (SELECT l.value FROM log l WHERE l.ks = $1 AND l.id = c.id AND u.want OFFSET 0) l ON true`,
		oidInt4, oidByteArray, oidBoolArray)

	set(qAppend, `INSERT INTO log (ks, id, rev, create_rev, version, lease, prev_id, prev_rev, key, value)
		SELECT $1, u.* FROM unnest($2::int8[], $3::int8[], $4::int8[], $5::int8[], $6::int8[], $7::int8[], $8::int8[],
			$9::bytea[], $10::bytea[]) u`,
		oidInt4, oidInt8Array, oidInt8Array, oidInt8Array, oidInt8Array, oidInt8Array, oidInt8Array, oidInt8Array,
		oidByteArray, oidByteArray)
	const newCurrent = `INSERT INTO current (ks, id, mod, create_rev, version, lease, key)
		SELECT $1, u.* FROM unnest($2::int8[], $3::int8[], $4::int8[], $5::int8[], $6::int8[], $7::bytea[]) u`
	setCurrent := []uint32{oidInt4, oidInt8Array, oidInt8Array, oidInt8Array, oidInt8Array, oidInt8Array, oidByteArray}
	// For keys without a row, which no other transaction can create meanwhile, and for keys
	// with one, unless it is being swept. Without the check for conflicts a row costs half.
	set(qNewCurrent, newCurrent, setCurrent...)
	set(qSetCurrent, newCurrent+onConflict, setCurrent...)
	setCommitRow(set, ``)
	set(qUsage, `SELECT `+usageColumns+` FROM head h WHERE h.ks = $1`, oidInt4)
	set(qCountUsage, countUsage+` FROM current c
		CROSS JOIN LATERAL (SELECT l.value FROM log l WHERE l.ks = $1 AND l.id = c.id OFFSET 0) l WHERE c.ks = $1 AND c.key >= '' AND c.version > 0`, oidInt4)
	set(qTrimCommits, `DELETE FROM segment WHERE ks = $1 AND rev = $2 AND sub < $3 AND n = 0`, oidInt4, oidInt8, oidInt4)
	set(qCompact, `UPDATE head SET compacted = $2 WHERE ks = $1`, oidInt4, oidInt8)
	set(qAlarm, `SELECT a.ks FROM alarm a WHERE a.ks = $1`, oidInt4)
	set(qRaiseAlarm, `INSERT INTO alarm (ks) VALUES ($1) ON CONFLICT (ks) DO NOTHING`, oidInt4)
	set(qDisarm, `DELETE FROM alarm WHERE ks = $1`, oidInt4)
	set(qFindCommit, `SELECT s.token, (SELECT f.rev FROM segment f WHERE f.ks = $1 ORDER BY f.rev LIMIT 1)
		FROM head h LEFT JOIN LATERAL (SELECT s.token FROM segment s WHERE s.ks = $1 AND s.rev = $2 AND s.sub = $3 OFFSET 0) s ON true
		WHERE h.ks = $1`, oidInt4, oidInt8, oidInt4)
	set(qFence, `UPDATE head SET fence = (fence + 1) % 1000000 WHERE ks = $1`, oidInt4)
	if d.notify {
		// A separate transaction that need not be durable: PostgreSQL lets only one commit
		// at a time notify, and a flush would delay it. It is sent before the commit's
		// answer, so it checks itself that the commit has happened. A server notified of a
		// revision that does not exist yet would treat it as read, and miss it when it is
		// committed.
		set(qNotify, `SELECT pg_notify($1, $2) FROM head h, set_config('synchronous_commit', 'off', true)
			WHERE h.ks = $3 AND h.rev >= $4`, oidText, oidText, oidInt4, oidInt8)
	}

	// IDs ascend with revisions, so the log is read from the first commit above $2 up to
	// the end of the revision of the row that reaches the limit.
	const changes = ` FROM log l WHERE l.ks = $1
		AND l.id >= (SELECT s.id FROM segment s WHERE s.ks = $1 AND s.rev > $2 ORDER BY s.rev, s.sub LIMIT 1)`
	const changesWhere = changes + ` AND l.rev > $2 AND l.rev <= least($3, (
			SELECT n.rev FROM (SELECT l.rev` + changes + ` AND l.rev > $2 ORDER BY l.id OFFSET $4 LIMIT 1) n))
		ORDER BY l.id`
	const changed = `SELECT l.rev, l.version, l.create_rev, l.lease, l.prev_rev, l.key, l.value`
	set(qChanges, changed+changesWhere, oidInt4, oidInt8, oidInt8, oidInt8)
	set(qChangesPrev, `SELECT l.*, p.rev, p.version, p.create_rev, p.lease, p.value
		FROM (`+changed+`, l.id, l.prev_id`+changesWhere+` OFFSET 0) l
		LEFT JOIN LATERAL (SELECT p.rev, p.version, p.create_rev, p.lease, p.value FROM log p
			WHERE p.ks = $1 AND p.id = l.prev_id AND l.prev_rev <> 0 OFFSET 0) p ON true
		ORDER BY l.id`, oidInt4, oidInt8, oidInt8, oidInt8)

	set(qLeases, `SELECT `+headColumns+`, u.i, l.id, l.ttl, l.beat
		FROM unnest($1::int4[]) WITH ORDINALITY u(ks, i)
		CROSS JOIN LATERAL (SELECT `+headColumns+` FROM head h WHERE h.ks = u.ks OFFSET 0) h
		LEFT JOIN LATERAL (SELECT l.id, l.ttl, l.beat FROM lease l WHERE l.ks = u.ks OFFSET 0) l ON true`, oidInt4Array)
	set(qLeasesByID, `SELECT l.id, l.ttl, l.beat FROM unnest($2::int8[]) u(id)
		CROSS JOIN LATERAL (SELECT l.id, l.ttl, l.beat FROM lease l WHERE l.ks = $1 AND l.id = u.id OFFSET 0) l`, oidInt4, oidInt8Array)
	set(qPutLease, `INSERT INTO lease (ks, id, ttl, beat) VALUES ($1, $2, $3, $4)
		ON CONFLICT (ks, id) DO UPDATE SET ttl = excluded.ttl, beat = excluded.beat`, oidInt4, oidInt8, oidInt8, oidInt8)
	set(qDeleteLease, `DELETE FROM lease WHERE ks = $1 AND id = $2`, oidInt4, oidInt8)
	set(qLeaseKeys, `SELECT key FROM current WHERE ks = $1 AND lease = $2 AND lease <> 0 ORDER BY key`, oidInt4, oidInt8)

	set(qAsync, d.async)
	set(qSweepState, `SELECT w.swept, h.rev, h.compacted FROM sweep w
		CROSS JOIN LATERAL (SELECT h.rev, h.compacted FROM head h WHERE h.ks = $1 OFFSET 0) h
		WHERE w.ks = $1 `+d.lock+` OF w`, oidInt4)
	set(qSweepRows, `SELECT l.id, l.rev, l.version, l.prev_id, l.key FROM log l
		WHERE l.ks = $1 AND l.id >= (SELECT w.id FROM sweep w WHERE w.ks = $1) ORDER BY l.id LIMIT $2`, oidInt4, oidInt8)
	// By row addresses: with ks = … AND id = ANY(…) the planner uses the index by ks alone
	// if it believes the table to be small. Rows of the log never move; those of current
	// are locked first, and a row that was changed meanwhile does not match.
	set(qSweepLog, `DELETE FROM log WHERE ctid = ANY(ARRAY(SELECT l.ctid FROM unnest($2::int8[]) u(id)
		CROSS JOIN LATERAL (SELECT l.ctid FROM log l WHERE l.ks = $1 AND l.id = u.id OFFSET 0) l))`, oidInt4, oidInt8Array)
	set(qSweepCurrent, `DELETE FROM current WHERE ctid = ANY(ARRAY(SELECT c.ctid FROM unnest($2::bytea[], $3::int8[]) u(key, id)
		CROSS JOIN LATERAL (SELECT c.ctid FROM current c WHERE c.ks = $1 AND c.key = u.key AND c.id = u.id OFFSET 0 FOR UPDATE) c))`,
		oidInt4, oidByteArray, oidInt8Array)
	set(qSweepSegments, `DELETE FROM segment WHERE ks = $1 AND rev < least($2, (
		SELECT coalesce((SELECT s.rev FROM segment s WHERE s.ks = $1 ORDER BY s.rev OFFSET $3 LIMIT 1), $2)))`,
		oidInt4, oidInt8, oidInt8)
	// The next sweep starts at the commit that made $2, for the deletions that were kept at
	// it.
	set(qSweepProgress, `UPDATE sweep SET swept = $2, id = coalesce($3, (
		SELECT s.id FROM segment s WHERE s.ks = $1 AND s.rev >= $2 ORDER BY s.rev, s.sub LIMIT 1), id) WHERE ks = $1`,
		oidInt4, oidInt8, oidInt8)

	set(qHistory, `SELECT count(*) FROM log WHERE ks = $1 AND id > 0`, oidInt4)

	// By IDs, which have no gaps: the begin of the first commit above the compaction
	// revision, and the position of the sweep.
	set(qKept, `SELECT h.rev, h.compacted, h.next_id, w.swept, w.id, (
			SELECT s.id FROM segment s WHERE s.ks = $1 AND s.rev > h.compacted ORDER BY s.rev, s.sub LIMIT 1)
		FROM head h CROSS JOIN LATERAL (SELECT w.swept, w.id FROM sweep w WHERE w.ks = $1 OFFSET 0) w
		WHERE h.ks = $1`, oidInt4)

	// The change of a key that was valid at revision $4: the recursion ends at it, or at a
	// swept change, which means that the key did not exist.
	const walk = `(WITH RECURSIVE w (id, rev, prev_id) AS (
			SELECT l.id, l.rev, l.prev_id FROM log l WHERE l.ks = $1 AND l.id = c.id
			UNION ALL
			SELECT p.id, p.rev, p.prev_id FROM w
			CROSS JOIN LATERAL (SELECT p.id, p.rev, p.prev_id FROM log p WHERE p.ks = $1 AND p.id = w.prev_id OFFSET 0) p
			WHERE w.rev > $4)
		SELECT w.id FROM w WHERE w.rev <= $4 LIMIT 1)`
	for k := range numSpanKinds {
		const meta, alive = `SELECT c.version, c.mod, c.create_rev, c.lease, c.key`, ` AND c.version > 0`
		w, by := spanWhere[k], ` ORDER BY c.key`
		if k == spanOne {
			by = `` // one row needs no order, and might get a sort
		}
		order := by + ` LIMIT $5`
		add := func(family query, sql string) {
			set(family+query(k), sql, oidInt4, oidBytes, oidBytes, oidInt8, oidInt8)
		}
		add(qRange, meta+`, l.value FROM current c
			CROSS JOIN LATERAL (SELECT l.value FROM log l WHERE l.ks = $1 AND l.id = c.id OFFSET 0) l`+w+alive+order)
		add(qRangeKeys, meta+` FROM current c`+w+alive+order)
		at := func(columns string) string {
			return `SELECT l.version, l.rev, l.create_rev, l.lease, c.key` + columns + `
				FROM (SELECT c.key, CASE WHEN c.mod <= $4 THEN c.id ELSE ` + walk + ` END AS id
					FROM current c` + w + by + ` OFFSET 0) c
				CROSS JOIN LATERAL (SELECT * FROM log l WHERE l.ks = $1 AND l.id = c.id AND l.version > 0 OFFSET 0) l` + order
		}
		add(qAt, at(`, l.value`))
		add(qAtKeys, at(``))
		add(qCount, `SELECT count(*) FROM current c`+w+alive)
		add(qCountAt, `SELECT count(*) FROM current c`+w+` AND CASE WHEN c.mod <= $4 THEN c.version > 0
			ELSE coalesce((SELECT l.version > 0 FROM log l WHERE l.ks = $1 AND l.id = `+walk+`), false) END`)
	}
	if d.joins != nil {
		d.joins.override(set)
	}
	if d.optimistic {
		buildOptimistic(set, d)
	}
	return q
}
