package postgres

import "fmt"

// joins determines how statements look up rows by their keys in a database that stores them
// on other nodes: many in one request, regardless of statistics. No statement may use a
// subquery to find the begin of a range of rows; the caller must specify it.
type joins struct {
	inner, left string
	// hint specifies the join order of tables, by their aliases: each chain is one level of
	// the statement.
	hint func(chains ...[]string) string
	// among compares with the rows that a query selects.
	among func(query string) string
	// setCurrent, if not empty, updates existing rows of current.
	setCurrent string
}

// override replaces the statements whose plans are specific to PostgreSQL. Their parameters
// and results are the same unless noted.
func (j *joins) override(set func(name query, sql string, params ...uint32)) {
	// The oldest commit that certainly exists is known without a read: see keepCommits.
	set(qVerify, j.hint([]string{"u", "k", "h", "s"})+fmt.Sprintf(`SELECT u.i, k.origin, h.rev, h.sub, s.token, greatest(h.rev - %d, 1), h.lost, h.layout
		FROM unnest($1::int4[], $2::int8[], $3::int4[]) WITH ORDINALITY u(ks, rev, sub, i)
		%[2]s keyspace k ON k.id = u.ks
		%[2]s head h ON h.ks = u.ks
		%[2]s segment s ON s.ks = u.ks AND s.rev = u.rev AND s.sub = u.sub`, keepCommits, j.left),
		oidInt4Array, oidInt8Array, oidInt4Array)

	set(qHeads, j.hint([]string{"u", "h", "k"})+`SELECT `+headColumns+`, u.i, k.origin
		FROM unnest($1::int4[]) WITH ORDINALITY u(ks, i) `+j.inner+` head h ON h.ks = u.ks
		`+j.left+` keyspace k ON k.id = u.ks`, oidInt4Array)
	set(qGets, j.hint([]string{"h", "u", "c", "l"})+`SELECT `+headColumns+`, u.i, c.version, c.mod, c.create_rev, c.lease, l.value
		FROM head h
		LEFT JOIN unnest($2::bytea[], $3::bool[]) WITH ORDINALITY u(key, want, i) ON true
		`+j.left+` current c ON c.ks = $1 AND c.key = u.key AND c.version > 0
		`+j.left+` log l ON l.ks = $1 AND l.id = c.id AND u.want
		WHERE h.ks = $1`, oidInt4, oidByteArray, oidBoolArray)
	set(qLoad, j.hint([]string{"u", "c", "l"})+`SELECT u.i, c.id, c.version, c.mod, c.create_rev, c.lease, l.value
		FROM unnest($2::bytea[], $3::bool[]) WITH ORDINALITY u(key, want, i)
		`+j.inner+` current c ON c.ks = $1 AND c.key = u.key
		`+j.left+` log l ON l.ks = $1 AND l.id = c.id AND u.want`, oidInt4, oidByteArray, oidBoolArray)
	set(qLeases, j.hint([]string{"u", "h", "l"})+`SELECT `+headColumns+`, u.i, l.id, l.ttl, l.beat
		FROM unnest($1::int4[]) WITH ORDINALITY u(ks, i) `+j.inner+` head h ON h.ks = u.ks
		`+j.left+` lease l ON l.ks = u.ks`, oidInt4Array)
	set(qLeasesByID, `SELECT l.id, l.ttl, l.beat FROM lease l WHERE l.ks = $1 AND l.id = ANY($2::int8[])`, oidInt4, oidInt8Array)

	if j.setCurrent != "" {
		set(qSetCurrent, j.setCurrent, oidInt4, oidInt8Array, oidInt8Array, oidInt8Array, oidInt8Array, oidInt8Array, oidByteArray)
	}
	setCommitRow(set, ` RETURNING ks`)
	set(qCountUsage, j.hint([]string{"c", "l"})+countUsage+` FROM current c `+j.inner+` log l ON l.ks = $1 AND l.id = c.id
		WHERE c.ks = $1 AND c.key >= '' AND c.version > 0`, oidInt4)
	set(qFindCommit, `SELECT (SELECT s.token FROM segment s WHERE s.ks = $1 AND s.rev = $2 AND s.sub = $3),
			(SELECT f.rev FROM segment f WHERE f.ks = $1 ORDER BY f.rev LIMIT 1)`, oidInt4, oidInt8, oidInt4)

	j.overrideLog(set)
	j.overrideRanges(set)
}

