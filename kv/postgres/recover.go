package postgres

import (
	"bytes"
	"context"
	"crypto/rand"

	"github.com/atoll-dev/atoll/kv"
)

var _ kv.Recoverer = (*table)(nil)

// Recover implements kv.Recoverer. Another keyspace is one of another origin:
// a server compares it when it makes a connection, and whenever it reads all heads.
//
// The rows of commits would not suffice to find out those who remember what is
// lost: far above the revisions of those commits, sweeping soon removes them.
func (t *table) Recover(ctx context.Context, fn func(kv.Tx) error) error {
	origin := make([]byte, tokenSize)
	rand.Read(origin)
	// The answer may get lost, and the connection that looks the commit up finds
	// either.
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

// endReplaced ends the use of a table whose keyspace is another by now, or gone.
// The caller holds t.mu.
func (t *table) endReplaced(gone bool) error {
	if _, _, partition := kv.ParsePartitionName(t.name); partition && gone {
		return t.repartitioned() // merged
	}
	return t.end("the keyspace of that name is gone, or another than the one that was opened",
		"If it was recovered (`atoll kv recover`), or made anew on purpose, restart this server; otherwise check which database the URL leads to")
}

// sameOrigin tells whether a keyspace is the one that was opened. The caller
// holds t.mu.
func (t *table) sameOrigin(origin []byte) bool {
	return bytes.Equal(origin, t.origin) || t.renewed != nil && bytes.Equal(origin, t.renewed)
}

// isSame ends the use of a table unless its keyspace is the one that was opened.
func (t *table) isSame(origin []byte) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.sameOrigin(origin) {
		return t.endReplaced(origin == nil)
	}
	return nil
}
