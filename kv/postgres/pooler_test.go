package postgres

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/mvcc"
	playground "github.com/atoll-dev/atoll/playground/postgres"
)

func pooler(t *testing.T, mode string) *playground.Pooler {
	t.Helper()
	p, err := server(t).Pooler(t.Context(), mode)
	if errors.Is(err, playground.ErrNoPooler) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Stop)
	return p
}

// TestPgBouncer checks that servers work through PgBouncer with its session mode as it is
// installed, and that the other modes are refused at once, with the reason.
func TestPgBouncer(t *testing.T) {
	t.Parallel()
	t.Run("session", func(t *testing.T) {
		t.Parallel()
		p, schema := pooler(t, "session"), schemaOf(t)
		a := openStore(t, openURL(t, p.URL(), schema), mvcc.Options{})
		b := openStore(t, openURL(t, p.URL(), schema, WithMaxConns(2)), mvcc.Options{})
		for i, k := range []kv.Keyspace{a, b, a} {
			if _, err := k.Txn(t.Context(), kv.TxnRequest{Then: []kv.Op{{Put: &kv.PutOp{Key: []byte("a"), Value: []byte{byte('0' + i)}}}}}); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, "the other server sees it", func() bool {
			st, err := b.Status(t.Context())
			return err == nil && st.Revision == 4
		})
	})
	for _, mode := range []string{"transaction", "statement"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			p := pooler(t, mode)
			begin := time.Now()
			_, err := Open(t.Context(), p.URL(), schemaOf(t))
			if err == nil || !strings.Contains(err.Error(), "PgBouncer") || !strings.Contains(err.Error(), "session") {
				t.Fatal(err)
			}
			if time.Since(begin) >= 10*time.Second {
				t.Errorf("it was retried: %v", err)
			}
		})
	}
}