// overrideLog replaces the statements that read and sweep the log.
func (j *joins) overrideLog(set func(name query, sql string, params ...uint32)) {
	// $3 rows from log ID $2 on; the caller checks their revisions.
	const change = `l.id, l.rev, l.version, l.create_rev, l.lease, l.prev_rev, l.key, l.value`
	const rows = ` FROM log l WHERE l.ks = $1 AND l.id >= $2 ORDER BY l.id LIMIT $3`
	set(qChanges, `SELECT `+change+rows, oidInt4, oidInt8, oidInt8)
	set(qChangesPrev, j.hint([]string{"c", "p"})+`SELECT c.*, p.rev, p.version, p.create_rev, p.lease, p.value
		FROM (SELECT `+change+`, l.id AS same, l.prev_id`+rows+`) c
		`+j.left+` log p ON p.ks = $1 AND p.id = c.prev_id AND c.prev_rev <> 0
		ORDER BY c.id`, oidInt4, oidInt8, oidInt8)
	set(qCommitAfter, `SELECT s.id FROM segment s WHERE s.ks = $1 AND s.rev > $2 ORDER BY s.rev, s.sub LIMIT 1`, oidInt4, oidInt8)

	// It also returns the log ID to continue at, which is $2 of the next statement.
	set(qSweepState, `SELECT w.swept, (SELECT h.rev FROM head h WHERE h.ks = $1), (SELECT h.compacted FROM head h WHERE h.ks = $1), w.id
		FROM sweep w WHERE w.ks = $1 FOR UPDATE`, oidInt4)
	set(qSweepRows, `SELECT l.id, l.rev, l.version, l.prev_id, l.key FROM log l
		WHERE l.ks = $1 AND l.id >= $2 ORDER BY l.id LIMIT $3`, oidInt4, oidInt8, oidInt8)
	set(qSweepLog, `DELETE FROM log WHERE ks = $1 AND id = ANY($2::int8[])`, oidInt4, oidInt8Array)
	// A log ID belongs to only one key, so each key is compared with its own.
	set(qSweepCurrent, `DELETE FROM current WHERE ks = $1 AND key = ANY($2::bytea[]) AND id = ANY($3::int8[])`,
		oidInt4, oidByteArray, oidInt8Array)
	set(qSweepSegments, `DELETE FROM segment WHERE ks = $1 AND rev < $2 AND rev`+
		j.among(`SELECT s.rev FROM segment s WHERE s.ks = $1 AND s.rev < $2 ORDER BY s.rev LIMIT $3`), oidInt4, oidInt8, oidInt8)
}

// overrideRanges replaces reads of spans. At an old revision $5 is the number of rows of
// current to process, not the number of results: see chunks.go.
func (j *joins) overrideRanges(set func(name query, sql string, params ...uint32)) {
	for k := range numSpanKinds {
		add := func(family query, sql string) {
			set(family+query(k), sql, oidInt4, oidBytes, oidBytes, oidInt8, oidInt8)
		}
		where := ` FROM current c` + spanWhere[k]
		add(qRange, j.hint([]string{"k", "l"})+`SELECT k.version, k.mod, k.create_rev, k.lease, k.key, l.value
			FROM (SELECT c.key, c.id, c.version, c.mod, c.create_rev, c.lease`+where+` AND c.version > 0 ORDER BY c.key LIMIT $5) k
			`+j.inner+` log l ON l.ks = $1 AND l.id = k.id
			ORDER BY k.key`)
		// The history of all keys is followed at once, each through its changes down to the
		// one that was valid at revision $4. A key without such a change did not exist.
		walk := func(of string) string {
			return `WITH RECURSIVE w (key, id, rev, version, prev_id) AS (
					SELECT k.key, k.id, k.mod, k.version, coalesce(l.prev_id, 0) FROM (SELECT c.key, c.id, c.mod, c.version` + of + `) k
					` + j.left + ` log l ON l.ks = $1 AND l.id = k.id AND k.mod > $4
					UNION ALL
					SELECT w.key, p.id, p.rev, p.version, p.prev_id FROM w ` + j.inner + ` log p ON p.ks = $1 AND p.id = w.prev_id
					WHERE w.rev > $4
				) `
		}
		hint := j.hint([]string{"k", "l"}, []string{"w", "p"}, []string{"f", "v"})
		chunk := where + ` ORDER BY c.key LIMIT $5`
		at := func(columns string) string {
			return hint + walk(chunk) + `SELECT v.version, v.rev, v.create_rev, v.lease, f.key` + columns + ` FROM w f
				` + j.inner + ` log v ON v.ks = $1 AND v.id = f.id
				WHERE f.rev <= $4 AND f.version > 0 ORDER BY f.key`
		}
		add(qAt, at(`, v.value`))
		add(qAtKeys, at(``))
		add(qCountAt, hint+walk(where+` AND c.mod > $4`)+`SELECT (SELECT count(*) FROM w f WHERE f.rev <= $4 AND f.version > 0)
			+ (SELECT count(*)`+where+` AND c.mod <= $4 AND c.version > 0)`)
		// The last key of a chunk, if it is full; $4 is one less than its size.
		add(qAtEnd, `SELECT c.key`+where+` ORDER BY c.key OFFSET $4 LIMIT 1`)
	}
}
