package postgres

import (
	"context"
	"sync"
)

// batches answers calls with few queries. Calls that arrive while queries are under way wait and share the next one, so that many
// callers need few round trips and connections. Each query begins after the calls that it answers, which linearizability requires.
type batches[C call] struct {
	// queries and size bound the number of concurrent queries, and of calls per query.
	queries, size int
	query         func(ctx context.Context, batch []C) error

	mu      sync.Mutex
	waiting []C
	running int
}

// call waits for the answer of a batch.
type call interface {
	context() context.Context
	// end is called once, with the error of the query, if it failed.
	end(err error)
}

func (b *batches[C]) add(c C) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting = append(b.waiting, c)
	if b.running < b.queries {
		b.running++
		go b.run()
	}
}

// run answers waiting calls until there are none.
func (b *batches[C]) run() {
	for {
		b.mu.Lock()
		n := min(len(b.waiting), b.size)
		if n == 0 {
			b.running--
			b.waiting = nil
			b.mu.Unlock()
			return
		}
		batch := b.waiting[:n:n]
		b.waiting = b.waiting[n:]
		b.mu.Unlock()
		// The query belongs to all of them: no single caller can end it. It is bounded by
		// the time that a database may take to answer.
		err := b.query(context.WithoutCancel(batch[0].context()), batch)
		for _, c := range batch {
			c.end(err)
		}
	}
}
