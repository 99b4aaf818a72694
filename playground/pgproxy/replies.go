package pgproxy

import "sync"

// asked is the kind of client message that a reply belongs to.
type asked uint8

const (
	parsing asked = iota
	binding
	describing
	executing
	closing
	syncing
	querying // ends with its own ReadyForQuery
)

// reply is one outstanding answer of the server.
type reply struct {
	kind asked
	// hide the answer, because the proxy sent the message.
	hide bool
	// hideReady hides the ReadyForQuery at its end.
	hideReady bool
	// lose the answer and the connection if the statement succeeded.
	lose bool
}

// replies matches messages of the server to messages of the client. The server answers in order.
type replies struct {
	mu   sync.Mutex
	owed []reply
	// skipping means that after an error the server skips everything up to the next Sync, which
	// has not been sent yet.
	skipping bool
}

// expect records a message before it is sent.
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

// heard records a message of the server. It reports whether the client gets it, and whether the
// reply and its connection are to be lost.
func (r *replies) heard(kind byte) (pass, lose bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.owed) == 0 {
		return true, false // a notice, a notification, or an error before a shutdown
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

// skip drops the messages up to the next Sync, because the server will not answer them.
func (r *replies) skip() {
	for len(r.owed) > 0 {
		if r.owed[0].kind == syncing {
			return
		}
		r.pop()
	}
	r.skipping = true
}
