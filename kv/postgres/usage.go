package postgres

import (
	"context"

	"github.com/atoll-dev/atoll/kv"
)

// usageColumns are the columns for readUsage, of a row h of head.
const usageColumns = `h.usage_rev, h.usage_keys, h.usage_bytes`

// countUsage begins the statement that counts. The length of a value is known without reading it.
const countUsage = `SELECT count(*)::int8, coalesce(sum(octet_length(c.key) + octet_length(l.value)), 0)::int8`

// setCommitRow sets the statements that record a commit: one without usage, and one with it. returning is what a dialect requires in a
// statement that others do not read.
func setCommitRow(set func(name query, sql string, params ...uint32), returning string) {
	for name, usage := range map[query]string{qCommitRow: ``, qCommitRowUsage: `, usage_rev = $2, usage_keys = $7, usage_bytes = $8`} {
		set(name, `WITH s AS (INSERT INTO segment (ks, rev, sub, n, id, token) VALUES ($1, $2, $3, $4, $5, $6)`+returning+`)
			UPDATE head SET rev = $2, sub = $3, next_id = $5 + $4, token = $6`+usage+` WHERE ks = $1`,
			oidInt4, oidInt8, oidInt4, oidInt4, oidInt8, oidBytes, oidInt8, oidInt8)
	}
}

// storedUsage is the usage that a commit has stored, and the revision of that commit.
type storedUsage struct {
	at   kv.Revision
	used kv.Usage
}

func readUsage(cols *columns) storedUsage {
	return storedUsage{cols.int(), kv.Usage{Keys: cols.int(), Bytes: cols.int()}}
}

// Usage implements kv.Table.
func (t *table) Usage(ctx context.Context) (used kv.Usage, at kv.Head, err error) {
	var stored storedUsage
	err = t.snapshot(ctx, "read usage", func(c *conn) { c.send(qUsage, int4(t.id)) }, func(c *conn, h head) error {
		at = h.Head
		_, err := c.result(func(cols *columns) error {
			stored = readUsage(cols)
			return nil
		})
		return err
	})
	if err != nil || stored.at == at.Revision {
		return stored.used, at, err
	}
	err = t.snapshot(ctx, "count usage", func(c *conn) { c.send(qCountUsage, int4(t.id)) }, func(c *conn, h head) (err error) {
		at = h.Head
		used, err = resultCount(c)
		return err
	})
	return used, at, err
}

func resultCount(c *conn) (used kv.Usage, err error) {
	_, err = c.result(func(cols *columns) error {
		used = kv.Usage{Keys: cols.int(), Bytes: cols.int()}
		return nil
	})
	return used, err
}

// Usage implements kv.Tx. The stored usage came with the head, without a round trip.
func (x *tx) Usage() (used kv.Usage, err error) {
	if x.stored.at == x.head.Revision {
		return x.stored.used, nil
	}
	err = x.ask(func() { x.c.send(qCountUsage, int4(x.t.id)) }, func() (err error) {
		used, err = resultCount(x.c)
		return err
	})
	return used, err
}

// SetUsage implements kv.Tx.
func (x *tx) SetUsage(after kv.Usage) { x.used = &after }

// sendCommitRow records the commit.
func (x *tx) sendCommitRow(ks []byte, id commitID) {
	columns := [][]byte{ks, int8(id.rev), int4(id.sub), int4(int32(len(x.changes))), int8(x.head.nextID), id.token[:]}
	if x.used == nil || len(x.changes) == 0 {
		x.c.send(qCommitRow, columns...)
		return
	}
	x.c.send(qCommitRowUsage, append(columns, int8(x.used.Keys), int8(x.used.Bytes))...)
}

// Usage implements kv.Tx: the usage needs the head.
func (x *optimisticTx) Usage() (kv.Usage, error) { return kv.Usage{}, x.refuse() }
