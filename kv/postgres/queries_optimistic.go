package postgres

// buildOptimistic adds the statements of an optimistic commit: see optimistic.go. All but
// the first find the head as written by the first, by the commit's token. If the first has
// refused, they find none, and write nothing. Revisions and log IDs of the commit itself
// are negative numbers, counted from the actual head.
func buildOptimistic(set func(name query, sql string, params ...uint32), d *dialect) {
	set(qPeek, `SELECT `+headColumns+`, h.fence FROM head h WHERE h.ks = $1`, oidInt4)

	// All inputs must be unchanged: each key by the ID of its newest change, which is never
	// reused; each lease must exist. fence shows whether a look-up of this commit has
	// failed meanwhile. layout and origin show whether the keyspace itself is still the
	// same.
	set(qClaim, `WITH s AS (
			INSERT INTO segment (ks, rev, sub, n, id, token)
			SELECT $1, h.rev + $4, 0, $3, h.next_id, $2 FROM head h
			WHERE h.ks = $1 AND h.rev >= $5 AND h.layout = $6 AND h.fence = $7
				AND (SELECT k.origin FROM keyspace k WHERE k.id = $1) = $8
				AND NOT EXISTS (SELECT FROM unnest($9::bytea[], $10::int8[]) u(key, id)
					LEFT JOIN LATERAL (SELECT c.id FROM current c WHERE c.ks = $1 AND c.key = u.key OFFSET 0) c ON true
					WHERE coalesce(c.id, 0) <> u.id)
				AND NOT EXISTS (SELECT FROM unnest($11::int8[]) u(id)
					LEFT JOIN LATERAL (SELECT l.id FROM lease l WHERE l.ks = $1 AND l.id = u.id OFFSET 0) l ON true
					WHERE l.id IS NULL)
			RETURNING ks
		)
		UPDATE head SET rev = rev + $4, sub = 0, next_id = next_id + $3, token = $2 WHERE ks = $1 AND EXISTS (SELECT FROM s)`,
		oidInt4, oidBytes, oidInt4, oidInt8, oidInt8, oidInt4, oidInt4, oidBytes, oidByteArray, oidInt8Array, oidInt8Array)

	const (
		// Offsets from the new head: $3 changes and $4 revisions ago; for IDs, the one
		// before the next.
		rev    = `h.rev - $4`
		id     = `h.next_id - $3 - 1`
		commit = ` FROM head h CROSS JOIN LATERAL unnest(`
		ours   = ` WHERE h.ks = $1 AND h.token = $2`
	)
	either := func(base, column string) string {
		return `CASE WHEN u.` + column + ` < 0 THEN ` + base + ` - u.` + column + ` ELSE u.` + column + ` END`
	}
	set(qAppendOptimistic, `INSERT INTO log (ks, id, rev, create_rev, version, lease, prev_id, prev_rev, key, value)
		SELECT $1, `+id+` - u.id, `+rev+` - u.rev, `+either(rev, "created")+`, u.version, u.lease, `+either(id, "prev_id")+`, `+either(rev, "prev_rev")+`, u.key, u.value`+
		commit+`$5::int8[], $6::int8[], $7::int8[], $8::int8[], $9::int8[], $10::int8[], $11::int8[], $12::bytea[], $13::bytea[])
			u(id, rev, created, version, lease, prev_id, prev_rev, key, value)`+ours,
		oidInt4, oidBytes, oidInt4, oidInt8, oidInt8Array, oidInt8Array, oidInt8Array, oidInt8Array, oidInt8Array, oidInt8Array,
		oidInt8Array, oidByteArray, oidByteArray)
	newCurrent := `INSERT INTO current (ks, id, mod, create_rev, version, lease, key)
		SELECT $1, ` + id + ` - u.id, ` + rev + ` - u.rev, ` + either(rev, "created") + `, u.version, u.lease, u.key` +
		commit + `$5::int8[], $6::int8[], $7::int8[], $8::int8[], $9::int8[], $10::bytea[])
			u(id, rev, created, version, lease, key)` + ours
	setCurrent := []uint32{oidInt4, oidBytes, oidInt4, oidInt8, oidInt8Array, oidInt8Array, oidInt8Array, oidInt8Array, oidInt8Array, oidByteArray}
	set(qNewCurrentOptimistic, newCurrent, setCurrent...)
	set(qSetCurrentOptimistic, newCurrent+onConflict, setCurrent...)

	// Like qNotify, for the last commit.
	set(qNotifyHead, `SELECT pg_notify($1, concat($2::int4, ' ', h.rev)) FROM head h, set_config('synchronous_commit', 'off', true)
		WHERE h.ks = $2`, oidText, oidInt4)

	// A commit that was to reach at least $2. Used only after a lost answer.
	set(qFindOptimistic, `SELECT s.token, (SELECT f.rev FROM segment f WHERE f.ks = $1 ORDER BY f.rev LIMIT 1), s.rev
		FROM head h LEFT JOIN LATERAL (SELECT s.token, s.rev FROM segment s
			WHERE s.ks = $1 AND s.rev >= $2 AND s.token = $3 ORDER BY s.rev LIMIT 1) s ON true
		WHERE h.ks = $1`, oidInt4, oidInt8, oidBytes)
}
