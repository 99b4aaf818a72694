package postgres

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// migrateStepwise upgrades the schema where statements that define tables commit
// separately, or should. Each can be repeated, by this server after an error or by another
// one at the same time. The version is set after all statements of a step.
func (db *DB) migrateStepwise(ctx context.Context, c *pgconn.PgConn, version int) error {
	schema := quoteIdentifier(db.opts.schema)
	if err := db.makeSchema(ctx, c); err != nil {
		return err
	}
	// The session is used only for this migration.
	for _, text := range []string{
		"SET search_path = " + schema,
		"CREATE TABLE IF NOT EXISTS meta (one boolean PRIMARY KEY, version integer NOT NULL)",
		"INSERT INTO meta (one, version) VALUES (true, 0) ON CONFLICT (one) DO NOTHING",
	} {
		if _, err := execText(ctx, c, text); err != nil {
			return err
		}
	}
	for v := version; v < len(migrations); v++ {
		for _, text := range repeatable(db.dialect.ddl(migrations[v])) {
			if _, err := execText(ctx, c, text); err != nil {
				return fmt.Errorf("migrate schema %s from version %d to %d (completed statements remain, and are harmless): %w", schema, v, v+1, err)
			}
		}
		if _, err := execText(ctx, c, fmt.Sprintf("UPDATE meta SET version = %d WHERE version = %d", v+1, v)); err != nil {
			return err
		}
	}
	for _, text := range db.dialect.tune {
		// A role that may not run this can still use the tables.
		if _, err := execText(ctx, c, text); err != nil && db.dialect.transient(err) {
			return err
		}
	}
	rows, err := execText(ctx, c, "SELECT version FROM meta")
	if err == nil && (len(rows) != 1 || rows[0][0] != strconv.Itoa(len(migrations))) {
		err = fmt.Errorf("migrate schema %s: its version is %v after the migration, not %d", schema, rows, len(migrations))
	}
	return err
}

var (
	comment = regexp.MustCompile(`--[^\n]*`)
	making  = regexp.MustCompile(`\b(CREATE TABLE|CREATE INDEX|ADD COLUMN) `)
)

// repeatable splits a migration step into statements that do nothing if they were executed
// before.
func repeatable(step string) (statements []string) {
	for text := range strings.SplitSeq(comment.ReplaceAllString(step, ""), ";") {
		if text = strings.TrimSpace(text); text != "" {
			statements = append(statements, making.ReplaceAllString(text, "$1 IF NOT EXISTS "))
		}
	}
	return statements
}
