package planstore

import "context"

// Store stores the changes of one plan in chunks. The shown part is for readers of plans. The
// sealed part contains secrets and is protected like states.
type Store interface {
	// Put stores a whole chunk and overwrites one left by an earlier attempt. Several chunks are
	// stored concurrently.
	Put(ctx context.Context, chunk int, shown, sealed [][]byte) error
	Shown(ctx context.Context, chunk int) ([][]byte, error)
	Sealed(ctx context.Context, chunk int) ([][]byte, error)
}
