package postgres

import (
	"bytes"
	"context"
	"crypto/rand"

	"github.com/atoll-dev/atoll/kv"
)

var _ kv.Recoverer = (*table)(nil)

// Recover implements kv.Recoverer. It gives the keyspace a new origin, which servers
// compare when they open a connection, and whenever they read all heads.
//
// The rows of commits would not suffice to detect servers that remember the lost state:
// sweeping soon removes them, because the new revision is far above those commits.
func (t *table) Recover(ctx context.Context, fn func(kv.Tx) error) error {
	origin := make([]byte, tokenSize)
	rand.Read(origin)
	// The answer may be lost, and the connection that looks up the commit finds either
	// origin.
	t.mu.Lock()
	t.renewed = origin
	t.mu.Unlock()
	err := t.update(ctx, "recover", nil, func(x *tx) error {
		if err := fn(x); err != nil {
			return err
		}
		x.compact = max(x.revision, x.head.Revision)
		x.origin = origin
		return nil
	})
	if err == nil {
		t.mu.Lock()
		t.origin = origin
		t.mu.Unlock()
	}
	return err
}

const replacedText = "the keyspace is gone, or was replaced after it was opened"

// replaced ends the use of a table whose keyspace was replaced or removed, until it is back.
// The caller holds t.mu.
func (t *table) replaced(gone bool) error {
	if _, _, partition := kv.ParsePartitionName(t.name); partition && gone {
		return t.repartitioned() // merged
	}
	if t.behind == nil {
		t.behind = t.unusable(replacedText,
			"If it was recovered (`atoll kv recover`) or recreated on purpose, restart this server; otherwise check which database the URL refers to")
		t.db.checkAgain()
	}
	return t.behind
}

// sameOrigin reports whether a keyspace is the one that was opened. The caller holds t.mu.
func (t *table) sameOrigin(origin []byte) bool {
	return bytes.Equal(origin, t.origin) || t.renewed != nil && bytes.Equal(origin, t.renewed)
}

// checkOrigin ends the use of a table unless its keyspace is the one that was opened.
func (t *table) checkOrigin(origin []byte) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.sameOrigin(origin) {
		return t.replaced(origin == nil)
	}
	return nil
}
