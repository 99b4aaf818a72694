package postgres

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// TestEndDuringCheck: a connection that ends while its host is checked is an error to retry, and
// does not end the server.
func TestEndDuringCheck(t *testing.T) {
	var none []string
	check := guarded(func(context.Context, *pgconn.PgConn) error { _ = none[0]; return nil })
	if err := check(t.Context(), nil); err == nil || !postgresDialect().transient(err) {
		t.Error(err)
	}
	if err := noAnswer(); !postgresDialect().transient(err) {
		t.Error(err)
	}
}
