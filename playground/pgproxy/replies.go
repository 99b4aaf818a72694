package pgproxy

import "sync"

// asked is what kind of message of the client a reply belongs to.
type asked uint8

const (
	parsing asked = iota
	binding
	describing
	executing
	closing
	syncing
	querying // ends with a ReadyForQuery of its own
)

// reply is one that the server owes.
type reply struct {
	kind asked
	// hide it: the proxy asked, not the client.
	hide bool
	// hideReady hides the ReadyForQuery that ends it.
	hideReady bool
	// lose it, and the connection, if it says that it was done.
	lose bool
}

// replies knows which message of the client each message of the server
// answers: they come in the order of the questions.
type replies struct {
	mu   sync.Mutex
	owed []reply
	// skipping: after an error the server reads over everything up to the next
	// Sync, which has not been sent yet.
	skipping bool
}

// expect notes a question, before it is sent.
func (r *replies) expect(next reply) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.skipping {
		if next.kind != syncing {
			return
		}
		r.skipping = false
	}
	r.owed = append(r.owed, next)
}

// heard takes note of a message of the server. It tells whether the client is
// to see it, or that it is to be lost.
func (r *replies) heard(kind byte) (pass, lose bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.owed) == 0 {
		return true, false // a notice, a notification, a farewell
	}
	now := r.owed[0]
	switch kind {
	case '1', '2', '3', 'n': // ParseComplete, BindComplete, CloseComplete, NoData
		r.pop()
	case 'T': // RowDescription: the last of a Describe, the first of a query
		if now.kind == describing {
			r.pop()
		}
	case 'C', 'I', 's': // CommandComplete, EmptyQueryResponse, PortalSuspended
		if now.lose {
			return false, true
		}
		if now.kind == executing {
			r.pop()
		}
	case 'E': // ErrorResponse
		if now.kind != querying {
			r.skip()
		}
		return !(now.kind == querying && now.hide), false
	case 'Z': // ReadyForQuery
		r.pop()
		return !now.hideReady, false
	case 'A', 'S': // NotificationResponse, ParameterStatus: at any time
		return true, false
	}
	return !now.hide, false
}

func (r *replies) pop() { r.owed = r.owed[1:] }

// skip drops the questions up to the next Sync: the server will not answer
// them.
func (r *replies) skip() {
	for len(r.owed) > 0 {
		if r.owed[0].kind == syncing {
			return
		}
		r.pop()
	}
	r.skipping = true
}
